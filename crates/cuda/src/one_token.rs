//! Products of one token, and of the norm of one, as stages of a chain. See `kernels/one_token.cuh`.

use halfbyte_ops::{Buffer, Matrix, Norm, Product, Result, Rows, WeightFormat, rms_norm};

use crate::Cuda;
use crate::chain::{Kind, Stage, WARPS};
use crate::few_tokens::{TOGETHER, bias};
use crate::launch::DevicePtr;
use crate::weight;

/// Outputs of a unit.
const UNIT: usize = 4;

/// A token as its products take it: as it lies there, or by way of a norm.
#[derive(Clone, Copy)]
pub(crate) enum Token {
    Plain(Rows),
    Normed(Norm),
}

impl Token {
    /// Whether kernels for one token take it: its norm is written while others read the token, and products are too.
    fn fits(self, format: WeightFormat, outs: impl IntoIterator<Item = Rows>) -> bool {
        let apart = |a: Buffer, b: Buffer| a.offset + a.bytes <= b.offset || b.offset + b.bytes <= a.offset;
        let one = match self {
            Token::Plain(x) => x.rows == 1,
            Token::Normed(Norm { x, rounded, out, .. }) => {
                let mut outs = outs.into_iter().chain([out]);
                let plain = x.rows == 1 && !x.narrow && rounded.is_none();
                plain && out.narrow && outs.all(|out| apart(x.buffer, out.buffer))
            }
        };
        one && format != WeightFormat::F32
    }

    fn inputs(self) -> usize {
        match self {
            Token::Plain(x) => x.columns,
            Token::Normed(norm) => norm.x.columns,
        }
    }

    /// Whether it is narrow, its norm's eps, and where it, its gain and its norm are.
    fn given(self, cuda: &Cuda, op: &'static str) -> Result<(bool, f32, [DevicePtr; 3])> {
        Ok(match self {
            Token::Plain(x) => {
                (x.narrow, 0.0, [cuda.pointer(op, x.buffer)?, DevicePtr::NULL, DevicePtr::NULL])
            }
            Token::Normed(Norm { x, gain, eps, out, .. }) => {
                rms_norm::check_shapes(x, gain, out)?;
                (false, eps, [cuda.rows(op, x)?, cuda.vector(op, gain)?, cuda.pointer(op, out.buffer)?])
            }
        })
    }

    /// What a block works with: the token as bf16, four sums and a number for each of its units, and for a norm the token
    /// as f32 behind one number.
    fn work(self, cuda: &Cuda, format: WeightFormat, units: usize) -> usize {
        let tile = inner_of_tile(format);
        let row = if matches!(self, Token::Normed(_)) { 32 + self.inputs() * 4 } else { 16 };
        let own = units.div_ceil(cuda.chain_blocks()) + 1;
        self.inputs().next_multiple_of(tile) * 2 + own * 20 + WARPS * 16 + row
    }
}

/// Inner positions of a tile.
fn inner_of_tile(format: WeightFormat) -> usize {
    match format {
        WeightFormat::Nvfp4 => 512,
        WeightFormat::Int8 => 256,
        _ => 128,
    }
}

/// Products that are a stage together.
struct Together<'a> {
    op: &'static str,
    name: &'static str,
    kind: Kind,
    products: &'a [Product],
    /// The first units of the second and of the third product, and the end.
    units: [usize; 3],
}

impl Together<'_> {
    /// False where the stage does not fit.
    fn put_down(&self, cuda: &mut Cuda, token: Token) -> Result<bool> {
        let Together { op, products, units: [second, third, units], .. } = *self;
        let format = products[0].matrix.weight.format;
        let work = token.work(cuda, format, units);
        if !token.fits(format, products.iter().map(|product| product.out)) || !cuda.chain_takes(work) {
            return Ok(false);
        }
        let (narrow, eps, mut places) = {
            let (narrow, eps, places) = token.given(cuda, op)?;
            (narrow, eps, places.to_vec())
        };
        let each = |of: &dyn Fn(&Product) -> Result<DevicePtr>| -> Result<[DevicePtr; TOGETHER]> {
            let mut all = [DevicePtr::NULL; TOGETHER];
            for (place, product) in all.iter_mut().zip(products) {
                *place = of(product)?;
            }
            Ok(all)
        };
        places.extend(each(&|product| cuda.weight(op, &product.matrix.weight))?);
        places.extend(each(&|product| bias(cuda, op, product.matrix))?);
        places.extend(each(&|product| cuda.pointer(op, product.out.buffer))?);
        let outputs = [0, 1, 2].map(|i| products.get(i).map_or(0, |product| product.out.columns as u32));
        let added =
            products.iter().rev().fold(0, |bits, product| bits << 1 | u32::from(product.added.is_some()));
        let tiles = token.inputs().next_multiple_of(64).div_ceil(inner_of_tile(format));
        let share = units / if self.kind == Kind::Gated { 2 } else { 1 } / cuda.chain_blocks();
        let numbers = [
            &[weight::code(format), token.inputs() as u32, eps.to_bits()][..],
            &outputs,
            &[second as u32, third as u32, units as u32],
            &[u32::from(narrow), u32::from(products[0].out.narrow), added],
            &[tiles as u32, (1u64 << 32).div_ceil(tiles as u64) as u32, share as u32],
        ];
        let numbers = numbers.concat();
        let stage =
            Stage { name: self.name, kind: self.kind, query: None, kernel: None, numbers, places, work };
        cuda.put_down(stage)?;
        Ok(true)
    }
}

/// Up to three products of one format; false where they do not fit.
pub(crate) fn linear(cuda: &mut Cuda, token: Token, products: &[Product]) -> Result<bool> {
    let name = match products[0].matrix.weight.format {
        WeightFormat::Nvfp4 => "linear_nvfp4_1",
        WeightFormat::Int8 => "linear_int8_1",
        _ => "linear_bf16_1",
    };
    for product in products {
        cuda.rows("linear", product.out)?;
    }
    let mut units = 0;
    let ends = [0, 1, 2].map(|i| {
        units += products.get(i).map_or(0, |product| product.out.columns.div_ceil(UNIT));
        units
    });
    Together { op: "linear", name, kind: Kind::Linear, products, units: ends }.put_down(cuda, token)
}

/// A gated pair of one format; false where it does not fit.
pub(crate) fn gated(cuda: &mut Cuda, token: Token, gate: Matrix, up: Matrix, out: Rows) -> Result<bool> {
    let name = match gate.weight.format {
        WeightFormat::Nvfp4 => "gated_nvfp4_1",
        WeightFormat::Int8 => "gated_int8_1",
        _ => "gated_bf16_1",
    };
    let products = [gate, up].map(|matrix| Product::new(matrix, out));
    let units = [0, 0, out.columns.div_ceil(UNIT) * 2];
    Together { op: "gated", name, kind: Kind::Gated, products: &products, units }.put_down(cuda, token)
}
