//! Two products and their mix, at once where nobody keeps them. See `ops::gated`.

use halfbyte_ops::{Matrix, Product, Result, Rows, WeightFormat, gated};

use crate::launch::{Grid, args};
use crate::{Cuda, linear};

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
            WeightFormat::F32 => ["gated_f32"; 3],
            WeightFormat::Bf16 => ["gated_bf16_8", "gated_bf16_32", "gated_bf16_128"],
            WeightFormat::Int8 => ["gated_int8_8", "gated_int8_32", "gated_int8_128"],
            WeightFormat::Nvfp4 => ["gated_nvfp4_8", "gated_nvfp4_32", "gated_nvfp4_128"],
        };
        return linear::launch(cuda, "gated", kernels, x, (gate, Some(up)), out, false);
    };
    linear::forward(cuda, x, &[Product::new(gate, gates), Product::new(up, ups)])?;
    let (from, with) = (cuda.rows("gated", gates)?, cuda.rows("gated", ups)?);
    let to = cuda.pointer("gated", out.buffer)?;
    cuda.launch("gated", Grid::line(out.rows, 256), args![from, with, to, out.narrow, out.columns])
}
