//! Products of at most 8 tokens, which take the weight straight from memory. See `kernels/few_tokens.cuh`.

use halfbyte_ops::{Matrix, Product, Result, Rows, WeightFormat};

use crate::Cuda;
use crate::launch::{Arg, DevicePtr, Grid, args};

/// Most tokens.
pub(crate) const FEW: usize = 8;
/// Most products of one launch.
pub(crate) const TOGETHER: usize = 3;

/// Most warps of a block. Measured on an H200 at 4, 8 and 16 warps that have 128, 256 or 512 positions under way
/// each: many warps with few loads won for every matrix of a layer.
const WARPS: usize = 16;

/// Up to three products of one input, of one format.
pub(crate) fn linear(cuda: &mut Cuda, x: Rows, products: &[Product]) -> Result<()> {
    let kernel = match products[0].matrix.weight.format {
        WeightFormat::Nvfp4 => "linear_nvfp4_8",
        WeightFormat::Int8 => "linear_int8_8",
        _ => "linear_bf16_8",
    };
    let mut arguments = args![cuda.pointer("linear", x.buffer)?, x.narrow, x.rows, x.columns].to_vec();
    for product in products {
        let Product { matrix, out, added } = *product;
        let (weight, to) = (cuda.weight("linear", &matrix.weight)?, cuda.rows("linear", out)?);
        arguments.extend(args![weight, bias(cuda, "linear", matrix)?, to, out.columns, added.is_some()]);
    }
    arguments.resize(4 + TOGETHER * 5, Arg::from(0usize));
    let blocks = products.iter().map(|product| product.out.columns.div_ceil(16)).sum();
    cuda.launch(kernel, grid(x.columns, 1, blocks), &arguments)
}

/// A gated pair of one format.
pub(crate) fn gated(cuda: &mut Cuda, x: Rows, gate: Matrix, up: Matrix, out: Rows) -> Result<()> {
    let kernel = match gate.weight.format {
        WeightFormat::Nvfp4 => "gated_nvfp4_8",
        WeightFormat::Int8 => "gated_int8_8",
        _ => "gated_bf16_8",
    };
    let arguments = crate::linear::operands(cuda, "gated", x, (gate, up), out, false)?;
    // Narrow rows are written to the end of their padding.
    let blocks = out.columns.next_multiple_of(64) / 16;
    cuda.launch(kernel, grid(x.columns, 2, blocks), &arguments)
}

/// A matrix's bias, if it has one.
pub(crate) fn bias(cuda: &Cuda, op: &'static str, matrix: Matrix) -> Result<DevicePtr> {
    matrix.bias.map_or(Ok(DevicePtr::NULL), |bias| cuda.vector(op, bias))
}

/// Blocks whose warps have equal shares of the inner positions of `sides` products, as far as that can be.
fn grid(inputs: usize, sides: usize, blocks: usize) -> Grid {
    let chunks = inputs.div_ceil(128);
    let rounds = chunks.div_ceil(WARPS / sides);
    // The kernel's last part wants four warps.
    let warps = chunks.div_ceil(rounds).max(4 / sides) * sides;
    // The sums of each warp, 16 by 8.
    Grid { shared: (warps * 128 * 4) as u32, ..Grid::line(blocks, (warps * 32) as u32) }
}
