//! AVX-512 by hand for what is computed for every score and every gate: the same bits as
//! `halfbyte_ops::math` and `halfbyte_formats::bf16`, in half the instructions.

use std::arch::x86_64::*;

/// e^x as `math::exp`.
#[inline]
#[target_feature(enable = "avx512f")]
pub(crate) fn exp(x: __m512) -> __m512 {
    let set = _mm512_set1_ps;
    // In this order both pass a NaN on.
    power(x, _mm512_max_ps(set(-87.0), _mm512_min_ps(set(88.7), x)))
}

/// e^x as `math::exp` of what is not above zero. Below -87 it may be anything: zero is put there.
#[inline]
#[target_feature(enable = "avx512f")]
pub(crate) fn exp_to_one(x: __m512) -> __m512 {
    power(x, x)
}

/// e^clamped, zero where x is less than -87.
#[inline]
#[target_feature(enable = "avx512f")]
fn power(x: __m512, clamped: __m512) -> __m512 {
    let set = _mm512_set1_ps;
    let shift = set(12_582_912.0);
    let n = _mm512_sub_ps(_mm512_fmadd_ps(clamped, set(std::f32::consts::LOG2_E), shift), shift);
    let r = _mm512_fmadd_ps(n, set(-0.693_145_75), clamped);
    let r = _mm512_fmadd_ps(n, set(-1.428_606_8e-6), r);
    let mut p = set(1.388_888_9e-3);
    p = _mm512_fmadd_ps(p, r, set(8.333_334e-3));
    p = _mm512_fmadd_ps(p, r, set(4.166_666_8e-2));
    p = _mm512_fmadd_ps(p, r, set(0.166_666_67));
    p = _mm512_fmadd_ps(p, r, set(0.5));
    p = _mm512_fmadd_ps(p, r, set(1.0));
    p = _mm512_fmadd_ps(p, r, set(1.0));
    // Not less than -87: a NaN stays.
    _mm512_maskz_scalef_ps(_mm512_cmp_ps_mask::<_CMP_NLT_UQ>(x, set(-87.0)), p, n)
}

/// x / (1 + e^-x) as `math::silu`.
#[inline]
#[target_feature(enable = "avx512f,avx512dq")]
pub(crate) fn silu(x: __m512) -> __m512 {
    let minus = _mm512_xor_ps(x, _mm512_set1_ps(-0.0));
    _mm512_div_ps(x, _mm512_add_ps(_mm512_set1_ps(1.0), exp(minus)))
}

/// Gradients of gate and up as `gated::gradient`.
#[inline]
#[target_feature(enable = "avx512f,avx512dq")]
pub(crate) fn gated_gradient(gate: __m512, up: __m512, dy: __m512) -> [__m512; 2] {
    let one = _mm512_set1_ps(1.0);
    let minus = _mm512_xor_ps(gate, _mm512_set1_ps(-0.0));
    let e = _mm512_div_ps(one, _mm512_add_ps(one, exp(minus)));
    let slope = _mm512_mul_ps(e, _mm512_fmadd_ps(gate, _mm512_sub_ps(one, e), one));
    [_mm512_mul_ps(_mm512_mul_ps(dy, up), slope), _mm512_mul_ps(dy, _mm512_mul_ps(gate, e))]
}

/// Nearest bf16 as `bf16::encode`. The chip's own conversion takes subnormal numbers for zero.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512bf16")]
pub(crate) fn narrow(x: __m512) -> __m256i {
    const SUBNORMAL: i32 = 0x20;
    match _mm512_fpclass_ps_mask::<SUBNORMAL>(x) {
        0 => narrow_normal(x),
        _ => narrow_by_bits(x),
    }
}

/// As `narrow` of numbers that are not subnormal.
#[inline]
#[target_feature(enable = "avx512f,avx512bf16")]
pub(crate) fn narrow_normal(x: __m512) -> __m256i {
    // SAFETY: both are 16 times 16 bits.
    unsafe { std::mem::transmute(_mm512_cvtneps_pbh(x)) }
}

#[cold]
#[target_feature(enable = "avx512f,avx512bw")]
fn narrow_by_bits(x: __m512) -> __m256i {
    let bits = _mm512_castps_si512(x);
    let upper = _mm512_srli_epi32::<16>(bits);
    let odd = _mm512_and_si512(upper, _mm512_set1_epi32(1));
    let up = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
    let quiet = _mm512_or_si512(upper, _mm512_set1_epi32(0x40));
    let nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(x, x);
    _mm512_cvtepi32_epi16(_mm512_mask_mov_epi32(_mm512_srli_epi32::<16>(up), nan, quiet))
}

