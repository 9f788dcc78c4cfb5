//! Both sides of gradients in four bits, each with a scale for sixteen of what is summed over:
//!
//! | | left | right |
//! |---|---|---|
//! | dx = dy w | dy along outputs, at random | w along outputs, at random: its own scales lie along inputs |
//! | dw = dy' x | dy along tokens, at random | x along tokens, to nearest |
//!
//! What is rounded at random has an expected value that is the number itself, with words that (seed, batch, tensor) decide:
//! so gradients lean nowhere, and every run gives the same bits. Of dw both sides go through a Hadamard transform of
//! sixteen tokens with the same random signs first, which cancels in the product: a token far larger than its neighbours
//! would leave them no bits. A weight could take part in dx as it is if a scale belonged to 16 x 16 of its values; ours
//! have 1 x 16, which are finer on the way forward.

use std::ops::Range;

use halfbyte_formats::state::draw::Purpose;
use halfbyte_ops::{Luck, Result, Rows, Weight};

use super::{Compute, Room, Rounding, rows};
use crate::Cuda;
use crate::cublaslt::{Operand, Values};
use crate::launch::{DevicePtr, Grid, args};

/// What decides the roundings of gradients with so many inputs, where they are made in four bits.
pub(crate) fn luck(cuda: &Cuda, inputs: usize) -> Option<Luck> {
    let library = cuda.device.library.as_ref();
    let asked = library.is_some_and(|library| library.compute == Compute::NativeFp4);
    cuda.luck.filter(|_| asked && inputs.is_multiple_of(16))
}

/// dy from token `first` on, and what results must be multiplied by.
pub(crate) fn results(
    cuda: &mut Cuda,
    op: &'static str,
    luck: Luck,
    (dy, first): (Rows, usize),
    room: Room,
    weight_scale: Option<DevicePtr>,
) -> Result<(Operand, Option<DevicePtr>)> {
    let rounding = Rounding::Random(luck.draws(Purpose::Results));
    let (operand, factor) = rows(cuda, op, (dy, first), room, weight_scale, rounding)?;
    Ok((operand, Some(factor)))
}

/// Some inputs of a weight, whose own scale is left out.
pub(crate) fn transposed(
    cuda: &mut Cuda,
    op: &'static str,
    luck: Luck,
    weight: &Weight,
    inputs: Range<usize>,
    room: Room,
) -> Result<Operand> {
    let (from, width) = (cuda.weight(op, weight)?, weight.rows.next_multiple_of(64));
    let [low, high] = luck.draws(Purpose::Transposed).key();
    let (first, count, to, scales) = (inputs.start, inputs.len(), room.at, room.scales());
    let arguments = args![from, weight.columns, weight.rows, first, count, to, scales, low, high];
    cuda.launch("weight_columns_e2m1", columns_of(width, count), arguments)?;
    Ok(Operand { values: Values::E2m1, scales, turned: true, ..Operand::bf16(to, width) })
}

impl Room {
    /// Most tokens of so many columns that have room; their scales go on to the end of a tile.
    pub(crate) fn tokens_across(self, columns: usize) -> usize {
        (2 * self.values() / columns.next_multiple_of(128)) & !63
    }
}

/// Columns of some tokens.
#[derive(Clone)]
pub(crate) struct Across {
    pub(crate) tokens: Rows,
    /// Number of the first.
    pub(crate) first: usize,
    /// Tokens that there are in all.
    pub(crate) of: usize,
    pub(crate) columns: Range<usize>,
}

/// Left and right side of dw = dy' x, in places of their own, and what results must be multiplied by.
pub(crate) fn over_tokens(
    cuda: &mut Cuda,
    op: &'static str,
    luck: Luck,
    (dy, for_dy): (&Across, Room),
    (x, for_x): (&Across, Room),
) -> Result<([Operand; 2], Option<DevicePtr>)> {
    let signs = luck.draws(Purpose::Signs).block(0)[0];
    let random = Rounding::Random(luck.draws(Purpose::ResultsOverTokens));
    let (right, scale) = across(cuda, op, x, signs, for_x, DevicePtr::NULL, Rounding::Nearest)?;
    let (left, factor) = across(cuda, op, dy, signs, for_dy, scale, random)?;
    Ok(([left, Operand { turned: true, ..right }], Some(factor)))
}

