//! Sixteen rows become columns and columns rows again, in dwords.

use std::arch::x86_64::*;

/// Four by four inside each quarter of the registers; its own inverse.
#[inline]
#[target_feature(enable = "avx512f")]
fn quarters(r: [__m512i; 4]) -> [__m512i; 4] {
    let (a, b) = (_mm512_unpacklo_epi32(r[0], r[1]), _mm512_unpackhi_epi32(r[0], r[1]));
    let (c, d) = (_mm512_unpacklo_epi32(r[2], r[3]), _mm512_unpackhi_epi32(r[2], r[3]));
    [
        _mm512_unpacklo_epi64(a, c),
        _mm512_unpackhi_epi64(a, c),
        _mm512_unpacklo_epi64(b, d),
        _mm512_unpackhi_epi64(b, d),
    ]
}

/// Sixteen rows of 64 bytes, `stride` bytes apart, as sixteen columns of dwords.
///
/// # Safety
/// The rows may be read.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn load_sixteen(from: *const u8, stride: usize, out: &mut [__m512i; 16]) {
    let (low, high) = out.split_at_mut(8);
    // SAFETY: by the caller's promise.
    unsafe {
        load_eight(from, stride, low);
        load_eight(from.add(32), stride, high);
    }
}

/// Puts back what [`load_sixteen`] took.
///
/// # Safety
/// The rows may be written.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn store_sixteen(to: *mut u8, stride: usize, columns: &[__m512i; 16]) {
    let (low, high) = columns.split_at(8);
    // SAFETY: by the caller's promise.
    unsafe {
        store_eight(to, stride, low);
        store_eight(to.add(32), stride, high);
    }
}

/// Sixteen rows of 32 bytes, `stride` bytes apart, as eight columns of dwords.
///
/// Halves of registers come from memory where they belong: that takes any port, a shuffle only one.
///
/// # Safety
/// The rows may be read.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn load_eight(from: *const u8, stride: usize, out: &mut [__m512i]) {
    // SAFETY: by the caller's promise.
    let row = |row: usize| unsafe { _mm256_loadu_si256(from.add(row * stride).cast()) };
    let both = |at: usize| _mm512_inserti64x4::<1>(_mm512_castsi256_si512(row(at)), row(at + 4));
    let a = quarters([both(0), both(1), both(2), both(3)]);
    let b = quarters([both(8), both(9), both(10), both(11)]);
    for k in 0..4 {
        out[k] = _mm512_shuffle_i32x4::<0x88>(a[k], b[k]);
        out[4 + k] = _mm512_shuffle_i32x4::<0xDD>(a[k], b[k]);
    }
}

/// Puts back what [`load_eight`] took.
///
/// # Safety
/// The rows may be written.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn store_eight(to: *mut u8, stride: usize, columns: &[__m512i]) {
    // Quarters 0 and 1 of both, in turns; then quarters 2 and 3.
    let low = _mm512_set_epi64(11, 10, 3, 2, 9, 8, 1, 0);
    let high = _mm512_set_epi64(15, 14, 7, 6, 13, 12, 5, 4);
    for (first, index) in [(0, low), (8, high)] {
        let pick = |k: usize| _mm512_permutex2var_epi64(columns[k], index, columns[4 + k]);
        for (i, both) in quarters([pick(0), pick(1), pick(2), pick(3)]).into_iter().enumerate() {
            // SAFETY: by the caller's promise.
            unsafe {
                _mm256_storeu_si256(to.add((first + i) * stride).cast(), _mm512_castsi512_si256(both));
                let upper = _mm512_extracti64x4_epi64::<1>(both);
                _mm256_storeu_si256(to.add((first + i + 4) * stride).cast(), upper);
            }
        }
    }
}

/// A dword of each of sixteen rows.
///
/// # Safety
/// The dwords may be read.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn load_one(from: *const u8, stride: usize) -> __m512i {
    // SAFETY: by the caller's promise.
    unsafe { _mm512_i32gather_epi32::<1>(offsets(stride), from.cast()) }
}

/// Puts back what [`load_one`] took.
///
/// # Safety
/// The dwords may be written.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn store_one(to: *mut u8, stride: usize, values: __m512i) {
    // SAFETY: by the caller's promise.
    unsafe { _mm512_i32scatter_epi32::<1>(to.cast(), offsets(stride), values) };
}

/// Where the rows begin, in bytes.
#[inline]
#[target_feature(enable = "avx512f")]
fn offsets(stride: usize) -> __m512i {
    let numbers = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    _mm512_mullo_epi32(numbers, _mm512_set1_epi32(stride as i32))
}
