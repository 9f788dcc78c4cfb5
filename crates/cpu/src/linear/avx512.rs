//! The kernel for few tokens in AVX-512: a unit is decoded in registers, 16 outputs at once.
//!
//! NVFP4: a dword of eight nibbles per output; a nibble indexes a register of the 16 values
//! (`vpermps` looks at the low four bits alone), the block's scale multiplies, two chains add.

use std::arch::x86_64::*;

use halfbyte_ops::WeightFormat;
use halfbyte_ops::tensor::{PANEL, UNIT};

use super::{Ahead, Panels};

/// Bytes that are asked for ahead of their use in a long panel: the memory's answer takes that
/// long. Of short panels it is the next pair that is asked for.
const AHEAD: usize = 8192;

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
        // Loading from a byte further on is a shift by eight that costs no shift. The last line's
        // loads reach three bytes beyond the unit: into the next one, or into what the plan keeps
        // after a weight (see `ops::WeightFormat::bytes`).
        // SAFETY: VALUES is 64 bytes; eight lines of codes follow the scales.
        let (values, codes) = unsafe {
            let line = unit.add(UNIT + p / 4 * 64 + p % 4);
            (_mm512_loadu_ps(VALUES.as_ptr()), _mm512_loadu_si512(line.cast()))
        };
        let odd = _mm512_srli_epi32::<4>(codes);
        (
            _mm512_mul_ps(_mm512_permutexvar_ps(codes, values), scale),
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

/// sums[p][t] = panel p times token t, for one or two panels side by side and one to four tokens
/// of `x` (`[t][units * 64]`). Two panels, because a chain of additions alone would wait for
/// itself. What comes `ahead` is asked for.
///
/// # Safety
/// The machine has AVX-512; every panel has `units` units of the format.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
pub(super) unsafe fn product(
    format: WeightFormat,
    panels: &Panels<'_>,
    ahead: Ahead,
    units: usize,
    x: &[f32],
    sums: &mut Sums,
) {
    let tokens = x.len() / (units * UNIT);
    let whole = |panel: &&[u8]| panel.len() >= units * format.unit_bytes();
    assert!(panels.iter().flatten().all(whole) && (1..=4).contains(&tokens));
    // SAFETY: sizes checked above.
    unsafe {
        match format {
            WeightFormat::Nvfp4 => by_panels::<Nvfp4>(panels, ahead, units, x.as_ptr(), tokens, sums),
            WeightFormat::Int8 => by_panels::<Int8>(panels, ahead, units, x.as_ptr(), tokens, sums),
            WeightFormat::Bf16 => by_panels::<Bf16>(panels, ahead, units, x.as_ptr(), tokens, sums),
            WeightFormat::F32 => by_panels::<F32>(panels, ahead, units, x.as_ptr(), tokens, sums),
        }
    }
}

type Sums = [[[f32; PANEL]; 4]; 2];

#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn by_panels<D: Decode>(
    panels: &Panels<'_>,
    ahead: Ahead,
    units: usize,
    x: *const f32,
    tokens: usize,
    sums: &mut Sums,
) {
    // SAFETY: by the caller's promise.
    unsafe {
        match *panels {
            [Some(a), Some(b)] => by_tokens::<D, 2>([a.as_ptr(), b.as_ptr()], ahead, units, x, tokens, sums),
            [Some(a), None] => by_tokens::<D, 1>([a.as_ptr()], ahead, units, x, tokens, sums),
            [None, _] => {}
        }
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn by_tokens<D: Decode, const P: usize>(
    panels: [*const u8; P],
    ahead: Ahead,
    units: usize,
    x: *const f32,
    tokens: usize,
    sums: &mut Sums,
) {
    // SAFETY: by the caller's promise.
    unsafe {
        match tokens {
            1 => times::<D, P, 1>(panels, ahead, units, x, sums),
            2 => times::<D, P, 2>(panels, ahead, units, x, sums),
            3 => times::<D, P, 3>(panels, ahead, units, x, sums),
            _ => times::<D, P, 4>(panels, ahead, units, x, sums),
        }
    }
}

/// Registers of a chain for every panel and token.
type Chains<const P: usize, const T: usize> = [[__m512; T]; P];

#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn times<D: Decode, const P: usize, const T: usize>(
    panels: [*const u8; P],
    ahead: Ahead,
    units: usize,
    x: *const f32,
    sums: &mut Sums,
) {
    let mut totals: Chains<P, T> = [[_mm512_setzero_ps(); T]; P];
    let panel_bytes = units * D::UNIT_BYTES;
    let step = ahead.step * panel_bytes;
    let distance = if panel_bytes > 2 * AHEAD { AHEAD } else { step };
    // Up to there, counted from a panel's start, this thread will read.
    let end = panel_bytes + ahead.count * step;
    for u in 0..units {
        // SAFETY: unit u of each panel and positions 64 u.. of each token exist; a prefetch beyond
        // the end touches nothing.
        unsafe {
            let units_at: [*const u8; P] = std::array::from_fn(|p| panels[p].add(u * D::UNIT_BYTES));
            if u * D::UNIT_BYTES + distance + D::UNIT_BYTES <= end {
                for unit in units_at {
                    for line in 0..D::UNIT_BYTES.div_ceil(64) {
                        _mm_prefetch::<_MM_HINT_T0>(unit.wrapping_add(distance + line * 64).cast());
                    }
                }
            }
            let x: [*const f32; T] = std::array::from_fn(|t| x.add((t * units + u) * UNIT));
            group::<D, P, T, 0, 1>(&units_at, &x, &mut totals);
            group::<D, P, T, 2, 3>(&units_at, &x, &mut totals);
        }
    }
    for (sums, totals) in sums.iter_mut().zip(totals) {
        for (sums, total) in sums.iter_mut().zip(totals) {
            // SAFETY: 16 values.
            unsafe { _mm512_storeu_ps(sums.as_mut_ptr(), total) };
        }
    }
}

/// Adds one group of 32 positions, the blocks A and B, to the totals.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn group<D: Decode, const P: usize, const T: usize, const A: usize, const B: usize>(
    units: &[*const u8; P],
    x: &[*const f32; T],
    totals: &mut Chains<P, T>,
) {
    let zero = [[_mm512_setzero_ps(); T]; P];
    let (mut even, mut odd) = (zero, zero);
    // SAFETY: the caller's units and positions.
    unsafe {
        block::<D, P, T, A>(units, x, &mut even, &mut odd);
        block::<D, P, T, B>(units, x, &mut even, &mut odd);
    }
    for p in 0..P {
        for t in 0..T {
            totals[p][t] = _mm512_add_ps(totals[p][t], _mm512_add_ps(even[p][t], odd[p][t]));
        }
    }
}

/// Continues the two chains of every panel and token over block B of a unit.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn block<D: Decode, const P: usize, const T: usize, const B: usize>(
    units: &[*const u8; P],
    x: &[*const f32; T],
    even: &mut Chains<P, T>,
    odd: &mut Chains<P, T>,
) {
    // SAFETY: the caller's units and positions.
    unsafe {
        let scales: [D::Scale; P] = std::array::from_fn(|p| D::scale(units[p], B));
        for i in 0..8 {
            let k = B * 8 + i;
            for p in 0..P {
                let (w0, w1) = D::pair(units[p], k, scales[p]);
                for t in 0..T {
                    even[p][t] = _mm512_fmadd_ps(w0, _mm512_set1_ps(*x[t].add(2 * k)), even[p][t]);
                    odd[p][t] = _mm512_fmadd_ps(w1, _mm512_set1_ps(*x[t].add(2 * k + 1)), odd[p][t]);
                }
            }
        }
    }
}
