//! The kernel without tiles in AVX-512: a unit is decoded in registers, 16 outputs at once.
//!
//! NVFP4: a dword of eight nibbles per output; a nibble indexes a register of the 16 values
//! (`vpermps` looks at the low four bits alone), the block's scale multiplies, two chains add.

use std::arch::x86_64::*;
use std::ops::Range;

use halfbyte_ops::WeightFormat;
use halfbyte_ops::tensor::{BLOCK, PANEL, UNIT};

use super::job::Panel;
use super::{Ahead, Panels, Sums, lanes};
use crate::panel::Decoded;
use crate::vector;

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

/// `lanes::decode_panel`.
///
/// # Safety
/// The machine has AVX-512.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c")]
pub(super) unsafe fn decode_panel(panel: &Panel<'_>, out: &mut [Decoded]) {
    lanes::decode::<ByHand>(panel, out);
}

/// Used by functions alone that have AVX-512.
struct ByHand;

impl lanes::Decode for ByHand {
    #[inline(always)]
    fn block(format: WeightFormat, unit: &[u8], block: usize, out: &mut [[f32; PANEL]; BLOCK]) {
        assert!(unit.len() == format.unit_bytes() && block < UNIT / BLOCK);
        // SAFETY: a whole unit, and AVX-512 (see `ByHand`).
        unsafe {
            match format {
                WeightFormat::Nvfp4 => decode_block::<Nvfp4>(unit, block, out),
                WeightFormat::Int8 => decode_block::<Int8>(unit, block, out),
                WeightFormat::Bf16 => decode_block::<Bf16>(unit, block, out),
                WeightFormat::F32 => decode_block::<F32>(unit, block, out),
            }
        }
    }

    #[inline(always)]
    fn turn(lines: &[[f32; PANEL]; PANEL], out: &mut [[f32; PANEL]; PANEL]) {
        // SAFETY: 16 lines of 16 values at both, and AVX-512 (see `ByHand`).
        unsafe { vector::transpose(lines.as_ptr().cast(), out.as_mut_ptr().cast()) };
    }
}

/// 16 positions of a unit.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn decode_block<D: Decode>(unit: &[u8], block: usize, out: &mut [[f32; PANEL]; BLOCK]) {
    // SAFETY: a whole unit, by the caller's promise; 16 values a line.
    unsafe {
        let scale = D::scale(unit.as_ptr(), block);
        for (i, [even, odd]) in out.as_chunks_mut::<2>().0.iter_mut().enumerate() {
            let (first, second) = D::pair(unit.as_ptr(), block * BLOCK / 2 + i, scale);
            _mm512_storeu_ps(even.as_mut_ptr(), first);
            _mm512_storeu_ps(odd.as_mut_ptr(), second);
        }
    }
}

/// Units of a pair of panels that are taken together: what is decoded of them stays in the cache next to the core
/// while it meets one block of tokens after the other.
const SLICE: usize = 2;
/// Tokens of a block: with two panels two dozen chains, enough that none is waited for.
const TOKENS: usize = 6;

