//! Many tokens in AMX tiles: two panels are decoded to bf16 tiles once, then meet every token.

use std::arch::x86_64::*;
use std::ops::Range;

use halfbyte_formats::bf16;
use halfbyte_ops::WeightFormat;
use halfbyte_ops::tensor::{PANEL, UNIT};

use super::job::{self, Activations, Job, Kept, Out, Panel, Source};
use crate::arena::Place;
use crate::narrow::{NarrowRows, Output};
use crate::square::{self, SQUARE, Tile, pair, turn};
use crate::tiles::{BYTES, Block, SIDE, Session};
use crate::{Isa, panel, vector};

/// Tiles of one unit of one panel.
const TILES: usize = 2;
/// Pairs of panels decoded before they meet the tokens: the tokens are then read from the
/// second-level cache once for all of them.
const PAIRS: usize = 8;
/// Bytes of decoded panels that leave room for tokens in the second-level cache.
const DECODED: usize = 768 * 1024;

/// Bytes of a line of the cache.
const LINE: usize = 64;

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

/// The tokens of one of so many parts, in whole tiles.
pub(super) fn part(tokens: usize, index: usize, parts: usize) -> Range<usize> {
    let (blocks, block) = (tokens.div_ceil(2 * SIDE), 2 * SIDE);
    index * blocks / parts * block..tokens.min((index + 1) * blocks / parts * block)
}

/// Pairs of panels for tokens from a multiple of 32 on. `x` are narrow rows.
///
/// # Safety
/// AMX is there; `scratch` holds the decoded pairs; this thread alone writes it and the outputs.
pub(super) unsafe fn chunk(
    job: &Job<'_>,
    pairs: Range<usize>,
    units: usize,
    tokens: Range<usize>,
    x: *const u8,
    scratch: Place<u8>,
) {
    // SAFETY: by the caller's promise.
    unsafe {
        decode_pairs(job, pairs.clone(), units, scratch);
        multiply(job, pairs, units, tokens, x, scratch);
    }
}

/// Pairs of panels as tiles, one pair after the other.
///
/// # Safety
/// AVX-512 is there; `out` holds the pairs, and this thread alone uses it.
unsafe fn decode_pairs(job: &Job<'_>, pairs: Range<usize>, units: usize, out: Place<u8>) {
    for (i, index) in pairs.clone().enumerate() {
        // SAFETY: by the caller's promise.
        let out = unsafe { out.cast::<[Tile; 2]>().slice_mut(i * units * TILES, units * TILES) };
        let next = if index + 1 < pairs.end { job.panels(index + 1) } else { [None; 2] };
        decode_pair(&job.panels(index), &next, out);
    }
}

/// Pairs of panels that were decoded for all tokens. Who writes the products is decided here, once: what is written lies
/// between tile instructions, so every branch and call there counts.
///
/// # Safety
/// As `chunk`, but that `decoded` is only read.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512bf16")]
unsafe fn multiply(
    job: &Job<'_>,
    pairs: Range<usize>,
    units: usize,
    tokens: Range<usize>,
    x: *const u8,
    decoded: Place<u8>,
) {
    let tiles = Tiles { units, tokens, x, decoded };
    let by_panel = |pair, token, sums: [&[[f32; SIDE]]; 2]| job::finish(Isa::Amx, job, pair, token, sums);
    // SAFETY: by the caller's promise; pairs that a register does not hold whole are finished by the panel.
    unsafe {
        match job {
            Job::Plain { source, out, added: None } => {
                tiles.multiply(pairs, |pair, token, sums| match (2 * pair + 2) * PANEL <= source.outputs {
                    true => plain(source, out, pair, token, sums),
                    false => by_panel(pair, token, sums),
                })
            }
            Job::Plain { source, out, added: Some(added) } => {
                tiles.multiply(pairs, |pair, token, sums| match (2 * pair + 2) * PANEL <= source.outputs {
                    true => plain_added(source, [added, out], pair, token, sums),
                    false => by_panel(pair, token, sums),
                })
            }
            Job::Gated { sources, kept, out: Output::Narrow(out) } => {
                tiles.multiply(pairs, |pair, token, sums| match (pair + 1) * PANEL < sources[0].outputs {
                    true => gated(sources, kept, out, pair, token, sums),
                    false => by_panel(pair, token, sums),
                })
            }
            Job::Unmixed { source, kept, outs: [Output::Narrow(dgate), Output::Narrow(dup)] } => tiles
                .multiply(pairs, |pair, token, sums| match (2 * pair + 2) * PANEL < source.outputs {
                    true => unmixed(source, kept, [dgate, dup], pair, token, sums),
                    false => by_panel(pair, token, sums),
                }),
            _ => tiles.multiply(pairs, by_panel),
        }
    }
}

