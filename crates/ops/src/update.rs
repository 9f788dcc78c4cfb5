//! A tensor learns: g -> v, m -> delta -> the weight and what is kept beside it, as
//! `halfbyte_formats::state` defines for a block of 16.
//!
//! Matrices and tables have factored second moments; vectors, and for comparison all, one per element. Rows
//! may come in parts, from the first to the last; in parts of whole groups, as `learn` takes them, they give the bytes
//! that all give at once, since columns' squares are added up by so many. Kept, all row after row, rows padded to whole blocks:
//!
//! | buffer | matrix | vector |
//! |---|---|---|
//! | remainder | `[rows][columns]` of n bits, or the master weights | |
//! | moment | `[rows]`: codes of all blocks, then their scales | f32 |
//! | second | f32 `[rows][tiles]`, `[columns]`, `[columns]` sums of the step; full: `[rows][columns]` | f32 |
//!
//! Weights in f32 have neither remainder nor master: they are what they are.

use halfbyte_formats::nvfp4::Scales;
use halfbyte_formats::state::adamw;
use halfbyte_formats::state::draw::{Draws, Purpose};
use halfbyte_formats::state::master::{self, Master};
use halfbyte_formats::state::moment::{self, Moment};
use halfbyte_formats::state::{Average, BLOCK, Push, Tally, int8, second, weight};

use crate::error::{Result, check};
use crate::{Backend, Buffer, Rows, Vector, Weight, WeightFormat};

/// How a tensor's state is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recipe {
    /// Beside NVFP4 codes.
    pub weight: weight::Remainder,
    /// Beside 8-bit codes.
    pub table: int8::Remainder,
    /// Wide weights from which all codes are derived, instead of remainders.
    pub master: Option<Master>,
    /// First moments of matrices and tables.
    pub moment: Moment,
    /// Whether second moments of matrices and tables have one number per element.
    pub full_second: bool,
    /// How NVFP4 block scales are chosen: at import, and with a master whenever a block moves.
    pub scales: Scales,
}

impl Recipe {
    /// NVFP4 with a byte, tables with a nibble, moments in four bits.
    pub const DEFAULT: Recipe = Recipe {
        weight: weight::Remainder::Byte,
        table: int8::Remainder::Nibble,
        master: None,
        moment: Moment::Four,
        full_second: false,
        scales: Scales::Nearest,
    };
    /// NVFP4 with a nibble, tables with nothing.
    pub const LEAN: Recipe =
        Recipe { weight: weight::Remainder::Nibble, table: int8::Remainder::None, ..Recipe::DEFAULT };

    /// Bytes of the remainders of a weight, or of its master.
    pub fn remainder_bytes(&self, format: WeightFormat, rows: usize, columns: usize) -> usize {
        let padded = rows * padded(columns);
        match (format, self.master) {
            (WeightFormat::F32 | WeightFormat::Bf16, _) => 0,
            (_, Some(master)) => master.bytes(padded),
            (WeightFormat::Nvfp4, None) => self.weight.bytes(padded),
            (WeightFormat::Int8, None) => self.table.bytes(padded),
        }
    }

    /// Bytes of the second moments of a weight.
    pub fn second_bytes(&self, rows: usize, columns: usize) -> usize {
        match self.full_second {
            true => 4 * rows * padded(columns),
            false => 4 * (rows * second::tiles(columns) + 2 * padded(columns)),
        }
    }

    /// Bytes of the first moments of a weight.
    pub fn moment_bytes(&self, rows: usize, columns: usize) -> usize {
        rows * padded(columns) / BLOCK * self.moment.block_bytes()
    }
}

/// Values of a row, in whole blocks.
pub const fn padded(columns: usize) -> usize {
    columns.next_multiple_of(BLOCK)
}

/// What is kept of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kept {
    /// See the module.
    pub remainder: Buffer,
    /// See the module.
    pub moment: Buffer,
    /// See the module.
    pub second: Buffer,
}

