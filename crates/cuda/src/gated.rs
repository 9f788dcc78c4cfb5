//! Two products and their mix, at once where nobody keeps them. See `ops::gated`.

use std::ops::Range;

use halfbyte_ops::{Matrix, Norm, Product, Result, Rows, WeightFormat, gated};

use crate::few_tokens::FEW;
use crate::launch::{DevicePtr, Grid, args};
use crate::one_token::Token;
use crate::{Cuda, few_tokens, library, linear, one_token, rms_norm};

const OP: &str = "gated";

pub(crate) fn forward(
    cuda: &mut Cuda,
    x: Rows,
    gate: Matrix,
    up: Matrix,
    kept: Option<(Rows, Rows)>,
    out: Rows,
) -> Result<()> {
    gated::check_shapes(x, gate, up, kept, out)?;
    let (format, columns) = (gate.weight.format, out.columns);
    if let Some((gates, ups)) = kept.filter(|kept| !kept.0.narrow) {
        linear::forward(cuda, x, &[Product::new(gate, gates), Product::new(up, ups)])?;
        let arguments = args![cuda.rows(OP, gates)?, cuda.rows(OP, ups)?, cuda.pointer(OP, out.buffer)?];
        let grid = Grid::line(out.rows, 256);
        return cuda.launch("gated", grid, &[arguments, args![out.narrow, columns]].concat());
    }
    if out.narrow && library::takes(cuda, x.rows, format) {
        return library::gated(cuda, x, gate, up, kept, out);
    }
    if format != WeightFormat::F32 && x.rows <= FEW && kept.is_none() {
        if one_token::gated(cuda, Token::Plain(x), gate, up, out)? {
            return Ok(());
        }
        return few_tokens::gated(cuda, x, gate, up, out);
    }
    let kernels = match format {
        WeightFormat::F32 => ["gated_f32"; 2],
        WeightFormat::Bf16 => ["gated_bf16_32", "gated_bf16_128"],
        WeightFormat::Int8 => ["gated_int8_32", "gated_int8_128"],
        WeightFormat::Nvfp4 => ["gated_nvfp4_32", "gated_nvfp4_128"],
    };
    linear::launch(cuda, OP, kernels, x, (gate, Some((up, kept))), out, false)
}

/// At once where that is one launch.
pub(crate) fn normed(
    cuda: &mut Cuda,
    norm: Norm,
    gate: Matrix,
    up: Matrix,
    kept: Option<(Rows, Rows)>,
    out: Rows,
) -> Result<()> {
    gated::check_shapes(norm.out, gate, up, kept, out)?;
    let ours = kept.is_none() && !(out.narrow && library::takes(cuda, norm.x.rows, gate.weight.format));
    if ours && one_token::gated(cuda, Token::Normed(norm), gate, up, out)? {
        return Ok(());
    }
    rms_norm::forward(cuda, norm)?;
    forward(cuda, norm.out, gate, up, kept, out)
}

/// Where narrow products are kept; nowhere, where they are not.
pub(crate) fn places(cuda: &Cuda, kept: Option<(Rows, Rows)>) -> Result<[DevicePtr; 2]> {
    let place = |rows: Rows| cuda.pointer(OP, rows.buffer);
    kept.map_or(Ok([DevicePtr::NULL; 2]), |(gate, up)| Ok([place(gate)?, place(up)?]))
}

/// Both narrow products of some columns, as they lie; scales and biases are those that are not in them.
pub(crate) struct Products {
    pub(crate) gate: DevicePtr,
    pub(crate) up: DevicePtr,
    /// Values from one row to the next, of both.
    pub(crate) stride: usize,
    pub(crate) scales: [DevicePtr; 2],
    pub(crate) biases: [DevicePtr; 2],
}

/// What comes of both products of these columns; with biases they become whole where they lie.
pub(crate) fn mix(cuda: &mut Cuda, products: &Products, out: Rows, of: Range<usize>) -> Result<()> {
    let to = cuda.pointer(OP, out.buffer)?;
    let Products { gate, up, stride, scales, biases } = *products;
    let given = args![gate, up, stride, scales[0], scales[1], biases[0], biases[1]];
    let results = args![to, out.columns, of.start, of.len()];
    cuda.launch("gated_narrow", Grid::line(out.rows, 256), &[given, results].concat())
}
