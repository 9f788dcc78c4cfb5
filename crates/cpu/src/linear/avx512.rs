//! The kernel for few tokens in AVX-512: a unit is decoded in registers, 16 outputs at once.
//!
//! NVFP4: a dword of eight nibbles per output; a nibble indexes a register of the 16 values
//! (`vpermps` looks at the low four bits alone), the block's scale multiplies, two chains add.

use std::arch::x86_64::*;

use halfbyte_ops::WeightFormat;
use halfbyte_ops::tensor::{PANEL, UNIT};

/// Decodes positions 2 p and 2 p + 1 of a unit for all 16 outputs.
trait Decode {
    const UNIT_BYTES: usize;
    /// What a block of 16 positions needs.
    type Scale: Copy;
    unsafe fn scale(unit: *const u8, block: usize) -> Self::Scale;
    unsafe fn pair(unit: *const u8, p: usize, scale: Self::Scale) -> (__m512, __m512);
}

struct Nvfp4;
struct Int8;
struct Bf16;
struct F32;

/// E2M1 values times 256, which the scale's conversion through f16 takes back.
pub(super) const VALUES: [f32; 16] = [
    0.0, 128.0, 256.0, 384.0, 512.0, 768.0, 1024.0, 1536.0, -0.0, -128.0, -256.0, -384.0, -512.0, -768.0,
    -1024.0, -1536.0,
];

/// The scales of a block, divided by 256.
///
/// # Safety
/// `unit` is a whole unit.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
pub(super) unsafe fn nvfp4_scale(unit: *const u8, block: usize) -> __m512 {
    // SAFETY: four times 16 scale bytes start a unit.
    let bytes = unsafe { _mm_loadu_si128(unit.add(block * PANEL).cast()) };
    // An E4M3 byte shifted to an f16's place is that number divided by 256, subnormals too.
    _mm512_cvtph_ps(_mm256_slli_epi16::<7>(_mm256_cvtepu8_epi16(bytes)))
}

impl Decode for Nvfp4 {
    const UNIT_BYTES: usize = WeightFormat::Nvfp4.unit_bytes();
    type Scale = __m512;

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    unsafe fn scale(unit: *const u8, block: usize) -> __m512 {
        // SAFETY: the same promise.
        unsafe { nvfp4_scale(unit, block) }
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    unsafe fn pair(unit: *const u8, p: usize, scale: __m512) -> (__m512, __m512) {
        // SAFETY: VALUES is 64 bytes; eight lines of codes follow the scales.
        let (values, codes) = unsafe {
            let line = unit.add(UNIT + p / 4 * 64);
            (_mm512_loadu_ps(VALUES.as_ptr()), _mm512_loadu_si512(line.cast()))
        };
        let shift = p % 4 * 8;
        let even = _mm512_srl_epi32(codes, _mm_cvtsi32_si128(shift as i32));
        let odd = _mm512_srl_epi32(codes, _mm_cvtsi32_si128(shift as i32 + 4));
        (
            _mm512_mul_ps(_mm512_permutexvar_ps(even, values), scale),
            _mm512_mul_ps(_mm512_permutexvar_ps(odd, values), scale),
        )
    }
}

impl Decode for Int8 {
    const UNIT_BYTES: usize = WeightFormat::Int8.unit_bytes();
    type Scale = __m512;

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    unsafe fn scale(unit: *const u8, block: usize) -> __m512 {
        // SAFETY: four times 16 scale bytes start a unit.
        let bytes = unsafe { _mm_loadu_si128(unit.add(block * PANEL).cast()) };
        _mm512_castsi512_ps(_mm512_slli_epi32::<23>(_mm512_cvtepu8_epi32(bytes)))
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    unsafe fn pair(unit: *const u8, p: usize, scale: __m512) -> (__m512, __m512) {
        // SAFETY: 64 times 16 codes follow the scales.
        let (even, odd) = unsafe {
            let at = unit.add(UNIT + p * 2 * PANEL);
            (_mm_loadu_si128(at.cast()), _mm_loadu_si128(at.add(PANEL).cast()))
        };
        let wide = |codes| _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(codes));
        (_mm512_mul_ps(wide(even), scale), _mm512_mul_ps(wide(odd), scale))
    }
}

impl Decode for Bf16 {
    const UNIT_BYTES: usize = WeightFormat::Bf16.unit_bytes();
    type Scale = ();

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    unsafe fn scale(_: *const u8, _: usize) {}

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    unsafe fn pair(unit: *const u8, p: usize, (): ()) -> (__m512, __m512) {
        // SAFETY: 32 lines of pairs make a unit.
        let pairs = unsafe { _mm512_loadu_si512(unit.add(p * 64).cast()) };
        let high = _mm512_set1_epi32(0xffff_0000u32 as i32);
        (
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(pairs)),
            _mm512_castsi512_ps(_mm512_and_si512(pairs, high)),
        )
    }
}