/// 16 lines of 16 dwords, columns becoming lines.
///
/// # Safety
/// There are 16 lines of 64 bytes at both.
#[inline]
#[target_feature(enable = "avx512f")]
pub(crate) unsafe fn transpose(from: *const u8, to: *mut u8) {
    let mut lines = [_mm512_setzero_si512(); 16];
    for (i, line) in lines.iter_mut().enumerate() {
        // SAFETY: by the caller's promise.
        *line = unsafe { _mm512_loadu_si512(from.add(i * 64).cast()) };
    }
    // Columns 4 l + k of lines 4 i.. come to stand in quarter l of `quarters[i][k]`.
    let mut quarters = [[_mm512_setzero_si512(); 4]; 4];
    for (quarters, lines) in quarters.iter_mut().zip(lines.as_chunks::<4>().0) {
        let (low, high) =
            (_mm512_unpacklo_epi32(lines[0], lines[1]), _mm512_unpackhi_epi32(lines[0], lines[1]));
        let (next_low, next_high) =
            (_mm512_unpacklo_epi32(lines[2], lines[3]), _mm512_unpackhi_epi32(lines[2], lines[3]));
        *quarters = [
            _mm512_unpacklo_epi64(low, next_low),
            _mm512_unpackhi_epi64(low, next_low),
            _mm512_unpacklo_epi64(high, next_high),
            _mm512_unpackhi_epi64(high, next_high),
        ];
    }
    const EVEN: i32 = 0x88;
    const ODD: i32 = 0xdd;
    let [first, second, third, fourth] = quarters;
    for (k, (((a, b), c), d)) in first.into_iter().zip(second).zip(third).zip(fourth).enumerate() {
        let even = (_mm512_shuffle_i32x4::<EVEN>(a, b), _mm512_shuffle_i32x4::<EVEN>(c, d));
        let odd = (_mm512_shuffle_i32x4::<ODD>(a, b), _mm512_shuffle_i32x4::<ODD>(c, d));
        let columns = [
            _mm512_shuffle_i32x4::<EVEN>(even.0, even.1),
            _mm512_shuffle_i32x4::<EVEN>(odd.0, odd.1),
            _mm512_shuffle_i32x4::<ODD>(even.0, even.1),
            _mm512_shuffle_i32x4::<ODD>(odd.0, odd.1),
        ];
        for (l, column) in columns.into_iter().enumerate() {
            // SAFETY: by the caller's promise.
            unsafe { _mm512_storeu_si512(to.add((4 * l + k) * 64).cast(), column) };
        }
    }
}

#[cfg(test)]
mod tests {
    use halfbyte_formats::bf16;
    use halfbyte_ops::math;

    use super::*;

    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512bf16")]
    fn compare(x: [f32; 16]) {
        let ([mut e, mut to_one, mut s], [mut b, mut normal]) = ([[0.0f32; 16]; 3], [[0u16; 16]; 2]);
        // SAFETY: 16 values each.
        unsafe {
            let v = _mm512_loadu_ps(x.as_ptr());
            _mm512_storeu_ps(e.as_mut_ptr(), exp(v));
            _mm512_storeu_ps(to_one.as_mut_ptr(), exp_to_one(v));
            _mm512_storeu_ps(s.as_mut_ptr(), silu(v));
            _mm256_storeu_si256(b.as_mut_ptr().cast(), narrow(v));
            _mm256_storeu_si256(normal.as_mut_ptr().cast(), narrow_normal(v));
        }
        for i in 0..16 {
            let same = |got: f32, want: f32| got.to_bits() == want.to_bits() || got.is_nan() && want.is_nan();
            assert!(same(e[i], math::exp(x[i])), "exp({:e}): {:e}, {:e}", x[i], e[i], math::exp(x[i]));
            assert!(x[i] > 0.0 || same(to_one[i], e[i]), "exp_to_one({:e}): {:e}", x[i], to_one[i]);
            assert!(same(s[i], math::silu(x[i])), "silu({:e}): {:e}, {:e}", x[i], s[i], math::silu(x[i]));
            assert_eq!(b[i], bf16::encode(x[i]), "narrow({:e})", x[i]);
            assert!(x[i].is_subnormal() || normal[i] == b[i], "narrow_normal({:e})", x[i]);
        }
    }

    #[test]
    fn registers_give_the_bits_of_the_reference() {
        if !crate::Isa::Amx.available() {
            eprintln!("skipped: this machine has no amx");
            return;
        }
        // Every 1,021st number there is: signs, zeros, subnormal numbers, infinities, NaN.
        for first in (0..u32::MAX - 16 * 1021).step_by(16 * 1021) {
            // SAFETY: AMX was found, and conversion to bf16 with it.
            unsafe { compare(std::array::from_fn(|i| f32::from_bits(first + i as u32 * 1021))) };
        }
        for first in -90 * 64..90 * 64 {
            // SAFETY: as above.
            unsafe { compare(std::array::from_fn(|i| (first * 16 + i as i32) as f32 / 1024.0)) };
        }
    }
}
