//! A gradient kept until a step knows all of it: stored <- round(stored + g), the sum in f32.
//!
//! Four bits an element in blocks of 16, as first moments are kept (`halfbyte_formats::state::moment`),
//! rounded stochastically, so that nothing vanishes in the mean; or f32, for vectors. Row after row, in
//! whole blocks: the codes of a row, then its scales.
//!
//! Read back: y[r,c] = factor * stored[r,c]. Its squares are summed in f64: sixteen lanes over the
//! blocks of a row, rows in order inside each of [`PARTS`] equal parts of the tensor, then the parts.

use halfbyte_formats::state::draw::{Draws, Purpose};
use halfbyte_formats::state::{BLOCK, moment};

use crate::error::{Result, check};
use crate::testing::{Bench, assert_same_bits, numbers};
use crate::update::padded;
use crate::{Backend, Buffer, Rows};

/// Parts of a tensor that may be summed at the same time.
pub const PARTS: usize = 64;

/// Blocks whose random words are drawn together.
const CHUNK: usize = 16;

/// What the largest scale of four bits holds. A gradient beyond is as good as infinite.
const LARGEST: f32 = 6.0 * 57_344.0;

/// How a gradient is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Storage {
    /// 4.5 bits.
    Four,
    /// f32, nothing rounded but the sum.
    Float,
}

impl Storage {
    /// Bytes of a tensor's gradient.
    pub const fn bytes(self, rows: usize, columns: usize) -> usize {
        let block = match self {
            Storage::Four => BLOCK / 2 + 1,
            Storage::Float => 4 * BLOCK,
        };
        rows * padded(columns) / BLOCK * block
    }
}

/// The gradient of a tensor; a vector is one row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stored {
    /// Where.
    pub buffer: Buffer,
    /// How.
    pub storage: Storage,
    /// Of the tensor.
    pub rows: usize,
    /// Of the tensor.
    pub columns: usize,
}

/// Which share of a gradient is added; decides how it is rounded.
#[derive(Clone, Copy, Debug)]
pub struct Share {
    /// Of the run.
    pub seed: u64,
    /// Counted over all steps.
    pub number: u64,
    /// Number of the tensor.
    pub tensor: u64,
    /// Whether it is the first of its step, which forgets what was stored.
    pub fresh: bool,
}

impl Share {
    /// Its random words.
    pub fn draws(&self) -> Draws {
        Draws::new(self.seed, self.number, self.tensor, Purpose::Gradient)
    }
}

/// Adds a row; gives the number of values that storage cannot hold. `first` is the number of the
/// row's first element.
#[inline(always)]
pub fn row(storage: Storage, stored: &mut [u8], g: &[f32], first: u64, draws: &Draws, fresh: bool) -> u64 {
    let blocks = g.len().div_ceil(BLOCK);
    let mut words = [[0u32; BLOCK]; CHUNK];
    let mut lost = 0;
    for (index, g) in g.chunks(BLOCK).enumerate() {
        if storage == Storage::Four && index % CHUNK == 0 {
            let count = CHUNK.min(blocks - index);
            draws.fill(first + (index * BLOCK) as u64, words[..count].as_flattened_mut());
        }
        let mut sum = if fresh { [0.0; BLOCK] } else { load(storage, stored, blocks, index) };
        for (sum, g) in sum.iter_mut().zip(g) {
            *sum += g;
        }
        let largest = if storage == Storage::Four { LARGEST } else { f32::MAX };
        for sum in &sum {
            // As bits, infinity and NaN lie above every number.
            lost += u64::from(sum.to_bits() & 0x7FFF_FFFF > largest.to_bits());
        }
        keep(storage, stored, blocks, index, &sum, &words[index % CHUNK]);
    }
    lost
}

/// factor * stored, one row.
#[inline(always)]
pub fn decode(storage: Storage, stored: &[u8], factor: f32, out: &mut [f32]) {
    let blocks = out.len().div_ceil(BLOCK);
    for (index, out) in out.chunks_mut(BLOCK).enumerate() {
        let values = load(storage, stored, blocks, index);
        for (out, value) in out.iter_mut().zip(values) {
            *out = value * factor;
        }
    }
}

