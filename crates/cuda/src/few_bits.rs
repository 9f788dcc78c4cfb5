//! Products of many tokens in fewer bits than bf16, where somebody asks for them and cuBLASLt has them on this chip. Only
//! NVFP4 weights take part. On the way forward:
//!
//! | | weight | tokens, rounded to bf16 before |
//! |---|---|---|
//! | [`Compute::Fp8`] | E4M3, each row divided by a power of two | the same |
//! | [`Compute::NativeFp4`] | its codes and scales, exact | NVFP4, those of one product as one tensor |
//!
//! E4M3 loses 2^-4 of a value at most, or 2^-17 of the largest of its row; nothing of codes that are powers of two.
//! Gradients are bf16, or four bits on both sides (`back`).

mod back;
#[cfg(test)]
mod rounded;
#[cfg(test)]
mod step;

use std::ops::Range;

use halfbyte_formats::blocked;
use halfbyte_formats::state::draw::Draws;
use halfbyte_ops::{Error, Result, Rows, Weight, WeightFormat};

use crate::cublaslt::{Operand, Values};
use crate::launch::{Arg, DevicePtr, Grid, args};
use crate::{Cuda, Device};

pub(crate) use back::{Across, luck, over_tokens, results, transposed};

/// What products of many tokens with an NVFP4 weight are computed in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compute {
    /// Exact weights.
    Bf16,
    /// Eight bits on both sides.
    Fp8,
    /// Four bits on both sides: exact weights, rounded tokens; and gradients from rounded sides.
    NativeFp4,
}

/// How E2M1 codes are chosen.
#[derive(Clone, Copy)]
enum Rounding {
    Nearest,
    /// With an expected value that is the number itself.
    Random(Draws),
}

impl Rounding {
    /// As kernels take it.
    fn args(self) -> [Arg; 3] {
        let (random, [low, high]) = match self {
            Rounding::Nearest => (false, [0; 2]),
            Rounding::Random(draws) => (true, draws.key()),
        };
        [Arg::from(random), Arg::from(low), Arg::from(high)]
    }
}

impl Compute {
    fn values(self) -> Values {
        match self {
            Compute::Bf16 => Values::Bf16,
            Compute::Fp8 => Values::E4m3,
            Compute::NativeFp4 => Values::E2m1,
        }
    }

    /// As people write it.
    pub fn name(self) -> &'static str {
        match self {
            Compute::Bf16 => "bf16",
            Compute::Fp8 => "fp8",
            Compute::NativeFp4 => "native-fp4",
        }
    }
}

impl Device {
    /// Has these products computed so, or says why they cannot be.
    pub fn compute(&mut self, compute: Compute) -> Result<()> {
        let cublaslt = self.has_library();
        let Some(library) = self.library.as_mut().filter(|_| cublaslt) else {
            let why = self.library_problem.as_deref().unwrap_or("our own products are in use");
            return Err(Error::Device(format!("only cuBLASLt has such products: {why}")));
        };
        if compute != Compute::Bf16 {
            library.has(compute.values()).map_err(|reason| {
                let ((major, minor), name) = (self.properties.capability, library.name());
                let answer = reason.rsplit(": ").next().unwrap_or_default();
                Error::Device(format!("{name} has no such products for sm_{major}{minor}: {answer}"))
            })?;
        }
        library.compute = compute;
        Ok(())
    }

    /// What products are computed in, if that is less than bf16.
    pub fn few_bits(&self) -> Option<Compute> {
        self.library.as_ref().map(|library| library.compute).filter(|compute| *compute != Compute::Bf16)
    }
}

/// How the products of these weights are made: as was asked, or in bf16 if one cannot take part.
pub(crate) fn way(cuda: &Cuda, weights: &[&Weight]) -> Compute {
    let fits = |weight: &&Weight| weight.format == WeightFormat::Nvfp4 && weight.rows.is_multiple_of(16);
    let asked = cuda.device.library.as_ref().map_or(Compute::Bf16, |library| library.compute);
    if weights.iter().all(fits) { asked } else { Compute::Bf16 }
}

/// A part of scratch: values from its beginning on, scales in the last eighth, two words at the end.
#[derive(Clone, Copy)]
pub(crate) struct Room {
    pub(crate) at: DevicePtr,
    pub(crate) bytes: usize,
}

impl Room {
    fn values(self) -> usize {
        self.bytes / 8 * 7
    }

    fn scales(self) -> DevicePtr {
        self.at.add(self.values())
    }

    /// Most rows of tokens that have room; never fewer scales than that have, which go on to the end of a tile.
    pub(crate) fn tokens(self, way: Compute, columns: usize) -> usize {
        let bytes = self.values() / columns.next_multiple_of(64);
        if way == Compute::NativeFp4 { bytes.max((2 * bytes) & !127) } else { bytes }
    }