/// Columns as rows of one NVFP4 tensor, transformed, and what its scale and another are together.
fn across(
    cuda: &mut Cuda,
    op: &'static str,
    of: &Across,
    signs: u32,
    room: Room,
    other_scale: DevicePtr,
    rounding: Rounding,
) -> Result<(Operand, DevicePtr)> {
    let (x, count) = (of.tokens, of.columns.len());
    let (width, [largest, factor]) = (x.rows.next_multiple_of(64), room.words());
    let from = cuda.pointer(op, x.buffer)?;
    let given = args![from, x.narrow, x.columns, x.rows, of.columns.start, count, signs, largest];
    cuda.noted("clear", |cuda| Ok(cuda.arena.clear(largest.0, 4)?))?;
    cuda.launch("largest_transformed", columns_of(width, count), given)?;
    let (to, scales) = (room.at, room.scales());
    let results = args![other_scale, to, scales, factor, of.first, of.of];
    cuda.launch("columns_e2m1", columns_of(width, count), &[given, results, &rounding.args()].concat())?;
    Ok((Operand { values: Values::E2m1, scales, ..Operand::bf16(to, width) }, factor))
}

/// A thread for each 64 of `width` rows of a column, of whole tiles of 128 columns.
fn columns_of(width: usize, columns: usize) -> Grid {
    Grid { blocks: (columns.div_ceil(128) as u32, (width / 64) as u32, 1), ..Grid::line(1, 128) }
}

#[cfg(test)]
mod tests {
    use halfbyte_ops::testing::{Bench, NARROWED, SUMMED, assert_same_bits, numbers};
    use halfbyte_ops::{Backend, WeightFormat, gated};

    use super::super::rounded::{LUCK, dy_over_tokens, results, transposed, turned, uneven, x_over_tokens};
    use super::{Compute, Cuda, Luck, Rows, Weight};
    use crate::tests::computed_by_the_library;

    /// out[i,j] = sum_k a[i,k] b[j,k]
    fn product(a: &[f32], b: &[f32], inner: usize) -> Vec<f64> {
        let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
        a.chunks(inner).flat_map(|a| b.chunks(inner).map(move |b| dot(a, b))).collect()
    }

    /// dx of both sides as they are multiplied, `most` tokens at a time.
    fn want_dx(dy: &[f32], held: &[f32], outputs: usize, scale: f32, most: usize) -> Vec<f32> {
        let (mut left, piece) = (Vec::new(), most.saturating_mul(outputs).min(dy.len()));
        for (number, rows) in dy.chunks(piece).enumerate() {
            left.extend(results(rows, outputs, number * piece / outputs));
        }
        let right = transposed(held, outputs);
        product(&left, &right, outputs).into_iter().map(|x| (x * f64::from(scale)) as f32).collect()
    }

    /// dw of rows `first..`, of which there are `rows`.
    fn want_dw(
        (dy, outputs): (&[f32], usize),
        (x, inputs): (&[f32], usize),
        (first, rows): (usize, usize),
        most: usize,
    ) -> Vec<f32> {
        let tokens = x.len() / inputs;
        let dy: Vec<f32> = dy.chunks(outputs).flat_map(|row| &row[first..first + rows]).copied().collect();
        let mut sums = vec![0.0; rows * inputs];
        for token in (0..tokens).step_by(most.min(tokens)) {
            let range = token..tokens.min(token + most.min(tokens));
            let dy =
                dy_over_tokens(&dy[range.start * rows..range.end * rows], (first, rows), (token, tokens));
            let x = x_over_tokens(&x[range.start * inputs..range.end * inputs], inputs);
            let inner = range.len().next_multiple_of(16);
            sums.iter_mut().zip(product(&dy, &x, inner)).for_each(|(sum, more)| *sum += more);
        }
        sums.into_iter().map(|sum| sum as f32).collect()
    }