/// The squares of one row.
#[inline(always)]
pub fn squares(storage: Storage, stored: &[u8], columns: usize) -> f64 {
    let blocks = columns.div_ceil(BLOCK);
    let mut lanes = [0.0f64; BLOCK];
    for index in 0..blocks {
        let values = load(storage, stored, blocks, index);
        for (lane, value) in lanes.iter_mut().zip(values) {
            *lane += f64::from(value) * f64::from(value);
        }
    }
    lanes.iter().sum()
}

#[inline(always)]
fn load(storage: Storage, stored: &[u8], blocks: usize, index: usize) -> [f32; BLOCK] {
    match storage {
        Storage::Four => {
            let (codes, scales) = stored.split_at(blocks * BLOCK / 2);
            moment::decode_four(&codes.as_chunks().0[index], scales[index])
        }
        Storage::Float => {
            let block: &[[u8; 4]; BLOCK] = &stored.as_chunks::<4>().0.as_chunks().0[index];
            block.map(f32::from_le_bytes)
        }
    }
}

#[inline(always)]
fn keep(
    storage: Storage,
    stored: &mut [u8],
    blocks: usize,
    index: usize,
    x: &[f32; BLOCK],
    luck: &[u32; BLOCK],
) {
    match storage {
        Storage::Four => {
            let (codes, scales) = stored.split_at_mut(blocks * BLOCK / 2);
            moment::encode_four(x, luck, &mut codes.as_chunks_mut().0[index], &mut scales[index]);
        }
        Storage::Float => {
            let block: &mut [[u8; 4]; BLOCK] = &mut stored.as_chunks_mut::<4>().0.as_chunks_mut().0[index];
            *block = x.map(f32::to_le_bytes);
        }
    }
}

/// The rows of each of the [`PARTS`] of a tensor, the last ones short or empty.
pub fn part(rows: usize, index: usize) -> std::ops::Range<usize> {
    let each = rows.div_ceil(PARTS);
    (index * each).min(rows)..((index + 1) * each).min(rows)
}

/// The shapes that fit.
pub fn check_shapes(of: &Stored, first: usize, rows: Rows) -> Result<()> {
    let fits = rows.columns == of.columns
        && first + rows.rows <= of.rows
        && of.buffer.bytes >= of.storage.bytes(of.rows, of.columns);
    check(fits, "accumulate", || {
        format!(
            "rows {first}.. {}x{} of {}x{} stored in {} bytes",
            rows.rows, rows.columns, of.rows, of.columns, of.buffer.bytes
        )
    })
}

/// What every backend must give: the bytes of the rows above, a norm that no thread moves, and a
/// count of what is not finite.
pub fn contract<B: Backend>(make: impl Fn(usize) -> B) {
    for storage in [Storage::Four, Storage::Float] {
        for (rows, columns) in [(1, 77), (40, 96), (17, 200), (333, 130)] {
            check_case(&make, storage, rows, columns);
        }
    }
}

