//! Many tokens in AMX tiles: two panels are decoded to bf16 tiles once, then meet every token.

use std::arch::x86_64::*;

use halfbyte_formats::bf16;
use halfbyte_ops::WeightFormat;
use halfbyte_ops::tensor::{PANEL, UNIT};

use super::{Job, TILE_ROWS, tile_stride};
use crate::arena::Place;
use crate::panel;
use crate::tiles::{BYTES, SIDE, Session, Sums};

/// Tiles of one unit of one panel.
const TILES: usize = 2;
/// Groups of 32 positions taken at a time: few enough that tokens and panels stay near, enough
/// that the sums are seldom put aside in between.
const GROUPS: usize = 24;
/// Pairs of panels decoded before they meet the tokens: the tokens are then read from the
/// second-level cache once for all of them.
pub(super) const PAIRS: usize = 4;
/// Bytes of decoded panels that leave room for tokens in the second-level cache.
const DECODED: usize = 768 * 1024;

/// Bytes of one decoded pair.
pub(super) fn pair_bytes(units: usize) -> usize {
    units * TILES * 2 * BYTES
}

/// Pairs of panels in one chunk of work, so that every thread gets about the same.
pub(super) fn pairs_of_chunk(pairs: usize, units: usize, threads: usize) -> usize {
    let most = (DECODED / pair_bytes(units)).clamp(1, PAIRS);
    let rounds = pairs.div_ceil(threads * most);
    pairs.div_ceil(threads * rounds)
}

/// Pairs of panels `pairs` for all tokens. `x` is bf16 `[tokens padded to 32][tile_stride]`.
///
/// # Safety
/// AMX is there; `scratch` holds the decoded pairs; this thread alone writes it and the outputs.
pub(super) unsafe fn chunk(
    job: &Job<'_>,
    pairs: std::ops::Range<usize>,
    units: usize,
    tokens: usize,
    x: *const u16,
    scratch: Place<u8>,
) {
    for (i, pair) in pairs.clone().enumerate() {
        // SAFETY: the caller's scratch.
        let out = unsafe { scratch.slice_mut(i * pair_bytes(units), pair_bytes(units)) };
        decode_pair(job, pair, units, out);
    }
    let (groups, stride) = (units * 2, tile_stride(units * UNIT));
    // SAFETY: AMX is there by the caller's promise; x is padded to 32 tokens.
    unsafe {
        let session = Session::new();
        for first in (0..tokens).step_by(TILE_ROWS) {
            let count = (tokens - first).min(TILE_ROWS);
            let mut sums = [[[[[0.0; SIDE]; SIDE]; 2]; 2]; PAIRS];
            for group in (0..groups).step_by(GROUPS) {
                let some = GROUPS.min(groups - group);
                let x = x.add(first * stride + group * 32);
                for (i, sums) in sums.iter_mut().enumerate().take(pairs.len()) {
                    let b = scratch.pointer().add(i * pair_bytes(units) + group * 2 * BYTES);
                    if count > SIDE {
                        session.add_2x2(x, stride * 2, b, some, sums);
                    } else {
                        session.add_1x2(x, stride * 2, b, some, &mut sums[0]);
                    }
                }
            }
            for (sums, pair) in sums.iter().zip(pairs.clone()) {
                let panels = (job.outputs.div_ceil(PANEL) - 2 * pair).min(2);
                for (i, sums) in sums.iter().enumerate().take(count.div_ceil(SIDE)) {
                    finish(job, 2 * pair, panels, first + i * SIDE, (count - i * SIDE).min(SIDE), sums);
                }
            }
        }
    }
}

/// Two panels as tiles side by side; a second panel that is not there as zeros.
fn decode_pair(job: &Job<'_>, pair: usize, units: usize, out: &mut [u8]) {
    let unit_bytes = job.format.unit_bytes();
    let panels = job.outputs.div_ceil(PANEL);
    for (index, out) in out.chunks_exact_mut(BYTES).enumerate() {
        let (unit, tile, panel) = (index / 2 / TILES, index / 2 % TILES, 2 * pair + index % 2);
        if panel < panels {
            let unit = &job.panels[(panel * units + unit) * unit_bytes..][..unit_bytes];
            // SAFETY: AVX-512 comes with AMX; the unit is whole.
            unsafe { decode(job.format, unit, tile, out) };
        } else {
            out.fill(0);
        }
    }
}

/// # Safety
/// This thread alone writes these outputs.
unsafe fn finish(job: &Job<'_>, panel: usize, panels: usize, token: usize, count: usize, sums: &[Sums; 2]) {
    for (which, sums) in sums.iter().enumerate().take(panels) {
        if (panel + which + 1) * PANEL <= job.outputs {
            // SAFETY: by the caller's promise; AVX-512 comes with AMX.
            unsafe { finish_whole(job, panel + which, token, &sums[..count]) };
            continue;
        }
        for (row, sums) in sums.iter().enumerate().take(count) {
            // SAFETY: by the caller's promise.
            unsafe { job.finish(token + row, panel + which, sums) };
        }
    }
}

