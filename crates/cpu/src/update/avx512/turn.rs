//! Sixteen rows become columns, in dwords.

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

/// Sixteen rows of 32 bytes, `stride` bytes apart, as eight columns of dwords.
///
/// Halves of registers come from memory where they belong: that takes any port, a shuffle only one.
///
/// # Safety
/// The rows may be read.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn load_eight(from: *const u8, stride: usize, out: &mut [__m512i]) {
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