    /// The largest finite magnitude of what is rounded, and the factor that comes of it.
    fn words(self) -> [DevicePtr; 2] {
        [8, 4].map(|from_end| self.at.add(self.bytes - from_end))
    }
}

/// Rows of tokens, and what results must be multiplied by if the weight has this scale of its own.
pub(crate) fn tokens(
    cuda: &mut Cuda,
    op: &'static str,
    way: Compute,
    x: Rows,
    room: Room,
    weight_scale: Option<DevicePtr>,
) -> Result<(Operand, Option<DevicePtr>)> {
    if way == Compute::NativeFp4 {
        let (operand, factor) = rows(cuda, op, (x, 0), room, weight_scale, Rounding::Nearest)?;
        return Ok((operand, Some(factor)));
    }
    let (from, width) = (cuda.pointer(op, x.buffer)?, x.columns.next_multiple_of(64));
    let (to, scales) = (room.at, room.scales());
    cuda.launch("tokens_e4m3", Grid::line(x.rows, 128), args![from, x.narrow, x.columns, to, scales])?;
    Ok((Operand { values: way.values(), scales, ..Operand::bf16(to, width) }, weight_scale))
}

/// Rows as one NVFP4 tensor, the first of which has this number, and what results must be multiplied by if the other side
/// has this scale of its own.
fn rows(
    cuda: &mut Cuda,
    op: &'static str,
    (x, first): (Rows, usize),
    room: Room,
    other_scale: Option<DevicePtr>,
    rounding: Rounding,
) -> Result<(Operand, DevicePtr)> {
    let (from, width) = (cuda.pointer(op, x.buffer)?, x.columns.next_multiple_of(64));
    let (given, [largest, factor]) = (args![from, x.narrow, x.columns], room.words());
    cuda.noted("clear", |cuda| Ok(cuda.arena.clear(largest.0, 4)?))?;
    cuda.launch("largest_magnitude", Grid::line(x.rows, 128), &[given, args![largest]].concat())?;
    let (to, scales, other) = (room.at, room.scales(), other_scale.unwrap_or(DevicePtr::NULL));
    let results = args![x.rows, largest, other, to, scales, factor, first];
    cuda.launch("rows_e2m1", units(x.rows, width), &[given, results, &rounding.args()].concat())?;
    Ok((Operand { values: Values::E2m1, scales, ..Operand::bf16(to, width) }, factor))
}

/// Rows of a weight, behind `skipped` ones that are there already.
pub(crate) fn weight(
    cuda: &mut Cuda,
    op: &'static str,
    way: Compute,
    weight: &Weight,
    rows: Range<usize>,
    (room, skipped): (Room, usize),
) -> Result<Operand> {
    let (from, width) = (cuda.weight(op, weight)?, weight.columns.next_multiple_of(64));
    let (kernel, values, scales, grid) = match way {
        Compute::NativeFp4 => {
            let scales = blocked::size(skipped, width / 16);
            ("weight_e2m1", skipped * width / 2, scales, units(rows.len(), width))
        }
        _ => ("weight_e4m3", skipped * width, skipped * 4, Grid::line(rows.len().div_ceil(8), 256)),
    };
    let (to, scales) = (room.at.add(values), room.scales().add(scales));
    cuda.launch(kernel, grid, args![from, weight.columns, rows.start, rows.len(), to, scales])?;
    Ok(Operand { values: way.values(), scales, turned: true, ..Operand::bf16(to, width) })
}

/// A thread for each 64 values, of whole tiles of 128 rows.
fn units(rows: usize, width: usize) -> Grid {
    Grid::line(rows.div_ceil(128) * (width / 64), 128)
}

#[cfg(test)]
mod tests {
    use halfbyte_formats::{bf16, e4m3, nvfp4};
    use halfbyte_ops::testing::{Bench, NARROWED, SUMMED, assert_same_bits, numbers};
    use halfbyte_ops::{Backend, Matrix, Product, gated};

    use super::*;
    use crate::tests::computed_by_the_library;

    /// What each 8-bit sum may be off by, as a part of the largest: tensor cores keep 13 bits behind the largest term.
    const EIGHT_BIT_SUMS: f32 = 1.0 / 1024.0;

    /// A row as E4M3 by a power of two.
    fn eight_bits(row: &[f32]) -> Vec<f32> {
        let amax = row.iter().fold(0.0f32, |amax, x| amax.max(x.abs()));
        let power = (amax / 448.0).log2().ceil().exp2();
        row.iter().map(|x| e4m3::decode(e4m3::encode(x / power)) * power).collect()
    }

    /// Rows as one NVFP4 tensor.
    fn four_bits(rows: &[f32], columns: usize) -> Vec<f32> {
        let global = nvfp4::tensor_scale(nvfp4::amax(rows), nvfp4::Scales::Nearest);
        let mut out = rows.to_vec();
        for row in out.chunks_mut(columns) {
            let (mut codes, mut scales) = (vec![0; columns.div_ceil(2)], vec![0; columns.div_ceil(16)]);
            nvfp4::encode_row(row, global, nvfp4::Scales::Nearest, &mut codes, &mut scales);
            nvfp4::decode_row(&codes, &scales, global, row);
        }
        out
    }