impl Decode for F32 {
    const UNIT_BYTES: usize = WeightFormat::F32.unit_bytes();
    type Scale = ();

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    unsafe fn scale(_: *const u8, _: usize) {}

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    unsafe fn pair(unit: *const u8, p: usize, (): ()) -> (__m512, __m512) {
        // SAFETY: 64 lines make a unit.
        unsafe {
            let at = unit.add(p * 128);
            (_mm512_loadu_ps(at.cast()), _mm512_loadu_ps(at.add(64).cast()))
        }
    }
}

/// sums[t] = panel times token t, for one to four tokens of `x` (`[t][units * 64]`).
///
/// # Safety
/// The machine has AVX-512; `panel` has `units` units of the format.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
pub(super) unsafe fn product(
    format: WeightFormat,
    panel: &[u8],
    units: usize,
    x: &[f32],
    sums: &mut [[f32; PANEL]],
) {
    assert!(panel.len() >= units * format.unit_bytes() && x.len() >= sums.len() * units * UNIT);
    // SAFETY: sizes checked above.
    unsafe {
        match format {
            WeightFormat::Nvfp4 => tokens::<Nvfp4>(panel.as_ptr(), units, x.as_ptr(), sums),
            WeightFormat::Int8 => tokens::<Int8>(panel.as_ptr(), units, x.as_ptr(), sums),
            WeightFormat::Bf16 => tokens::<Bf16>(panel.as_ptr(), units, x.as_ptr(), sums),
            WeightFormat::F32 => tokens::<F32>(panel.as_ptr(), units, x.as_ptr(), sums),
        }
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn tokens<D: Decode>(panel: *const u8, units: usize, x: *const f32, sums: &mut [[f32; PANEL]]) {
    // SAFETY: by the caller's promise.
    unsafe {
        match sums {
            [a] => panel_times::<D, 1>(panel, units, x, [a]),
            [a, b] => panel_times::<D, 2>(panel, units, x, [a, b]),
            [a, b, c] => panel_times::<D, 3>(panel, units, x, [a, b, c]),
            [a, b, c, d] => panel_times::<D, 4>(panel, units, x, [a, b, c, d]),
            _ => unreachable!("one to four tokens"),
        }
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn panel_times<D: Decode, const T: usize>(
    panel: *const u8,
    units: usize,
    x: *const f32,
    sums: [&mut [f32; PANEL]; T],
) {
    let zero = _mm512_setzero_ps();
    let mut totals = [zero; T];
    for u in 0..units {
        // SAFETY: unit u of the panel and positions 64 u.. of each token exist.
        unsafe {
            let unit = panel.add(u * D::UNIT_BYTES);
            for group in 0..2 {
                let (mut even, mut odd) = ([zero; T], [zero; T]);
                for half in 0..2 {
                    let scale = D::scale(unit, group * 2 + half);
                    for i in 0..8 {
                        let p = group * 16 + half * 8 + i;
                        let (w0, w1) = D::pair(unit, p, scale);
                        for t in 0..T {
                            let x = x.add((t * units + u) * UNIT + 2 * p);
                            even[t] = _mm512_fmadd_ps(w0, _mm512_set1_ps(*x), even[t]);
                            odd[t] = _mm512_fmadd_ps(w1, _mm512_set1_ps(*x.add(1)), odd[t]);
                        }
                    }
                }
                for t in 0..T {
                    totals[t] = _mm512_add_ps(totals[t], _mm512_add_ps(even[t], odd[t]));
                }
            }
        }
    }
    for (sums, total) in sums.into_iter().zip(totals) {
        // SAFETY: 16 values.
        unsafe { _mm512_storeu_ps(sums.as_mut_ptr(), total) };
    }
}
