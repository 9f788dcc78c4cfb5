//! Products of rows and weights: which kernel for how many tokens. See `ops::linear`, `kernels/product.cuh`.

use halfbyte_ops::{Matrix, Norm, Product, Result, Rows, Weight, WeightFormat, linear};

use crate::few_tokens::{FEW, TOGETHER, bias};
use crate::launch::{Arg, Grid, args};
use crate::one_token::Token;
use crate::{Cuda, few_tokens, gated, library, one_token, rms_norm};

/// Most tokens that blocks of 32 are launched for, and not of 128.
const SOME: usize = 64;
/// Outputs of a block.
const OUTPUTS: usize = 128;

pub(crate) fn forward(cuda: &mut Cuda, x: Rows, products: &[Product]) -> Result<()> {
    linear::check_shapes(x, products)?;
    let format = |product: &Product| product.matrix.weight.format;
    for alike in products.chunk_by(|a, b| format(a) == format(b)) {
        if library::takes(cuda, x.rows, format(&alike[0])) {
            let weights: Vec<&Weight> = alike.iter().map(|product| &product.matrix.weight).collect();
            library::ahead(cuda, "linear", &weights)?;
            alike.iter().try_for_each(|product| library::linear(cuda, x, product))?;
            continue;
        }
        alike.iter().try_for_each(|product| cuda.rows("linear", product.out).map(|_| ()))?;
        linear::bring_added(cuda, alike)?;
        let kernels = match format(&alike[0]) {
            of if of != WeightFormat::F32 && x.rows <= FEW => {
                for some in alike.chunks(TOGETHER) {
                    if !one_token::linear(cuda, Token::Plain(x), some)? {
                        few_tokens::linear(cuda, x, some)?;
                    }
                }
                continue;
            }
            WeightFormat::F32 => ["linear_f32"; 2],
            WeightFormat::Bf16 => ["linear_bf16_32", "linear_bf16_128"],
            WeightFormat::Int8 => ["linear_int8_32", "linear_int8_128"],
            WeightFormat::Nvfp4 => ["linear_nvfp4_32", "linear_nvfp4_128"],
        };
        for Product { matrix, out, added } in alike {
            launch(cuda, "linear", kernels, x, (*matrix, None), *out, added.is_some())?;
        }
    }
    Ok(())
}

/// At once where that is one launch.
pub(crate) fn normed(cuda: &mut Cuda, norm: Norm, products: &[Product]) -> Result<()> {
    linear::check_shapes(norm.out, products)?;
    let format = |product: &Product| product.matrix.weight.format;
    let alike = (1..=TOGETHER).contains(&products.len())
        && products.iter().all(|product| format(product) == format(&products[0]))
        && products.iter().all(|product| product.added.is_none() && !product.out.narrow)
        && !library::takes(cuda, norm.x.rows, format(&products[0]));
    if alike && one_token::linear(cuda, Token::Normed(norm), products)? {
        return Ok(());
    }
    rms_norm::forward(cuda, norm)?;
    forward(cuda, norm.out, products)
}

/// What kernels are given, see `OPERANDS` in `kernels/product.cuh`.
pub(crate) fn operands(
    cuda: &Cuda,
    op: &'static str,
    x: Rows,
    (matrix, second): (Matrix, Matrix),
    out: Rows,
    added: bool,
) -> Result<Vec<Arg>> {
    let (from, to) = (cuda.pointer(op, x.buffer)?, cuda.pointer(op, out.buffer)?);
    let (weight, up_weight) = (cuda.weight(op, &matrix.weight)?, cuda.weight(op, &second.weight)?);
    let biases = (bias(cuda, op, matrix)?, bias(cuda, op, second)?);
    let arguments = args![
        from,
        x.narrow,
        weight,
        up_weight,
        biases.0,
        biases.1,
        to,
        out.narrow,
        added,
        x.rows,
        matrix.weight.rows,
        x.columns
    ];
    Ok(arguments.to_vec())
}

/// The second matrix of a gated pair, and where the products are kept.
pub(crate) type Partner = (Matrix, Option<(Rows, Rows)>);

/// One product, or the two of a gated pair, by the kernel of `kernels` for some and for many tokens.
pub(crate) fn launch(
    cuda: &mut Cuda,
    op: &'static str,
    kernels: [&'static str; 2],
    x: Rows,
    (matrix, partner): (Matrix, Option<Partner>),
    out: Rows,
    added: bool,
) -> Result<()> {
    let up = partner.map_or(matrix, |(up, _)| up);
    let mut arguments = operands(cuda, op, x, (matrix, up), out, added)?;
    if let Some((_, kept)) = partner {
        let [gate, up] = gated::places(cuda, kept)?;
        arguments.extend(args![gate, up]);
    }
    let (tokens, gated) = (x.rows, partner.is_some());
    // Narrow rows are written to the end of their padding.
    let outputs = if gated { out.columns.next_multiple_of(64) } else { out.columns };
    let (kernel, grid) = if matrix.weight.format == WeightFormat::F32 {
        let blocks = (tokens.div_ceil(32) as u32, outputs.div_ceil(32) as u32, 1);
        (kernels[0], Grid { blocks, threads: (256, 1, 1), shared: 3 * 32 * 33 * 4 })
    } else {
        let (index, rows) = if tokens <= SOME { (0, 32) } else { (1, 128) };
        let blocks =
            (tokens.div_ceil(rows) as u32, outputs.div_ceil(if gated { 64 } else { OUTPUTS }) as u32, 1);
        // Two stages of tokens and weights; then the sums, as the kernel lays them out.
        let shared = (2 * (rows + OUTPUTS) * 128).max(rows * 136 * 4) as u32;
        (kernels[index], Grid { blocks, threads: (256, 1, 1), shared })
    };
    cuda.launch(kernel, grid, &arguments)
}
