//! Products of at most 8 tokens, which take the weight straight from memory. See `kernels/few_tokens.cuh`.

use halfbyte_ops::{Matrix, Product, Result, Rows, WeightFormat};

use crate::Cuda;
use crate::launch::{Arg, DevicePtr, Grid, args};

/// Most tokens.
pub(crate) const FEW: usize = 8;
/// Most products of one launch.
pub(crate) const TOGETHER: usize = 3;

/// How the loads of a block are arranged.
#[derive(Clone, Copy, Debug)]
pub struct Loads {
    /// Times 128 inner positions that a warp asks for at once: 1, 2 or 4; int8 1 or 2.
    pub depth: usize,
    /// Most warps of a block, up to 16.
    pub warps: usize,
}

impl Default for Loads {
    fn default() -> Self {
        Loads { depth: 2, warps: 16 }
    }
}

/// Up to three products of one input, of one format.
pub(crate) fn linear(cuda: &mut Cuda, x: Rows, products: &[Product]) -> Result<()> {
    let format = products[0].matrix.weight.format;
    let (kernel, depth) = match (format, cuda.loads.depth) {
        (WeightFormat::Nvfp4, 1) => ("linear_nvfp4_8_1", 1),
        (WeightFormat::Nvfp4, 2) => ("linear_nvfp4_8_2", 2),
        (WeightFormat::Nvfp4, _) => ("linear_nvfp4_8_4", 4),
        (WeightFormat::Int8, 1) => ("linear_int8_8_1", 1),
        (WeightFormat::Int8, _) => ("linear_int8_8_2", 2),
        _ => ("linear_bf16_8_1", 1),
    };
    let mut arguments = args![cuda.pointer("linear", x.buffer)?, x.narrow, x.rows, x.columns].to_vec();
    for product in products {
        let Product { matrix, out, added } = *product;
        let (weight, to) = (cuda.weight("linear", &matrix.weight)?, cuda.rows("linear", out)?);
        arguments.extend(args![weight, bias(cuda, "linear", matrix)?, to, out.columns, added]);
    }
    arguments.resize(4 + TOGETHER * 5, Arg::from(0usize));
    let blocks = products.iter().map(|product| product.out.columns.div_ceil(16)).sum();
    let grid = grid(cuda.loads.warps, depth, x.columns, 1, blocks);
    cuda.launch(kernel, grid, &arguments)
}

/// A gated pair of one format.
pub(crate) fn gated(cuda: &mut Cuda, x: Rows, gate: Matrix, up: Matrix, out: Rows) -> Result<()> {
    let (kernel, depth) = match (gate.weight.format, cuda.loads.depth) {
        (WeightFormat::Nvfp4, 1) => ("gated_nvfp4_8_1", 1),
        (WeightFormat::Nvfp4, 2) => ("gated_nvfp4_8_2", 2),
        (WeightFormat::Nvfp4, _) => ("gated_nvfp4_8_4", 4),
        (WeightFormat::Int8, 1) => ("gated_int8_8_1", 1),
        (WeightFormat::Int8, _) => ("gated_int8_8_2", 2),
        _ => ("gated_bf16_8_1", 1),
    };
    let arguments = crate::linear::operands(cuda, "gated", x, (gate, up), out, false)?;
    // Narrow rows are written to the end of their padding.
    let blocks = out.columns.next_multiple_of(64) / 16;
    let grid = grid(cuda.loads.warps, depth, x.columns, 2, blocks);
    cuda.launch(kernel, grid, &arguments)
}

/// A matrix's bias, if it has one.
pub(crate) fn bias(cuda: &Cuda, op: &'static str, matrix: Matrix) -> Result<DevicePtr> {
    matrix.bias.map_or(Ok(DevicePtr::NULL), |bias| cuda.vector(op, bias))
}

/// Blocks whose warps have equal shares of the inner positions of `sides` products, as far as that can be.
fn grid(most: usize, depth: usize, inputs: usize, sides: usize, blocks: usize) -> Grid {
    let chunks = inputs.div_ceil(128).div_ceil(depth);
    let rounds = chunks.div_ceil(most / sides);
    // The kernel's last part wants four warps.
    let warps = chunks.div_ceil(rounds).max(4 / sides) * sides;
    // The sums of each warp, 16 by 8.
    Grid { shared: (warps * 128 * 4) as u32, ..Grid::line(blocks, (warps * 32) as u32) }
}