/// As `Job::finish` for rows of a panel that is whole.
///
/// # Safety
/// AVX-512 is there; this thread alone writes these outputs, all 16 of which exist.
#[target_feature(enable = "avx512f")]
unsafe fn finish_whole(job: &Job<'_>, panel: usize, token: usize, sums: &[[f32; SIDE]]) {
    let scale = _mm512_set1_ps(job.scale);
    // SAFETY: 16 biases, sums and outputs.
    unsafe {
        let bias = job.bias.map(|bias| _mm512_loadu_ps(bias[panel * PANEL..].as_ptr()));
        for (row, sums) in sums.iter().enumerate() {
            let mut y = _mm512_mul_ps(_mm512_loadu_ps(sums.as_ptr()), scale);
            if let Some(bias) = bias {
                y = _mm512_add_ps(y, bias);
            }
            let out = job.out.pointer().add((token + row) * job.outputs + panel * PANEL);
            _mm512_storeu_ps(out, y);
        }
    }
}

/// Tile `tile` (32 positions) of a unit as bf16 pairs.
///
/// # Safety
/// AVX-512 is there; `unit` is whole, `out` one tile.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
unsafe fn decode(format: WeightFormat, unit: &[u8], tile: usize, out: &mut [u8]) {
    match format {
        WeightFormat::Bf16 => out.copy_from_slice(&unit[tile * BYTES..][..BYTES]),
        // SAFETY: by the caller's promise.
        WeightFormat::Nvfp4 => unsafe { decode_nvfp4(unit.as_ptr(), tile, out.as_mut_ptr()) },
        // SAFETY: by the caller's promise.
        WeightFormat::Int8 => unsafe { decode_int8(unit.as_ptr(), tile, out.as_mut_ptr()) },
        WeightFormat::F32 => {
            let mut values: panel::Decoded = [[0.0; PANEL]; UNIT];
            panel::decode(format, unit, &mut values);
            let pairs = values[tile * 32..].chunks_exact(2);
            for (out, pair) in out.as_chunks_mut::<64>().0.iter_mut().zip(pairs) {
                for (lane, out) in out.as_chunks_mut::<4>().0.iter_mut().enumerate() {
                    let low = u32::from(bf16::encode(pair[0][lane]));
                    let high = u32::from(bf16::encode(pair[1][lane]));
                    *out = (low | high << 16).to_le_bytes();
                }
            }
        }
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
unsafe fn decode_nvfp4(unit: *const u8, tile: usize, out: *mut u8) {
    // SAFETY: 64 bytes of scales, 512 of codes; 16 lines of output.
    unsafe {
        let values = _mm512_loadu_ps(super::avx512::VALUES.as_ptr());
        for block in 0..2 {
            let scale = super::avx512::nvfp4_scale(unit, tile * 2 + block);
            for line in 0..2 {
                let at = tile * 4 + block * 2 + line;
                let mut codes = _mm512_loadu_si512(unit.add(UNIT + at * 64).cast());
                for pair in 0..4 {
                    let odd = _mm512_srli_epi32::<4>(codes);
                    let low = _mm512_mul_ps(_mm512_permutexvar_ps(codes, values), scale);
                    let high = _mm512_mul_ps(_mm512_permutexvar_ps(odd, values), scale);
                    // Both are exact in bf16, so cutting their lower halves off loses nothing.
                    let high =
                        _mm512_and_si512(_mm512_castps_si512(high), _mm512_set1_epi32(0xffff_0000u32 as i32));
                    let low = _mm512_srli_epi32::<16>(_mm512_castps_si512(low));
                    let to = out.add((block * 8 + line * 4 + pair) * 64);
                    _mm512_storeu_si512(to.cast(), _mm512_or_si512(high, low));
                    codes = _mm512_srli_epi32::<8>(codes);
                }
            }
        }
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
unsafe fn decode_int8(unit: *const u8, tile: usize, out: *mut u8) {
    // SAFETY: 64 bytes of scales, 1024 of codes; 16 lines of output.
    unsafe {
        for block in 0..2 {
            let bytes = _mm_loadu_si128(unit.add((tile * 2 + block) * PANEL).cast());
            let scale = _mm512_castsi512_ps(_mm512_slli_epi32::<23>(_mm512_cvtepu8_epi32(bytes)));
            for pair in 0..8 {
                let at = unit.add(UNIT + (tile * 32 + block * 16 + pair * 2) * PANEL);
                let wide = |at: *const u8| {
                    let codes = _mm512_cvtepi8_epi32(_mm_loadu_si128(at.cast()));
                    _mm512_castps_si512(_mm512_mul_ps(_mm512_cvtepi32_ps(codes), scale))
                };
                // Both are exact in bf16.
                let low = _mm512_srli_epi32::<16>(wide(at));
                let high = _mm512_and_si512(wide(at.add(PANEL)), _mm512_set1_epi32(0xffff_0000u32 as i32));
                _mm512_storeu_si512(out.add((block * 8 + pair) * 64).cast(), _mm512_or_si512(high, low));
            }
        }
    }
}