/// Tokens as tiles, and pairs of panels that were decoded.
struct Tiles {
    units: usize,
    tokens: Range<usize>,
    x: *const u8,
    decoded: Place<u8>,
}

impl Tiles {
    /// Gives `write` every pair's sums: pair, first token, and a row for each token and panel.
    ///
    /// # Safety
    /// As `multiply`.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512bf16")]
    unsafe fn multiply(&self, pairs: Range<usize>, write: impl Fn(usize, usize, [&[[f32; SIDE]]; 2])) {
        let groups = self.units * TILES;
        // Tokens that are finished with each step, so that all are by the last one.
        let share = (2 * SIDE).div_ceil(groups).next_power_of_two();
        let mut done = Done::default();
        // SAFETY: AMX is there by the caller's promise; x is padded to 32 tokens.
        unsafe {
            let session = Session::new();
            for token in self.tokens.clone().step_by(2 * SIDE) {
                let count = (self.tokens.end - token).min(2 * SIDE);
                for (i, pair) in pairs.clone().enumerate() {
                    let mut a = self.x.add(token / SIDE * groups * BYTES);
                    let mut b = self.decoded.pointer().add(i * pair_bytes(self.units)).cast_const();
                    session.clear();
                    for group in 0..groups {
                        match count > SIDE {
                            true => session.step_2x2(a, a.add(groups * BYTES), b),
                            false => session.step_1x2(a, b),
                        }
                        (a, b) = (a.add(BYTES), b.add(2 * BYTES));
                        done.finish(group * share, share, &write);
                    }
                    session.store(&mut done.sums);
                    (done.pair, done.token, done.count) = (pair, token, count);
                }
            }
        }
        for first in [0, SIDE] {
            done.finish(first, SIDE, &write);
        }
    }
}

/// Sums whose products are written while the next ones are computed: tiles and vectors have units
/// of their own.
#[derive(Default)]
struct Done {
    /// All were written before the next come.
    sums: Block,
    pair: usize,
    token: usize,
    /// Tokens, at most 32.
    count: usize,
}

impl Done {
    /// Writes the products of tokens `first..`, `share` of them: a power of two, at most 16.
    #[inline(always)]
    fn finish(&self, first: usize, share: usize, write: &impl Fn(usize, usize, [&[[f32; SIDE]]; 2])) {
        if first < self.count {
            let (half, row) = (first / SIDE, first % SIDE);
            let rows = row..(row + share).min(self.count - half * SIDE);
            let [a, b] = &self.sums.0[half];
            write(self.pair, self.token + first, [&a[rows.clone()], &b[rows]]);
        }
    }
}

/// Two panels as tiles side by side, group after group; a second panel that is not there as zeros.
/// The `next` two are asked for meanwhile: weights come from far away.
fn decode_pair(panels: &[Option<Panel<'_>>; 2], next: &[Option<Panel<'_>>; 2], out: &mut [[Tile; 2]]) {
    let mut space = [Tile::ZERO; 2];
    for (group, out) in out.iter_mut().enumerate() {
        // SAFETY: AVX-512 comes with AMX; units are whole.
        unsafe {
            match &panels[0] {
                // Two neighbours, that is, a square's columns.
                Some(Panel::Columns(weight, first)) => {
                    pair(decode_square(weight, *first, group, &mut space), out);
                }
                Some(Panel::Channels(x, _)) if group * SQUARE >= x.tokens => *out = [Tile::ZERO; 2],
                Some(Panel::Channels(x, first)) => {
                    pair(x.square(group, first / SQUARE, &mut space), out);
                }
                _ => {
                    for ((panel, next), out) in panels.iter().zip(next).zip(out) {
                        match panel {
                            Some(Panel::Rows(format, kept)) => {
                                let bytes = format.unit_bytes();
                                let unit = &kept[group / TILES * bytes..][..bytes];
                                if let Some(Panel::Rows(_, next)) = next {
                                    let share = bytes / TILES;
                                    for line in next[group * share..][..share].chunks(LINE) {
                                        _mm_prefetch::<_MM_HINT_T0>(line.as_ptr().cast());
                                    }
                                }
                                decode(*format, unit, group % TILES, out.bytes());
                            }
                            _ => *out = Tile::ZERO,
                        }
                    }
                }
            }
        }
    }
}

