//! Gradients of products: of their input, of their weight, and of a gated pair behind which one stands.

use halfbyte_ops::{OutputGradient, Result, Rows, Weight, WeightFormat, gated as ops_gated, linear};

use crate::launch::{Arg, Grid, args};
use crate::{Cuda, library};

/// Rows and columns of a block's results on tensor cores, and with nothing rounded.
const SIDE: usize = 128;
const EXACT_SIDE: usize = 32;

/// Two stages of two operands; then the sums, as the kernel lays them out.
const SHARED: u32 = 128 * 136 * 4;

pub(crate) fn linear_input(cuda: &mut Cuda, dy: Rows, weight: &Weight, dx: Rows, added: bool) -> Result<()> {
    const OP: &str = "linear_input_gradient";
    linear::check_input_gradient(dy, weight, dx)?;
    if library::takes(cuda, dy.rows, weight.format) {
        return library::input_gradient(cuda, dy, weight, dx, added);
    }
    let kernel = match weight.format {
        WeightFormat::F32 => "input_gradient_f32",
        WeightFormat::Bf16 => "input_gradient_bf16",
        WeightFormat::Int8 => "input_gradient_int8",
        WeightFormat::Nvfp4 => "input_gradient_nvfp4",
    };
    let results = args![cuda.rows(OP, dx)?, added];
    by_weight(cuda, (OP, kernel), dy, weight, dx.columns, results)
}

/// Summed at once where our own kernels can, else one after the other.
pub(crate) fn linear_inputs(cuda: &mut Cuda, all: &[OutputGradient], dx: Rows) -> Result<()> {
    all.iter().try_for_each(|of| linear::check_input_gradient(of.dy, &of.weight, dx))?;
    let takes = |of: &OutputGradient| of.dy.narrow && library::takes(cuda, dx.rows, of.weight.format);
    if all.iter().all(takes) && library::sums(cuda, all.len()) {
        return library::input_gradients(cuda, all, dx);
    }
    for (i, OutputGradient { dy, weight, luck }) in all.iter().enumerate() {
        cuda.luck = *luck;
        linear_input(cuda, *dy, weight, dx, i > 0)?;
    }
    Ok(())
}

pub(crate) fn gated(
    cuda: &mut Cuda,
    dy: Rows,
    down: &Weight,
    kept: (Rows, Rows),
    dgate: Rows,
    dup: Rows,
) -> Result<()> {
    const OP: &str = "gated_gradient";
    ops_gated::check_gradient(dy, down, kept, dgate, dup)?;
    let narrow = [kept.0, kept.1, dgate, dup].iter().all(|rows| rows.narrow);
    if narrow && library::takes(cuda, dy.rows, down.format) {
        return library::gated_gradient(cuda, dy, down, kept, [dgate, dup]);
    }
    let kernel = match down.format {
        WeightFormat::F32 => "gated_gradient_f32",
        WeightFormat::Bf16 => "gated_gradient_bf16",
        WeightFormat::Int8 => "gated_gradient_int8",
        WeightFormat::Nvfp4 => "gated_gradient_nvfp4",
    };
    let (to_gate, to_up) = (cuda.pointer(OP, dgate.buffer)?, cuda.pointer(OP, dup.buffer)?);
    let (gate, up) = (cuda.pointer(OP, kept.0.buffer)?, cuda.pointer(OP, kept.1.buffer)?);
    let results = args![to_gate, to_up, gate, up, kept.0.narrow, dgate.narrow, dup.narrow];
    // Narrow rows are written to the end of their padding.
    by_weight(cuda, (OP, kernel), dy, down, dgate.columns.next_multiple_of(64), results)
}

/// A product of dy and a weight; `columns` of results are written.
fn by_weight(
    cuda: &mut Cuda,
    (op, kernel): (&'static str, &'static str),
    dy: Rows,
    weight: &Weight,
    columns: usize,
    results: &[Arg],
) -> Result<()> {
    let from = cuda.pointer(op, dy.buffer)?;
    let of = cuda.weight(op, weight)?;
    let operands = args![from, dy.narrow, of, dy.rows, weight.rows, weight.columns];
    let grid = grid(weight.format == WeightFormat::F32, dy.rows, columns);
    cuda.launch(kernel, grid, &[operands, results].concat())
}

pub(crate) fn linear_weight(
    cuda: &mut Cuda,
    dy: Rows,
    x: Rows,
    exact: bool,
    first: usize,
    dw: Rows,
) -> Result<()> {
    const OP: &str = "linear_weight_gradient";
    linear::check_weight_gradient(dy, x, exact, first, dw)?;
    let format = if exact { WeightFormat::F32 } else { WeightFormat::Bf16 };
    if library::takes(cuda, dy.rows, format) {
        return library::weight_gradient(cuda, dy, x, first, dw);
    }
    let (from, by, to) = (cuda.pointer(OP, dy.buffer)?, cuda.pointer(OP, x.buffer)?, cuda.rows(OP, dw)?);
    let kernel = if exact { "weight_gradient_f32" } else { "weight_gradient_bf16" };
    let (tokens, outputs, inputs) = (dy.rows, dy.columns, x.columns);
    let arguments = args![from, dy.narrow, by, x.narrow, tokens, outputs, inputs, first, to, dw.rows];
    cuda.launch(kernel, grid(exact, dw.rows, inputs), arguments)
}

fn grid(exact: bool, rows: usize, columns: usize) -> Grid {
    let (side, shared) = if exact { (EXACT_SIDE, 0) } else { (SIDE, SHARED) };
    let blocks = (rows.div_ceil(side) as u32, columns.div_ceil(side) as u32, 1);
    Grid { blocks, threads: (256, 1, 1), shared }
}
