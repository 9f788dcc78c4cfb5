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
    let Some((gates, ups)) = kept else {
        let kernels = match gate.weight.format {
            of if library::takes(cuda, x.rows, of) => return library::gated(cuda, x, gate, up, out),
            of if of != WeightFormat::F32 && x.rows <= FEW => {
                if one_token::gated(cuda, Token::Plain(x), gate, up, out)? {
                    return Ok(());
                }
                return few_tokens::gated(cuda, x, gate, up, out);
            }
            WeightFormat::F32 => ["gated_f32"; 2],
            WeightFormat::Bf16 => ["gated_bf16_32", "gated_bf16_128"],
            WeightFormat::Int8 => ["gated_int8_32", "gated_int8_128"],
            WeightFormat::Nvfp4 => ["gated_nvfp4_32", "gated_nvfp4_128"],
        };
        return linear::launch(cuda, OP, kernels, x, (gate, Some(up)), out, false);
    };
    linear::forward(cuda, x, &[Product::new(gate, gates), Product::new(up, ups)])?;
    let products = [cuda.rows(OP, gates)?, cuda.rows(OP, ups)?];
    mix(cuda, products, [DevicePtr::NULL; 2], out, 0..out.columns)
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
    let ours = kept.is_none() && !library::takes(cuda, norm.x.rows, gate.weight.format);
    if ours && one_token::gated(cuda, Token::Normed(norm), gate, up, out)? {
        return Ok(());
    }
    rms_norm::forward(cuda, norm.x, norm.gain, norm.eps, norm.out)?;
    forward(cuda, norm.out, gate, up, kept, out)
}

/// What comes of both products of these columns; biases where they are not in them.
pub(crate) fn mix(
    cuda: &mut Cuda,
    [gate, up]: [DevicePtr; 2],
    [gate_bias, up_bias]: [DevicePtr; 2],
    out: Rows,
    of: Range<usize>,
) -> Result<()> {
    let to = cuda.pointer(OP, out.buffer)?;
    let arguments =
        args![gate, up, gate_bias, up_bias, to, out.narrow, out.columns, of.start, of.end - of.start];
    cuda.launch("gated", Grid::line(out.rows, 256), arguments)
}