/// Rows `32 group..` of a weight, columns `first..`.
///
/// # Safety
/// AVX-512 is there.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
unsafe fn decode_square<'a>(
    weight: &Kept<'_>,
    first: usize,
    group: usize,
    out: &'a mut [Tile; 2],
) -> square::Rows<'a> {
    let (bytes, tile) = (weight.format.unit_bytes(), first % UNIT / SQUARE);
    let mut pairs = Tile::ZERO;
    for (which, out) in out.iter_mut().enumerate() {
        match weight.panel(2 * group + which) {
            Some(kept) => {
                // SAFETY: the unit is whole.
                unsafe { decode(weight.format, &kept[first / UNIT * bytes..][..bytes], tile, pairs.bytes()) };
                // Pairs of columns by rows become rows.
                turn(&pairs, out);
            }
            None => *out = Tile::ZERO,
        }
    }
    let [low, high] = out;
    [low, high]
}

/// Channels `32 block..` as narrow rows, 16 and 16: what was a column is a row.
///
/// # Safety
/// AVX-512 is there.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
pub(super) unsafe fn columns(x: &Activations<'_>, block: usize, low: &mut [Tile], high: &mut [Tile]) {
    let [mut space, mut pairs] = [[Tile::ZERO; 2]; 2];
    for (group, (low, high)) in low.iter_mut().zip(high).enumerate() {
        if group * SQUARE >= x.tokens {
            (*low, *high) = (Tile::ZERO, Tile::ZERO);
            continue;
        }
        // SAFETY: AVX-512 is there.
        pair(unsafe { x.square(group, block, &mut space) }, &mut pairs);
        turn(&pairs[0], low);
        turn(&pairs[1], high);
    }
}

/// A plain product of two panels that are whole in registers, as `job::finish` writes it.
///
/// # Safety
/// AVX-512 is there; no other thread writes these outputs.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512bf16")]
unsafe fn plain(source: &Source<'_>, out: &Out, pair: usize, token: usize, sums: [&[[f32; SIDE]]; 2]) {
    for (first, sums) in [2 * pair * PANEL, (2 * pair + 1) * PANEL].into_iter().zip(sums) {
        let finish = Finish::new(source, first);
        for (t, sums) in sums.iter().enumerate() {
            // SAFETY: 16 outputs of this token.
            unsafe { _mm512_storeu_ps(out.at(token + t, first).pointer(), finish.of(sums)) };
        }
    }
}

/// The same added to something.
///
/// # Safety
/// As `plain`; nobody writes what lies elsewhere.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512bf16")]
unsafe fn plain_added(
    source: &Source<'_>,
    [added, out]: [&Out; 2],
    pair: usize,
    token: usize,
    sums: [&[[f32; SIDE]]; 2],
) {
    for (first, sums) in [2 * pair * PANEL, (2 * pair + 1) * PANEL].into_iter().zip(sums) {
        let finish = Finish::new(source, first);
        for (t, sums) in sums.iter().enumerate() {
            // SAFETY: 16 outputs of this token, and as many elsewhere.
            unsafe {
                let before = _mm512_loadu_ps(added.at(token + t, first).pointer());
                let y = _mm512_add_ps(before, finish.of(sums));
                _mm512_storeu_ps(out.at(token + t, first).pointer(), y);
            }
        }
    }
}

/// # Safety
/// As `plain`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512bf16")]
unsafe fn gated(
    [gate, up]: &[Source<'_>; 2],
    kept: &Option<[Output; 2]>,
    out: &NarrowRows,
    pair: usize,
    token: usize,
    sums: [&[[f32; SIDE]]; 2],
) {
    let first = pair * PANEL;
    let (gate, up) = (Finish::new(gate, first), Finish::new(up, first));
    for (t, (g, u)) in sums[0].iter().zip(sums[1]).enumerate() {
        let (g, u) = (gate.of(g), up.of(u));
        for (kept, product) in kept.iter().flatten().zip([g, u]) {
            // SAFETY: 16 outputs of this token.
            unsafe { kept.put_register(token + t, pair, product) };
        }
        let y = _mm512_mul_ps(vector::silu(g), u);
        // SAFETY: half a line of this token's row.
        unsafe { out.row(token + t) }.put_register(pair, y);
    }
}

/// # Safety
/// As `plain`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512bf16")]
unsafe fn unmixed(
    source: &Source<'_>,
    kept: &[Output; 2],
    outs: [&NarrowRows; 2],
    pair: usize,
    token: usize,
    sums: [&[[f32; SIDE]]; 2],
) {
    for (first, sums) in [2 * pair * PANEL, (2 * pair + 1) * PANEL].into_iter().zip(sums) {
        let finish = Finish::new(source, first);
        for (t, sums) in sums.iter().enumerate() {
            // SAFETY: 16 outputs of this token, half a line of its rows.
            unsafe {
                let [gate, up] = [&kept[0], &kept[1]].map(|kept| kept.register(token + t, first / PANEL));
                let products = vector::gated_gradient(gate, up, finish.of(sums));
                for (out, product) in outs.into_iter().zip(products) {
                    out.row(token + t).put_register(first / PANEL, product);
                }
            }
        }
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
