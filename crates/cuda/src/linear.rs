//! Products of rows and weights: which kernel for how many tokens. See `ops::linear`, `kernels/product.cuh`.

use halfbyte_ops::{Matrix, Product, Result, Rows, WeightFormat, linear};

use crate::launch::{DevicePtr, Grid, args};
use crate::{Cuda, library};

/// Most tokens of the kernels that take the weight straight from memory, 16 outputs a block.
const FEW: usize = 8;
/// Most tokens that blocks of 32 are launched for, and not of 128.
const SOME: usize = 64;
/// Outputs of a block of the kernels for many tokens.
const OUTPUTS: usize = 128;

pub(crate) fn forward(cuda: &mut Cuda, x: Rows, products: &[Product]) -> Result<()> {
    linear::check_shapes(x, products)?;
    for product in products {
        if library::takes(cuda, x.rows, product.matrix.weight.format) {
            library::linear(cuda, x, product)?;
            continue;
        }
        let kernels = match product.matrix.weight.format {
            WeightFormat::F32 => ["linear_f32"; 3],
            WeightFormat::Bf16 => ["linear_bf16_8", "linear_bf16_32", "linear_bf16_128"],
            WeightFormat::Int8 => ["linear_int8_8", "linear_int8_32", "linear_int8_128"],
            WeightFormat::Nvfp4 => ["linear_nvfp4_8", "linear_nvfp4_32", "linear_nvfp4_128"],
        };
        launch(cuda, "linear", kernels, x, (product.matrix, None), product.out, product.added)?;
    }
    Ok(())
}

/// One product, or the two of a gated pair, by the kernel of `kernels` for few, some and many tokens.
pub(crate) fn launch(
    cuda: &mut Cuda,
    op: &'static str,
    kernels: [&'static str; 3],
    x: Rows,
    (matrix, up): (Matrix, Option<Matrix>),
    out: Rows,
    added: bool,
) -> Result<()> {
    let bias = |matrix: Matrix| matrix.bias.map_or(Ok(DevicePtr::NULL), |bias| cuda.vector(op, bias));
    let second = up.unwrap_or(matrix);
    let (tokens, outputs, inputs) = (x.rows, matrix.weight.rows, x.columns);
    let (from, to) = (cuda.pointer(op, x.buffer)?, cuda.pointer(op, out.buffer)?);
    let (weight, up_weight) = (cuda.weight(op, &matrix.weight)?, cuda.weight(op, &second.weight)?);
    let arguments = args![
        from,
        x.narrow,
        weight,
        up_weight,
        bias(matrix)?,
        bias(second)?,
        to,
        out.narrow,
        added,
        tokens,
        outputs,
        inputs
    ];
    let gated = up.is_some();
    // Narrow rows are written to the end of their padding.
    let outputs = if gated { outputs.next_multiple_of(64) } else { outputs };
    let (kernel, grid) = if matrix.weight.format == WeightFormat::F32 {
        let blocks = (tokens.div_ceil(32) as u32, outputs.div_ceil(32) as u32, 1);
        (kernels[0], Grid { blocks, threads: (256, 1, 1), shared: 3 * 32 * 33 * 4 })
    } else if tokens <= FEW {
        // The sums of 8 warps, of one product or two.
        let shared = if gated { 2 } else { 1 } * 8 * 16 * 8 * 4;
        (kernels[0], Grid { shared, ..Grid::line(outputs.div_ceil(16), 256) })
    } else {
        let (index, rows) = if tokens <= SOME { (1, 32) } else { (2, 128) };
        let blocks =
            (tokens.div_ceil(rows) as u32, outputs.div_ceil(if gated { 64 } else { OUTPUTS }) as u32, 1);
        // Two stages of tokens and weights; then the sums, as the kernel lays them out.
        let shared = (2 * (rows + OUTPUTS) * 128).max(rows * 136 * 4) as u32;
        (kernels[index], Grid { blocks, threads: (256, 1, 1), shared })
    };
    cuda.launch(kernel, grid, arguments)
}
