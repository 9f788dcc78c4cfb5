//! Many tokens in AMX tiles: two panels are decoded to bf16 tiles once, then meet every token.

use std::arch::x86_64::*;
use std::ops::Range;

use halfbyte_formats::bf16;
use halfbyte_ops::WeightFormat;
use halfbyte_ops::tensor::{PANEL, UNIT};

use super::job::{self, Job, Kept, Panel, Source};
use crate::arena::Place;
use crate::narrow::{Line, Output};
use crate::tiles::{BYTES, Block, SIDE, Session};
use crate::{Isa, panel, vector};

/// Tiles of one unit of one panel.
const TILES: usize = 2;
/// Pairs of panels decoded before they meet the tokens: the tokens are then read from the
/// second-level cache once for all of them.
const PAIRS: usize = 8;
/// Bytes of decoded panels that leave room for tokens in the second-level cache.
const DECODED: usize = 768 * 1024;

/// Bytes of one decoded pair.
fn pair_bytes(units: usize) -> usize {
    units * TILES * 2 * BYTES
}

/// Pairs of panels in one chunk of work, so that every thread gets about the same.
pub(super) fn pairs_of_chunk(pairs: usize, units: usize, threads: usize) -> usize {
    let most = (DECODED / pair_bytes(units)).clamp(1, PAIRS);
    let rounds = pairs.div_ceil(threads * most);
    pairs.div_ceil(threads * rounds)
}

/// Pairs of panels `pairs` for all tokens. `x` are narrow rows.
///
/// # Safety
/// AMX is there; `scratch` holds the decoded pairs; this thread alone writes it and the outputs.
pub(super) unsafe fn chunk(
    job: &Job<'_>,
    pairs: Range<usize>,
    units: usize,
    tokens: usize,
    x: *const u8,
    scratch: Place<u8>,
) {
    for (i, pair) in pairs.clone().enumerate() {
        // SAFETY: the caller's scratch.
        let out = unsafe { scratch.slice_mut(i * pair_bytes(units), pair_bytes(units)) };
        decode_pair(&job.panels(pair), out);
    }
    let groups = units * TILES;
    let mut sums = Block::default();
    // SAFETY: AMX is there by the caller's promise; x is padded to 32 tokens.
    unsafe {
        let session = Session::new();
        for first in (0..tokens).step_by(2 * SIDE) {
            let x = x.add(first / SIDE * groups * BYTES);
            let count = tokens - first;
            for (i, pair) in pairs.clone().enumerate() {
                let b = scratch.pointer().add(i * pair_bytes(units));
                if count > SIDE {
                    session.product_2x2(x, groups * BYTES, b, groups, &mut sums);
                    let [[a, b], [c, d]] = &sums.0;
                    finish(job, pair, first, [a, b]);
                    let rest = SIDE.min(count - SIDE);
                    finish(job, pair, first + SIDE, [&c[..rest], &d[..rest]]);
                } else {
                    session.product_1x2(x, b, groups, &mut sums);
                    let [a, b] = &sums.0[0];
                    finish(job, pair, first, [&a[..count], &b[..count]]);
                }
            }
        }
    }
}

/// Two panels as tiles side by side; a second panel that is not there as zeros.
fn decode_pair(panels: &[Option<Panel<'_>>; 2], out: &mut [u8]) {
    for (index, out) in out.chunks_exact_mut(BYTES).enumerate() {
        let group = index / 2;
        // SAFETY: AVX-512 comes with AMX; units are whole, `out` is one tile.
        unsafe {
            match &panels[index % 2] {
                Some(Panel::Rows(format, kept)) => {
                    let bytes = format.unit_bytes();
                    decode(*format, &kept[group / TILES * bytes..][..bytes], group % TILES, out);
                }
                Some(Panel::Columns(weight, first)) => decode_columns(weight, *first, group, out),
                Some(Panel::Channels(x, first)) => {
                    interleave(&x.values[*first..], x.channels, x.channels - first, group, out);
                }
                None => out.fill(0),
            }
        }
    }
}

/// Columns `first..` of 32 rows of a weight: pairs of rows side by side, 16 columns.
///
/// # Safety
/// AVX-512 is there; `out` is one tile.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
unsafe fn decode_columns(weight: &Kept<'_>, first: usize, group: usize, out: &mut [u8]) {
    let (bytes, tile) = (weight.format.unit_bytes(), first % UNIT / 32);
    let half = first % 32 / PANEL;
    let mut decoded = Pairs([0; BYTES]);
    for (which, out) in out.chunks_exact_mut(BYTES / 2).enumerate() {
        let Some(kept) = weight.panel(2 * group + which) else {
            out.fill(0);
            continue;
        };
        // SAFETY: the unit is whole; 16 dwords at a stride of 8 lie in `lanes`, 64 bytes in a line.
        unsafe {
            // 16 pairs of columns by 16 rows; ours are 8 of the pairs.
            decode(weight.format, &kept[first / UNIT * bytes..][..bytes], tile, &mut decoded.0);
            let pairs = &decoded.0[half * BYTES / 2..][..BYTES / 2];
            // To `[16 columns][16 rows]` of bf16: even columns are the low halves.
            let mut lanes = [0u16; PANEL * PANEL];
            for (pair, lanes) in pairs.as_chunks::<64>().0.iter().zip(lanes.as_chunks_mut::<32>().0) {
                let line = _mm512_loadu_si512(pair.as_ptr().cast());
                _mm256_storeu_si256(lanes.as_mut_ptr().cast(), _mm512_cvtepi32_epi16(line));
                let odd = _mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(line));
                _mm256_storeu_si256(lanes.as_mut_ptr().add(PANEL).cast(), odd);
            }
            let stride = _mm512_slli_epi32::<3>(counting());
            for (pair, line) in out.as_chunks_mut::<64>().0.iter_mut().enumerate() {
                let at = lanes.as_ptr().add(pair * 2).cast();
                _mm512_storeu_si512(line.as_mut_ptr().cast(), _mm512_i32gather_epi32::<4>(stride, at));
            }
        }
    }
}

