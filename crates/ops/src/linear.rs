//! y[t,n] = s * dot(x'[t,:], w[n,:]) + b[n],  the canonical dot of `crate::dot`.
//! x' is x rounded to bf16, or x itself for an f32 weight; s is an NVFP4 tensor's own scale.

use crate::dot::{dot, rounded};
use crate::error::{Result, check};
use crate::testing::{Bench, assert_same_bits, numbers};
use crate::{Backend, Matrix, Product, Rows, WeightFormat};

/// The shapes that fit.
pub fn check_shapes(x: Rows, products: &[Product]) -> Result<()> {
    for Product { matrix: Matrix { weight, bias }, out, .. } in products {
        let fits = weight.columns == x.columns
            && !(x.narrow && weight.format == WeightFormat::F32)
            && !out.narrow
            && (out.rows, out.columns) == (x.rows, weight.rows)
            && bias.is_none_or(|bias| bias.len == weight.rows)
            && weight.buffer.bytes == weight.format.bytes(weight.rows, weight.columns);
        check(fits, "linear", || {
            format!(
                "{}x {}x{}, {} weight {}x{}, bias {:?}, out {}x{}",
                if x.narrow { "narrow " } else { "" },
                x.rows,
                x.columns,
                weight.format.name(),
                weight.rows,
                weight.columns,
                bias.map(|b| b.len),
                out.rows,
                out.columns
            )
        })?;
    }
    Ok(())
}

/// The plain product, one token after the other.
pub fn forward(
    x: &[f32],
    weight: &[f32],
    columns: usize,
    scale: f32,
    bias: Option<&[f32]>,
    format: WeightFormat,
) -> Vec<f32> {
    let mut out = Vec::new();
    for x in x.chunks(columns) {
        let x = if format == WeightFormat::F32 { x.to_vec() } else { rounded(x) };
        for (n, w) in weight.chunks(columns).enumerate() {
            let y = dot(&x, w) * scale;
            out.push(bias.map_or(y, |bias| y + bias[n]));
        }
    }
    out
}

/// What every backend must give, for few and many tokens, odd sizes, every format.
pub fn contract<B: Backend>(make: impl Fn(usize) -> B) {
    use WeightFormat::{Bf16, F32, Int8, Nvfp4};
    let shapes = [(1, 48, 64), (1, 17, 576), (2, 33, 160), (5, 64, 96), (16, 40, 128), (70, 100, 200)];
    for format in [F32, Bf16, Int8, Nvfp4] {
        for (tokens, outputs, inputs) in shapes {
            let mut bench = Bench::new(&make);
            let x = numbers(1, tokens * inputs);
            let w = numbers(2, outputs * inputs);
            let other = numbers(3, 24 * inputs);
            let bias = numbers(4, outputs);
            let (weight, held, scale) = bench.weight(format, outputs, inputs, &w);
            let (weight2, held2, scale2) = bench.weight(format, 24, inputs, &other);
            let want = forward(&x, &held, inputs, scale, Some(&bias), format);
            let want2 = forward(&x, &held2, inputs, scale2, None, format);
            let x = bench.rows(tokens, inputs, &x);
            let bias = Some(bench.vector(&bias));
            let out = bench.output(tokens, outputs);
            let out2 = bench.output(tokens, 24);
            let products = [
                Product::new(Matrix { weight, bias }, out),
                Product::new(Matrix { weight: weight2, bias: None }, out2),
            ];
            bench.backend.linear(x, &products).unwrap();
            let what = format!("{} {tokens}x{outputs}x{inputs}", format.name());
            assert_same_bits(&bench.read(out), &want, &what);
            assert_same_bits(&bench.read(out2), &want2, &what);
            let sums: Vec<f32> = want.iter().map(|y| y + y).collect();
            bench.backend.linear(x, &[Product { added: true, ..products[0] }]).unwrap();
            assert_same_bits(&bench.read(out), &sums, &what);
            check_narrow(&mut bench, x, products[0]);
        }
    }
}

/// Narrow rows give what the same rows give in f32; a weight in f32 does not take them.
fn check_narrow<B: Backend>(bench: &mut Bench<B>, x: Rows, product: Product) {
    let gain = bench.vector(&vec![1.0; x.columns]);
    let wide = bench.output(x.rows, x.columns);
    let narrow = bench.output(x.rows, x.columns).narrow();
    bench.backend.rms_norm(x, gain, 1e-6, narrow).unwrap();
    if product.matrix.weight.format == WeightFormat::F32 {
        assert!(bench.backend.linear(narrow, &[product]).is_err());
        return;
    }
    bench.backend.rms_norm(x, gain, 1e-6, wide).unwrap();
    bench.backend.linear(wide, &[product]).unwrap();
    let want = bench.read(product.out);
    bench.backend.linear(narrow, &[product]).unwrap();
    assert_same_bits(&bench.read(product.out), &want, "narrow input");
}