    fn contract(make: &dyn Fn(usize) -> Cuda, most: usize) {
        for (tokens, outputs, inputs) in
            [(1, 48, 64), (5, 64, 96), (70, 112, 208), (130, 272, 80), (40, 200, 144)]
        {
            let bench = &mut Bench::new(&make);
            let what = format!("gradients {tokens}x{outputs}x{inputs}");
            let (dy, x) = (uneven(1, tokens, outputs), uneven(2, tokens, inputs));
            let (weight, held, scale) =
                bench.weight(WeightFormat::Nvfp4, outputs, inputs, &uneven(3, outputs, inputs));
            let plain = product(&dy, &turned(&held, inputs), outputs);
            let plain: Vec<f32> = plain.into_iter().map(|x| (x * f64::from(scale)) as f32).collect();
            let want = want_dx(&dy, &held, outputs, scale, most);
            let wide = [bench.rows(tokens, outputs, &dy), bench.rows(tokens, inputs, &x)];
            let narrow = wide.map(|wide| {
                let narrow = bench.output(wide.rows, wide.columns).narrow();
                bench.backend.copy(wide, narrow).unwrap();
                narrow
            });
            let dx = bench.output(tokens, inputs);
            bench.backend.linear_input_gradient(wide[0], &weight, dx, false).unwrap();
            bench.assert_products(dx, &plain, SUMMED, &what);
            bench.backend.round_gradients(Some(LUCK));
            bench.backend.linear_input_gradient(wide[0], &weight, dx, false).unwrap();
            bench.assert_products(dx, &want, SUMMED, &what);
            let first = bench.read(dx);
            bench.backend.linear_input_gradient(narrow[0], &weight, dx, false).unwrap();
            assert_same_bits(&bench.read(dx), &first, &what);
            bench.backend.linear_input_gradient(narrow[0], &weight, dx, true).unwrap();
            bench.assert_products(dx, &want.iter().map(|x| x + x).collect::<Vec<_>>(), SUMMED, &what);
            check_gated(bench, (narrow[0], &weight), &first, &what);
            for (from, rows) in [(0, outputs), (64, outputs.saturating_sub(64))] {
                if rows == 0 {
                    continue;
                }
                let want = want_dw((&dy, outputs), (&x, inputs), (from, rows), most);
                let dw = [0; 2].map(|_| bench.output(rows, inputs));
                bench.backend.linear_weight_gradient(wide[0], wide[1], false, from, dw[0]).unwrap();
                bench.assert_products(dw[0], &want, SUMMED, &what);
                bench.backend.linear_weight_gradient(narrow[0], narrow[1], false, from, dw[1]).unwrap();
                assert_same_bits(&bench.read(dw[1]), &bench.read(dw[0]), &what);
            }
        }
    }

    /// From the same dy, what is mixed has this gradient.
    fn check_gated(bench: &mut Bench<Cuda>, (dy, down): (Rows, &Weight), dmixed: &[f32], what: &str) {
        let (tokens, columns) = (dy.rows, down.columns);
        let values = [4, 5].map(|seed| uneven(seed, tokens, columns));
        let kept = [0, 1].map(|i| {
            let (wide, narrow) =
                (bench.rows(tokens, columns, &values[i]), bench.output(tokens, columns).narrow());
            bench.backend.copy(wide, narrow).unwrap();
            narrow
        });
        bench.backend.gated_gradient(dy, down, (kept[0], kept[1]), kept[0], kept[1]).unwrap();
        let each = values[0].iter().zip(&values[1]).zip(dmixed);
        let want: Vec<(f32, f32)> = each.map(|((g, u), dy)| gated::gradient(*g, *u, *dy)).collect();
        let (dgate, dup): (Vec<f32>, Vec<f32>) = want.into_iter().unzip();
        bench.assert_products(kept[0], &dgate, 4.0 * NARROWED, what);
        bench.assert_products(kept[1], &dup, 4.0 * NARROWED, what);
    }

    #[test]
    fn gradients_are_multiplied_as_they_were_rounded() {
        computed_by_the_library(Compute::NativeFp4, contract);
    }

    /// Root of the mean square of a difference, as a part of what it should be.
    fn off(got: &[f32], want: &[f32]) -> f64 {
        let squares = |x: &mut dyn Iterator<Item = f64>| x.map(|x| x * x).sum::<f64>();
        let difference = &mut got.iter().zip(want).map(|(a, b)| f64::from(a - b));
        (squares(difference) / squares(&mut want.iter().map(|x| f64::from(*x)))).sqrt()
    }

    #[test]
    fn roundings_of_many_batches_lean_nowhere() {
        const BATCHES: u64 = 64;
        computed_by_the_library(Compute::NativeFp4, |make, _| {
            let bench = &mut Bench::new(&make);
            let (tokens, outputs, inputs) = (48, 64, 64);
            let (weight, ..) =
                bench.weight(WeightFormat::Nvfp4, outputs, inputs, &numbers(3, outputs * inputs));
            let dy = bench.rows(tokens, outputs, &numbers(1, tokens * outputs));
            let out = bench.output(tokens, inputs);
            let mut gradient = |luck| {
                bench.backend.round_gradients(luck);
                bench.backend.linear_input_gradient(dy, &weight, out, false).unwrap();
                bench.read(out)
            };
            let exact = gradient(None);
            let (mut mean, mut each) = (vec![0.0; exact.len()], Vec::new());
            for batch in 0..BATCHES {
                let one = gradient(Some(Luck { batch, ..LUCK }));
                each.push(off(&one, &exact));
                mean.iter_mut().zip(one).for_each(|(mean, x)| *mean += x / BATCHES as f32);
            }
            let (one, all) = (each.iter().sum::<f64>() / BATCHES as f64, off(&mean, &exact));
            eprintln!("off by {one:.3}, the mean of {BATCHES} by {all:.3}");
            // A fair mean is off by an eighth of that.
            assert!((0.01..0.5).contains(&one) && all < one / 6.0, "off by {one}, the mean by {all}");
        });
    }
}
