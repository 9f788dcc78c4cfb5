//! Products of one token, and of the norm of one, in a chain of kernels. See `kernels/one_token.cuh`.

use halfbyte_ops::{Buffer, Matrix, Norm, Product, Result, Rows, WeightFormat, rms_norm};

use crate::Cuda;
use crate::few_tokens::{TOGETHER, bias};
use crate::launch::{Arg, DevicePtr, Grid, args};

/// Warps of a block, and fewer where its shared memory would not do.
const WARPS: [usize; 3] = [12, 8, 4];
/// Bytes of a tile, and how many of them a warp has under way.
const TILE: usize = 1024 + 128;
const TILES: usize = 6;

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
            Token::Normed(Norm { x, out, .. }) => {
                let mut outs = outs.into_iter().chain([out]);
                x.rows == 1 && out.narrow && outs.all(|out| apart(x.buffer, out.buffer))
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

    /// What kernels are given, see `TOKEN` in `kernels/one_token.cuh`.
    fn arguments(self, cuda: &Cuda, op: &'static str) -> Result<Vec<Arg>> {
        Ok(match self {
            Token::Plain(x) => {
                let from = cuda.pointer(op, x.buffer)?;
                args![from, x.narrow, x.columns, DevicePtr::NULL, 0.0f32, DevicePtr::NULL].to_vec()
            }
            Token::Normed(Norm { x, gain, eps, out }) => {
                rms_norm::check_shapes(x, gain, out)?;
                let (from, to) = (cuda.rows(op, x)?, cuda.pointer(op, out.buffer)?);
                args![from, false, x.columns, cuda.vector(op, gain)?, eps, to].to_vec()
            }
        })
    }

    /// A block for each multiprocessor that gets one of `units`; none where shared memory does not do.
    fn grid(self, cuda: &Cuda, format: WeightFormat, units: usize, sides: usize) -> Option<Grid> {
        let tile = match format {
            WeightFormat::Nvfp4 => 512,
            WeightFormat::Int8 => 256,
            _ => 128,
        };
        let properties = &cuda.device.properties;
        // The token as bf16 and, for its norm, as f32 behind one number.
        let token = self.inputs().next_multiple_of(tile) * 2;
        let row = if matches!(self, Token::Normed(_)) { 16 + self.inputs() * 4 } else { 0 };
        let shared = |warps: usize| warps * (TILES * TILE + sides * 512) + token + row;
        let warps = WARPS.into_iter().find(|warps| shared(*warps) <= properties.shared as usize)?;
        let blocks = units.min(properties.multiprocessors as usize);
        Some(Grid { shared: shared(warps) as u32, ..Grid::line(blocks, (warps * 32) as u32) })
    }
}

/// Up to three products of one format; false where they do not fit.
pub(crate) fn linear(cuda: &mut Cuda, token: Token, products: &[Product]) -> Result<bool> {
    let format = products[0].matrix.weight.format;
    if !token.fits(format, products.iter().map(|product| product.out)) {
        return Ok(false);
    }
    let units = |outputs: usize| products.iter().map(|product| product.out.columns.div_ceil(outputs)).sum();
    let (fours, eights): (usize, usize) = (units(4), units(8));
    // Twice as many outputs at a time take fewer instructions, where no multiprocessor gets more of them.
    let most = |units: usize| units.div_ceil(cuda.device.properties.multiprocessors as usize);
    let wide = most(eights) * 2 <= most(fours);
    let kernel = match (format, wide) {
        (WeightFormat::Nvfp4, false) => "linear_nvfp4_1x4",
        (WeightFormat::Nvfp4, true) => "linear_nvfp4_1x8",
        (WeightFormat::Int8, false) => "linear_int8_1x4",
        (WeightFormat::Int8, true) => "linear_int8_1x8",
        (_, false) => "linear_bf16_1x4",
        (_, true) => "linear_bf16_1x8",
    };
    let (units, sides) = if wide { (eights, 2) } else { (fours, 1) };
    let Some(grid) = token.grid(cuda, format, units, sides) else { return Ok(false) };
    let mut arguments = token.arguments(cuda, "linear")?;
    let own = arguments.len();
    for Product { matrix, out, added } in products {
        let (weight, to) = (cuda.weight("linear", &matrix.weight)?, cuda.rows("linear", *out)?);
        arguments.extend(args![weight, bias(cuda, "linear", *matrix)?, to, out.columns, *added]);
    }
    arguments.resize(own + TOGETHER * 5, Arg::from(0usize));
    cuda.launch_chained(kernel, grid, &arguments)?;
    Ok(true)
}

/// A gated pair of one format; false where it does not fit.
pub(crate) fn gated(cuda: &mut Cuda, token: Token, gate: Matrix, up: Matrix, out: Rows) -> Result<bool> {
    let format = gate.weight.format;
    let kernel = match format {
        WeightFormat::Nvfp4 => "gated_nvfp4_1",
        WeightFormat::Int8 => "gated_int8_1",
        _ => "gated_bf16_1",
    };
    if !token.fits(format, [out]) {
        return Ok(false);
    }
    let Some(grid) = token.grid(cuda, format, out.columns.div_ceil(4), 2) else { return Ok(false) };
    let mut arguments = token.arguments(cuda, "gated")?;
    let weights = (cuda.weight("gated", &gate.weight)?, cuda.weight("gated", &up.weight)?);
    let biases = (bias(cuda, "gated", gate)?, bias(cuda, "gated", up)?);
    let to = cuda.pointer("gated", out.buffer)?;
    arguments.extend(args![weights.0, weights.1, biases.0, biases.1, to, out.narrow, out.columns]);
    cuda.launch_chained(kernel, grid, &arguments)?;
    Ok(true)
}