fn check_case<B: Backend>(make: &impl Fn(usize) -> B, storage: Storage, rows: usize, columns: usize) {
    let mut bench = Bench::new(make);
    let what = format!("{storage:?} {rows}x{columns}");
    let bytes = storage.bytes(1, columns);
    let mut host = vec![0; rows * bytes];
    let buffer = bench.buffer(host.len());
    let of = Stored { buffer, storage, rows, columns };
    // Whatever was there before a step is forgotten.
    bench.backend.write_bytes(buffer, &vec![0x55; host.len()]).unwrap();
    for number in 1..4 {
        let share = Share { seed: 7, number, tensor: 3, fresh: number == 1 };
        let mut g = numbers(number as u32, rows * columns);
        if number == 3 {
            (g[0], g[columns / 2], g[rows * columns - 1]) = (f32::NAN, f32::INFINITY, -2e38);
        }
        let mut lost = 0;
        for (r, g) in g.chunks(columns).enumerate() {
            let first = (r * padded(columns)) as u64;
            lost += row(storage, &mut host[r * bytes..][..bytes], g, first, &share.draws(), share.fresh);
        }
        let want = [0, 2, 3][usize::from(number == 3) * (1 + usize::from(storage == Storage::Four))];
        assert_eq!(lost, want, "{what}: values that cannot be held");
        let gradient = bench.rows(rows, columns, &g);
        let cut = rows / 2;
        let parts = [(0, gradient.slice(0, cut)), (cut, gradient.slice(cut, rows - cut))];
        for (first, part) in parts {
            bench.backend.accumulate(part, first, &of, &share).unwrap();
        }
        let tallies = bench.backend.tallies().unwrap();
        assert_eq!((tallies.each.len(), tallies.sum().refused), (parts.len(), want), "{what}");
        if number == 2 {
            check_read(&mut bench, &of, &host, &what);
        }
    }
    let (share, wider) =
        (Share { seed: 7, number: 4, tensor: 3, fresh: false }, bench.output(1, columns + 1));
    assert!(bench.backend.accumulate(wider, 0, &of, &share).is_err(), "{what}: a row too wide is refused");
    let mut got = vec![0; host.len()];
    bench.backend.read_bytes(buffer, &mut got).unwrap();
    assert!(got == host, "{what}: stored bytes differ");
}

fn check_read<B: Backend>(bench: &mut Bench<B>, of: &Stored, host: &[u8], what: &str) {
    let bytes = of.storage.bytes(1, of.columns);
    let mut want = vec![0.0; of.rows * of.columns];
    for (stored, out) in host.chunks(bytes).zip(want.chunks_mut(of.columns)) {
        decode(of.storage, stored, 0.3, out);
    }
    let (first, out) = (of.rows / 3, bench.output(of.rows - of.rows / 3, of.columns));
    bench.backend.accumulated(of, first, 0.3, out).unwrap();
    assert_same_bits(&bench.read(out), &want[first * of.columns..], what);
    let of_part = |index| -> f64 {
        part(of.rows, index).map(|r| squares(of.storage, &host[r * bytes..][..bytes], of.columns)).sum()
    };
    let want: f64 = (0..PARTS).map(of_part).sum();
    assert_eq!(bench.backend.accumulated_squares(of).unwrap().to_bits(), want.to_bits(), "{what}: squares");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_of_a_tensor_are_all_of_it() {
        for rows in [1, 63, 64, 65, 1000] {
            let all: Vec<usize> = (0..PARTS).flat_map(|index| part(rows, index)).collect();
            assert_eq!(all, (0..rows).collect::<Vec<_>>());
        }
    }

    #[test]
    fn four_bits_take_nine_sixteenths_of_a_byte() {
        assert_eq!(Storage::Four.bytes(64, 64) * 16, 64 * 64 * 9);
        // A row is whole blocks.
        assert_eq!(Storage::Four.bytes(3, 17), 3 * 18);
    }

    #[test]
    fn what_four_bits_store_is_right_in_the_mean() {
        let parts: Vec<Vec<f32>> = (0..4).map(|i| numbers(i, 32)).collect();
        let (mut mean, rounds) = (vec![0.0f64; 32], 4000);
        for round in 0..rounds {
            let (mut stored, mut out) = (vec![0; Storage::Four.bytes(1, 32)], vec![0.0; 32]);
            for (i, g) in (0..).zip(&parts) {
                let share = Share { seed: 1, number: round * 4 + i, tensor: 0, fresh: i == 0 };
                assert_eq!(row(Storage::Four, &mut stored, g, 0, &share.draws(), share.fresh), 0);
            }
            decode(Storage::Four, &stored, 1.0, &mut out);
            mean.iter_mut().zip(out).for_each(|(mean, out)| *mean += f64::from(out) / rounds as f64);
        }
        for (i, mean) in mean.iter().enumerate() {
            let want: f64 = parts.iter().map(|g| f64::from(g[i])).sum();
            // A rounding is off by half a step of 1/2 or less; four of them, averaged over the rounds.
            assert!((mean - want).abs() < 0.03, "{i}: {mean}, expected {want}");
        }
    }
}
