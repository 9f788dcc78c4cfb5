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

/// Outputs 32 `chunk`.. of all tokens. `x` is bf16 `[tokens padded to 32][tile_stride]`.
///
/// # Safety
/// AMX is there; `scratch` holds two bf16 panels; this thread alone writes both and the outputs.
pub(super) unsafe fn chunk(
    job: &Job<'_>,
    chunk: usize,
    units: usize,
    tokens: usize,
    x: *const u16,
    scratch: Place<u8>,
) {
    let bytes = units * job.format.unit_bytes();
    let panels = (job.outputs.div_ceil(PANEL) - 2 * chunk).min(2);
    for which in 0..2 {
        for u in 0..units {
            for tile in 0..TILES {
                // SAFETY: scratch holds units * 2 * 2 tiles.
                let out = unsafe { scratch.slice_mut(((u * TILES + tile) * 2 + which) * BYTES, BYTES) };
                if which < panels {
                    let panel = &job.panels[(2 * chunk + which) * bytes..][..bytes];
                    let unit = &panel[u * job.format.unit_bytes()..][..job.format.unit_bytes()];
                    // SAFETY: AVX-512 comes with AMX; the unit is whole.
                    unsafe { decode(job.format, unit, tile, out) };
                } else {
                    out.fill(0);
                }
            }
        }
    }
    // SAFETY: AMX is there by the caller's promise; x is padded to 32 tokens.
    unsafe {
        let session = Session::new();
        let (groups, stride) = (units * 2, tile_stride(units * UNIT) * 2);
        let mut sums = [[[[0.0; SIDE]; SIDE]; 2]; 2];
        for first in (0..tokens).step_by(TILE_ROWS) {
            let x = x.add(first * tile_stride(units * UNIT));
            let count = (tokens - first).min(TILE_ROWS);
            if count > SIDE {
                session.product_2x2(x, stride, scratch.pointer(), groups, &mut sums);
            } else {
                session.product_1x2(x, stride, scratch.pointer(), groups, &mut sums[0]);
            }
            for (i, sums) in sums.iter().enumerate().take(count.div_ceil(SIDE)) {
                finish(job, 2 * chunk, panels, first + i * SIDE, (count - i * SIDE).min(SIDE), sums);
            }
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