/// One tensor's step.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    /// How its state is kept.
    pub recipe: Recipe,
    /// Sizes of this step.
    pub adamw: adamw::Step,
    /// How fast second moments follow.
    pub average: Average,
    /// Of the run.
    pub seed: u64,
    /// Number of this step.
    pub step: u64,
    /// Number of the tensor.
    pub tensor: u64,
}

impl Step {
    /// The most that a matrix's moment over its root may be, the row's part of it included.
    pub fn limit(&self) -> f32 {
        if self.recipe.full_second { self.adamw.limit } else { self.adamw.factored_limit }
    }
}

/// A step with its random words.
pub struct Moving<'a> {
    /// The step.
    pub step: &'a Step,
    /// Its words, in pairs: an element's own for the weight, the other for the moment.
    pub draws: Draws,
}

impl<'a> Moving<'a> {
    /// The words of this tensor at this step.
    pub fn new(step: &'a Step) -> Moving<'a> {
        Moving { step, draws: Draws::new(step.seed, step.step, step.tensor, Purpose::Weight) }
    }
}

/// A row of a weight, in whole blocks.
pub enum RowWeights<'a> {
    /// Codes, scales, remainders, and the tensor's scale.
    Nvfp4(weight::Row<'a>, f32),
    /// Codes, scales, remainders.
    Int8(int8::Row<'a>),
    /// Values.
    F32(&'a mut [f32]),
}

/// Second moments of a row.
pub enum RowSecond<'a> {
    /// The row's averages over the tiles of so many columns, which follow, and the inverse roots of the columns' profile.
    Factored(&'a mut [f32], usize, &'a [f32]),
    /// The row's elements', which have followed.
    Full(&'a [f32]),
}

/// One row learns: `g` in whole blocks, `first` the number of its first element.
#[inline(always)]
pub fn row(
    mut weights: RowWeights<'_>,
    moments: &mut [u8],
    second: RowSecond<'_>,
    g: &[f32],
    first: u64,
    moving: &Moving<'_>,
) -> Tally {
    let step = moving.step;
    let mut tally = Tally::default();
    let blocks = g.len() / BLOCK;
    let recipe = step.recipe;
    let codes = blocks * (recipe.moment.block_bytes() - scale_bytes(recipe.moment));
    let (codes, scales) = moments.split_at_mut(codes);
    // Words are drawn by the hundred: one after the other they cost more than all the rest.
    let mut words = [[0u32; WORDS]; 2];
    let draws = moving.draws.row(first);
    for (index, g) in g.as_chunks::<BLOCK>().0.iter().enumerate() {
        let word = index * BLOCK % WORDS;
        if word == 0 {
            let count = WORDS.min((blocks - index) * BLOCK);
            let [own, other] = &mut words;
            draws.pairs(index, &mut own[..count], &mut other[..count]);
        }
        let luck =
            |which: usize| -> &[u32; BLOCK] { words[which][word..].first_chunk().expect("whole blocks") };
        let (inverses, of_row) = match &second {
            RowSecond::Factored(averages, _, profile) => {
                let profile: &[f32; BLOCK] = profile[index * BLOCK..].first_chunk().expect("whole blocks");
                let root = second::root(averages[index * BLOCK / second::TILE]);
                (*profile, step.adamw.of_row(root))
            }
            RowSecond::Full(row) => {
                let v = row[index * BLOCK..].first_chunk().expect("whole blocks");
                (second::each(v).map(|root| step.adamw.inverse(root)), step.adamw.of_full_row())
            }
        };
        let m = moment_block(recipe.moment, codes, scales, index, g, step, luck(1));
        let ratio = adamw::Step::ratio(&m, &inverses, of_row.limit);
        tally.squares += step.adamw.squares(&ratio, &of_row);
        let push = step.adamw.push(&ratio, &of_row);
        tally.add(match (&mut weights, recipe.master) {
            (RowWeights::Nvfp4(row, global), Some(master)) => {
                let delta = push.values(&master.decode_block(row.remainders, index));
                master.update_nvfp4(row, index, (*global, recipe.scales), &delta, luck(0))
            }
            (RowWeights::Int8(row), Some(master)) => {
                let delta = push.values(&master.decode_block(row.remainders, index));
                master.update_int8(row, index, &delta, luck(0))
            }
            (RowWeights::Nvfp4(row, global), None) => match recipe.weight {
                weight::Remainder::Byte => nvfp4_block::<8>(row, *global, index, &push, luck(0)),
                weight::Remainder::Nibble => nvfp4_block::<4>(row, *global, index, &push, luck(0)),
            },
            (RowWeights::Int8(row), None) => match recipe.table {
                int8::Remainder::Byte => int8_block::<8>(row, index, &push, luck(0)),
                int8::Remainder::Nibble => int8_block::<4>(row, index, &push, luck(0)),
                int8::Remainder::None => int8_block::<0>(row, index, &push, luck(0)),
            },
            (RowWeights::F32(row), _) => {
                let w: &mut [f32; BLOCK] = row[index * BLOCK..].first_chunk_mut().expect("whole blocks");
                let delta = push.values(w);
                master::update_f32(w, &delta)
            }
        });
    }
    if let RowSecond::Factored(averages, columns, _) = second {
        for (tile, (average, g)) in averages.iter_mut().zip(g.chunks(second::TILE)).enumerate() {
            let columns = second::TILE.min(columns - tile * second::TILE);
            *average = second::follow_one(*average, second::row_squares(g), columns, step.average);
        }
    }
    tally
}

/// Random words drawn at a time.
const WORDS: usize = 256;

const fn scale_bytes(moment: Moment) -> usize {
    match moment {
        Moment::Four | Moment::Eight => 1,
        Moment::Float => 0,
    }
}

/// Moves the first moments of a block and keeps them rounded; gives them as they were before that.
#[inline(always)]
#[allow(clippy::too_many_arguments)] // a block's place, what moves it, and its luck
fn moment_block(
    kind: Moment,
    codes: &mut [u8],
    scales: &mut [u8],
    index: usize,
    g: &[f32; BLOCK],
    step: &Step,
    luck: &[u32; BLOCK],
) -> [f32; BLOCK] {
    const WHOLE: &str = "whole blocks";
    match kind {
        Moment::Four => {
            let codes = codes[index * BLOCK / 2..].first_chunk_mut().expect(WHOLE);
            let m = moment::follow_four(codes, scales[index], g, step.adamw.keep);
            moment::encode_four(&m, luck, codes, &mut scales[index]);
            m
        }
        Moment::Eight => {
            let bytes: &mut [u8; BLOCK] = codes[index * BLOCK..].first_chunk_mut().expect(WHOLE);
            let mut signed = bytes.map(|byte| byte as i8);
            let mut m = moment::decode_eight(&signed, scales[index]);
            step.adamw.first(&mut m, g);
            moment::encode_eight(&m, luck, &mut signed, &mut scales[index]);
            *bytes = signed.map(|code| code as u8);
            m
        }
        Moment::Float => {
            let bytes = &mut codes[index * BLOCK * 4..][..BLOCK * 4];
            let mut m = [0.0; BLOCK];
            for (m, bytes) in m.iter_mut().zip(bytes.as_chunks::<4>().0) {
                *m = f32::from_le_bytes(*bytes);
            }
            step.adamw.first(&mut m, g);
            for (m, bytes) in m.iter().zip(bytes.as_chunks_mut::<4>().0) {
                *bytes = m.to_le_bytes();
            }
            m
        }
    }
}

#[inline(always)]
fn nvfp4_block<const BITS: u32>(
    row: &mut weight::Row<'_>,
    global: f32,
    index: usize,
    push: &Push<'_>,
    luck: &[u32; BLOCK],
) -> Tally {
    let codes: &mut [u8; BLOCK / 2] = row.codes[index * BLOCK / 2..].first_chunk_mut().expect("whole blocks");
    let (scale, bytes) = (&mut row.scales[index], 2 * BITS as usize);
    let remainder = &mut row.remainders[index * bytes..][..bytes];
    let block = weight::Block { codes, scale, remainder };
    weight::update_block::<BITS>(block, global, push, luck)
}

#[inline(always)]
fn int8_block<const BITS: u32>(
    row: &mut int8::Row<'_>,
    index: usize,
    push: &Push<'_>,
    luck: &[u32; BLOCK],
) -> Tally {
    let codes: &mut [i8; BLOCK] = row.codes[index * BLOCK..].first_chunk_mut().expect("whole blocks");
    let (scale, bytes) = (&mut row.scales[index], 2 * BITS as usize);
    let remainder = &mut row.remainders[index * bytes..][..bytes];
    int8::update_block::<BITS>(int8::Block { codes, scale, remainder }, push, luck)
}

/// A vector of f32 learns; m and v are f32 too.
#[inline(always)]
pub fn vector(w: &mut [f32], m: &mut [f32], v: &mut [f32], g: &[f32], step: &Step) -> Tally {
    let mut tally = Tally::default();
    for ((w, m), (v, g)) in
        w.chunks_mut(BLOCK).zip(m.chunks_mut(BLOCK)).zip(v.chunks_mut(BLOCK).zip(g.chunks(BLOCK)))
    {
        let pad = |x: &[f32]| -> [f32; BLOCK] { std::array::from_fn(|i| x.get(i).copied().unwrap_or(0.0)) };
        let (mut m_block, mut v_block, g_block, w_block) = (pad(m), pad(v), pad(g), pad(w));
        step.adamw.first(&mut m_block, &g_block);
        let used = second::full(&mut v_block, &g_block, step.average);
        let delta = step.adamw.delta(&m_block, &used, &w_block);
        // As of a matrix: a block that would not be finite stays as it is.
        if !(0..BLOCK).all(|i| (w_block[i] + delta[i]).is_finite()) {
            tally.refused += 1;
            continue;
        }
        for (i, w) in w.iter_mut().enumerate() {
            // Adding zero turns a negative zero into zero.
            *w = if delta[i] == 0.0 { *w } else { *w + delta[i] };
            (m[i], v[i]) = (m_block[i], v_block[i]);
        }
    }
    tally
}

/// The shapes that fit.
pub fn check_shapes(of: &Weight, first: usize, gradient: Rows, kept: &Kept, recipe: &Recipe) -> Result<()> {
    let (rows, columns) = (of.rows, of.columns);
    let fits = gradient.columns == columns
        && (!gradient.narrow || columns.is_multiple_of(crate::tensor::UNIT))
        && first.is_multiple_of(crate::tensor::PANEL)
        && first + gradient.rows <= rows
        && of.format != WeightFormat::Bf16
        && kept.remainder.bytes >= recipe.remainder_bytes(of.format, rows, columns)
        && kept.moment.bytes >= recipe.moment_bytes(rows, columns)
        && kept.second.bytes >= recipe.second_bytes(rows, columns);
    check(fits, "update", || {
        format!(
            "{} {rows}x{columns}, gradient of rows {first}.. {}x{}, kept {}, {} and {} bytes",
            of.format.name(),
            gradient.rows,
            gradient.columns,
            kept.remainder.bytes,
            kept.moment.bytes,
            kept.second.bytes
        )
    })
}

/// The shapes that fit a vector.
pub fn check_vector(of: Vector, gradient: Rows, kept: &Kept) -> Result<()> {
    let fits = gradient.rows * gradient.columns == of.len
        && kept.moment.bytes >= 4 * of.len
        && kept.second.bytes >= 4 * of.len;
    check(fits, "update_vector", || {
        format!("{} values, gradient {}x{}", of.len, gradient.rows, gradient.columns)
    })
}

/// What every backend must give: the bytes of the rows above, in every mode, and nothing at all
/// for a gradient of zeros before anything was learnt.
pub fn contract<B: Backend>(make: impl Fn(usize) -> B) {
    contract::check(make);
}

/// What every backend must give that makes narrow gradients: the bytes that the same values give in f32.
pub fn narrow_contract<B: Backend>(make: impl Fn(usize) -> B) {
    contract::check_narrow(make);
}

mod contract;