    /// Both sides as they are multiplied.
    fn sides(way: Compute, x: &[f32], w: &[f32], columns: usize, most: usize) -> [Vec<f32>; 2] {
        let x: Vec<f32> = x.iter().map(|x| bf16::round(*x)).collect();
        match way {
            Compute::Bf16 => [x, w.to_vec()],
            Compute::Fp8 => [x.as_slice(), w].map(|rows| rows.chunks(columns).flat_map(eight_bits).collect()),
            Compute::NativeFp4 => {
                let piece = most.saturating_mul(columns).min(x.len());
                [x.chunks(piece).flat_map(|rows| four_bits(rows, columns)).collect(), w.to_vec()]
            }
        }
    }

    /// y[t,n] = s * sum_k x[t,k] w[n,k]
    fn product([x, w]: &[Vec<f32>; 2], columns: usize, scale: f32) -> Vec<f32> {
        let dot =
            |x: &[f32], w: &[f32]| x.iter().zip(w).map(|(x, w)| f64::from(*x) * f64::from(*w)).sum::<f64>();
        let row =
            |x: &[f32]| w.chunks(columns).map(|w| (dot(x, w) * f64::from(scale)) as f32).collect::<Vec<_>>();
        x.chunks(columns).flat_map(row).collect()
    }

    fn contract(way: Compute, make: &dyn Fn(usize) -> Cuda, most: usize) {
        let allowed = if way == Compute::Fp8 { EIGHT_BIT_SUMS } else { SUMMED };
        for (tokens, outputs, inputs) in
            [(1, 48, 64), (5, 64, 96), (40, 112, 200), (130, 272, 72), (3, 128, 2100)]
        {
            let bench = &mut Bench::new(&make);
            let what = format!("{} {tokens}x{outputs}x{inputs}", way.name());
            // Tokens, and blocks of a weight, of different sizes.
            let mut x = numbers(1, tokens * inputs);
            x.iter_mut().enumerate().for_each(|(i, x)| *x *= ((i / inputs % 9) as f32 - 4.0).exp2());
            let mut w = numbers(2, outputs * inputs);
            w.iter_mut().enumerate().for_each(|(i, w)| *w *= ((i / 48 % 5) as f32 - 2.0).exp2());
            let (gate, held, scale) = bench.weight(WeightFormat::Nvfp4, outputs, inputs, &w);
            let (up, ..) = bench.weight(WeightFormat::Nvfp4, outputs, inputs, &numbers(3, outputs * inputs));
            let [gate, up] = [gate, up].map(|weight| Matrix { weight, bias: None });
            let want = product(&sides(way, &x, &held, inputs, most), inputs, scale);
            let x = bench.rows(tokens, inputs, &x);
            let [gates, ups] = [0; 2].map(|_| bench.output(tokens, outputs));
            bench.backend.linear(x, &[Product::new(gate, gates), Product::new(up, ups)]).unwrap();
            bench.assert_products(gates, &want, allowed, &what);
            let (first, second) = (bench.read(gates), bench.read(ups));
            let doubled: Vec<f32> = want.iter().map(|y| y + y).collect();
            bench.backend.linear(x, &[Product { added: Some(gates), ..Product::new(gate, gates) }]).unwrap();
            bench.assert_products(gates, &doubled, allowed, &what);
            let narrow = bench.output(tokens, inputs).narrow();
            bench.backend.copy(x, narrow).unwrap();
            bench.backend.linear(narrow, &[Product::new(gate, gates)]).unwrap();
            assert_same_bits(&bench.read(gates), &first, &what);
            let mixed: Vec<f32> = first.iter().zip(&second).map(|(g, u)| gated::forward(*g, *u)).collect();
            let kept = [0; 2].map(|_| bench.output(tokens, outputs).narrow());
            for kept in [None, Some((kept[0], kept[1]))] {
                let out = bench.output(tokens, outputs).narrow();
                bench.backend.gated(narrow, gate, up, kept, out).unwrap();
                bench.assert_products(out, &mixed, 4.0 * NARROWED, &what);
            }
            bench.assert_products(kept[0], &first, NARROWED, &what);
        }
    }

    #[test]
    fn eight_bits_are_multiplied_as_they_were_rounded() {
        computed_by_the_library(Compute::Fp8, |make, most| contract(Compute::Fp8, make, most));
    }

    #[test]
    fn four_bits_are_multiplied_as_they_were_rounded() {
        computed_by_the_library(Compute::NativeFp4, |make, most| contract(Compute::NativeFp4, make, most));
    }
}