#[repr(align(64))]
struct Pairs([u8; BYTES]);

#[inline]
#[target_feature(enable = "avx512f")]
fn counting() -> __m512i {
    _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)
}

/// Sixteen channels of 32 tokens from `32 group` on: pairs of tokens side by side. `x` begins with
/// the first token's first channel, `count` of them exist, tokens lie `stride` apart.
///
/// # Safety
/// AVX-512 is there; `out` is one tile.
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn interleave(x: &[f32], stride: usize, count: usize, group: usize, out: &mut [u8]) {
    let some = (1u32 << count.min(PANEL)) as u16;
    let mask = if count >= PANEL { u16::MAX } else { some - 1 };
    let tokens = (x.len() + stride - count.min(stride)) / stride;
    for (pair, line) in out.as_chunks_mut::<64>().0.iter_mut().enumerate() {
        let half = |token: usize| {
            if token >= tokens {
                return _mm512_setzero_si512();
            }
            // SAFETY: `mask` of them exist.
            let values = unsafe { _mm512_maskz_loadu_ps(mask, x.as_ptr().add(token * stride)) };
            _mm512_cvtepu16_epi32(vector::narrow(values))
        };
        let token = group * 32 + 2 * pair;
        let both = _mm512_or_si512(half(token), _mm512_slli_epi32::<16>(half(token + 1)));
        // SAFETY: 64 bytes.
        unsafe { _mm512_storeu_si512(line.as_mut_ptr().cast(), both) };
    }
}

/// Columns `16 block..` of a matrix `[columns][rows]` as narrow rows: what was a column is a row.
///
/// # Safety
/// AVX-512 is there; `out` are the tiles of these rows.
#[target_feature(enable = "avx512f,avx512bw")]
pub(super) unsafe fn transpose(x: &[f32], rows: usize, columns: usize, block: usize, out: &mut [Line]) {
    let first = block * PANEL;
    let mut pairs = Pairs([0; BYTES]);
    for (group, tile) in out.as_chunks_mut::<PANEL>().0.iter_mut().enumerate() {
        if group * 32 >= columns {
            *tile = [[0; 32]; PANEL];
            continue;
        }
        // SAFETY: a tile of pairs; 16 dwords at a stride of 16 lie in it.
        unsafe {
            interleave(&x[first..], rows, rows - first, group, &mut pairs.0);
            let stride = _mm512_slli_epi32::<4>(counting());
            for (row, line) in tile.iter_mut().enumerate() {
                let at = pairs.0.as_ptr().add(row * 4).cast();
                _mm512_storeu_si512(line.as_mut_ptr().cast(), _mm512_i32gather_epi32::<4>(stride, at));
            }
        }
    }
}

/// As `job::finish`, where the panels are whole in registers.
///
/// # Safety
/// AVX-512 is there; no other thread writes these outputs.
#[target_feature(enable = "avx512f,avx512bw,avx512dq")]
unsafe fn finish(job: &Job<'_>, pair: usize, token: usize, sums: [&[[f32; SIDE]]; 2]) {
    match job {
        Job::Plain { source, out, added } if (2 * pair + 2) * PANEL <= source.outputs => {
            for (first, sums) in [2 * pair * PANEL, (2 * pair + 1) * PANEL].into_iter().zip(sums) {
                let finish = Finish::new(source, first);
                for (t, sums) in sums.iter().enumerate() {
                    // SAFETY: 16 outputs of this token.
                    unsafe {
                        let out = out.pointer().add((token + t) * source.outputs + first);
                        let mut y = finish.of(sums);
                        if *added {
                            y = _mm512_add_ps(_mm512_loadu_ps(out), y);
                        }
                        _mm512_storeu_ps(out, y);
                    }
                }
            }
        }
        Job::Gated { sources: [gate, up], kept: None, out: Output::Narrow(out) }
            if (pair + 1) * PANEL < gate.outputs =>
        {
            let first = pair * PANEL;
            let (gate, up) = (Finish::new(gate, first), Finish::new(up, first));
            for (t, (g, u)) in sums[0].iter().zip(sums[1]).enumerate() {
                let y = _mm512_mul_ps(vector::silu(gate.of(g)), up.of(u));
                // SAFETY: half a line of this token's row.
                unsafe {
                    let mut row = out.row(token + t);
                    let half = &mut row.line(first / 32)[first % 32..][..PANEL];
                    _mm256_storeu_si256(half.as_mut_ptr().cast(), vector::narrow(y));
                }
            }
        }
        _ => job::finish(Isa::Amx, job, pair, token, sums),
    }
}

/// A source's scale and biases of 16 outputs.
struct Finish {
    scale: __m512,
    bias: Option<__m512>,
}

impl Finish {
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn new(source: &Source<'_>, first: usize) -> Finish {
        let load = |bias: &[f32]| {
            let bias: &[f32; PANEL] = bias[first..].first_chunk().expect("a bias for every output");
            // SAFETY: 16 values.
            unsafe { _mm512_loadu_ps(bias.as_ptr()) }
        };
        Finish { scale: _mm512_set1_ps(source.scale), bias: source.bias.map(load) }
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    fn of(&self, sums: &[f32; PANEL]) -> __m512 {
        // SAFETY: 16 values.
        let y = _mm512_mul_ps(unsafe { _mm512_loadu_ps(sums.as_ptr()) }, self.scale);
        self.bias.map_or(y, |bias| _mm512_add_ps(y, bias))
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