/// sums[p][t] += panel p times token t, for one or two panels side by side and the tokens of `x`
/// (`[t][units * 64]`). What comes `ahead` is asked for.
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
    sums: &mut Sums<'_>,
) {
    let whole = |panel: &&[u8]| panel.len() >= units * format.unit_bytes();
    let of_all = |sums: &&mut [[f32; PANEL]]| x.len() == sums.len() * units * UNIT;
    assert!(panels.iter().flatten().all(whole) && sums.iter().all(of_all));
    // SAFETY: sizes checked above.
    unsafe {
        match format {
            WeightFormat::Nvfp4 => by_panels::<Nvfp4>(panels, ahead, units, x, sums),
            WeightFormat::Int8 => by_panels::<Int8>(panels, ahead, units, x, sums),
            WeightFormat::Bf16 => by_panels::<Bf16>(panels, ahead, units, x, sums),
            WeightFormat::F32 => by_panels::<F32>(panels, ahead, units, x, sums),
        }
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn by_panels<D: Decode>(
    panels: &Panels<'_>,
    ahead: Ahead,
    units: usize,
    x: &[f32],
    sums: &mut Sums<'_>,
) {
    // SAFETY: by the caller's promise.
    unsafe {
        match *panels {
            [Some(a), Some(b)] => by_slices::<D, 2>([a.as_ptr(), b.as_ptr()], ahead, units, x, sums),
            [Some(a), None] => by_slices::<D, 1>([a.as_ptr()], ahead, units, x, sums),
            [None, _] => {}
        }
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn by_slices<D: Decode, const P: usize>(
    panels: [*const u8; P],
    ahead: Ahead,
    units: usize,
    x: &[f32],
    sums: &mut Sums<'_>,
) {
    let tokens = sums[0].len();
    // One block needs nothing to stay; several are about as long.
    let slice = if tokens > TOKENS { SLICE } else { units };
    let each = tokens.div_ceil(tokens.div_ceil(TOKENS));
    for first in (0..units).step_by(slice) {
        let some = first..units.min(first + slice);
        for token in (0..tokens).step_by(each) {
            let part = Part { panels, ahead, units, some: some.clone(), x: x.as_ptr(), token };
            // SAFETY: by the caller's promise.
            unsafe {
                match each.min(tokens - token) {
                    1 => times::<D, P, 1>(part, sums),
                    2 => times::<D, P, 2>(part, sums),
                    3 => times::<D, P, 3>(part, sums),
                    4 => times::<D, P, 4>(part, sums),
                    5 => times::<D, P, 5>(part, sums),
                    _ => times::<D, P, TOKENS>(part, sums),
                }
            }
        }
    }
}

/// Some units of panels, and the first of some tokens.
struct Part<const P: usize> {
    panels: [*const u8; P],
    ahead: Ahead,
    units: usize,
    some: Range<usize>,
    x: *const f32,
    token: usize,
}

/// Registers of a chain for every panel and token.
type Chains<const P: usize, const T: usize> = [[__m512; T]; P];

#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn times<D: Decode, const P: usize, const T: usize>(part: Part<P>, sums: &mut Sums<'_>) {
    let Part { panels, ahead, units, some, x, token } = part;
    let at: [*mut f32; P] = std::array::from_fn(|p| sums[p][token..token + T].as_mut_ptr().cast());
    let panel_bytes = units * D::UNIT_BYTES;
    let step = ahead.step * panel_bytes;
    let distance = if panel_bytes > 2 * AHEAD { AHEAD } else { step };
    // Up to there, counted from a panel's start, this thread will read.
    let end = panel_bytes + ahead.count * step;
    for u in some {
        // SAFETY: unit u of each panel and positions 64 u.. of each token exist; a prefetch beyond
        // the end touches nothing.
        unsafe {
            let units_at: [*const u8; P] = std::array::from_fn(|p| panels[p].add(u * D::UNIT_BYTES));
            if token == 0 && u * D::UNIT_BYTES + distance + D::UNIT_BYTES <= end {
                for unit in units_at {
                    for line in 0..D::UNIT_BYTES.div_ceil(64) {
                        _mm_prefetch::<_MM_HINT_T0>(unit.wrapping_add(distance + line * 64).cast());
                    }
                }
            }
            let x: [*const f32; T] = std::array::from_fn(|t| x.add(((token + t) * units + u) * UNIT));
            group::<D, P, T, 0, 1>(&units_at, &x, &at);
            group::<D, P, T, 2, 3>(&units_at, &x, &at);
        }
    }
}

/// Adds one group of 32 positions, the blocks A and B, to the sums of T tokens.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn group<D: Decode, const P: usize, const T: usize, const A: usize, const B: usize>(
    units: &[*const u8; P],
    x: &[*const f32; T],
    sums: &[*mut f32; P],
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
            // SAFETY: 16 values for every token.
            unsafe {
                let sum = sums[p].add(t * PANEL);
                let both = _mm512_add_ps(even[p][t], odd[p][t]);
                _mm512_storeu_ps(sum, _mm512_add_ps(_mm512_loadu_ps(sum), both));
            }
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
