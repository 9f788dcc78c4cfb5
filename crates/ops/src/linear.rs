//! y[t,n] = s * dot(x'[t,:], w[n,:]) + b[n],  the canonical dot of `crate::dot`.
//! dx[t,k] = s * dot_n(dy'[t,:], w[:,k]),  dw[n,k] = dot_t(dy'[:,n], x'[:,k])
//! x' is x rounded to bf16, or x itself for an f32 weight; s is an NVFP4 tensor's own scale.

use halfbyte_formats::state::draw::{Draws, Purpose};

use crate::dot::{dot, rounded};
use crate::error::{Result, check};
use crate::tensor::UNIT;
use crate::testing::{Bench, NARROWED, SUMMED, assert_same_bits, numbers, rounded_rows};
use crate::{Backend, Matrix, Norm, Product, Rows, Weight, WeightFormat};

/// What decides random roundings in the gradients of a product: see [`Backend::round_gradients`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Luck {
    /// Of the run.
    pub seed: u64,
    /// Number of the batch, counted over all steps.
    pub batch: u64,
    /// Number of the weight.
    pub tensor: u64,
}

impl Luck {
    /// The random words for a purpose.
    pub fn draws(&self, purpose: Purpose) -> Draws {
        Draws::new(self.seed, self.batch, self.tensor, purpose)
    }
}

/// The gradient of what came out of a product.
#[derive(Clone, Copy, Debug)]
pub struct OutputGradient {
    /// As products take it.
    pub dy: Rows,
    /// What was multiplied by.
    pub weight: Weight,
    /// What decides its roundings.
    pub luck: Option<Luck>,
}

/// The shapes that fit.
pub fn check_shapes(x: Rows, products: &[Product]) -> Result<()> {
    for Product { matrix: Matrix { weight, bias }, out, added } in products {
        let fits = weight.columns == x.columns
            && !(x.narrow && weight.format == WeightFormat::F32)
            // Narrow results are those of the product alone.
            && !(out.narrow && (bias.is_some() || added.is_some() || !out.columns.is_multiple_of(UNIT)))
            && (out.rows, out.columns) == (x.rows, weight.rows)
            && added.is_none_or(|rows| Rows { buffer: out.buffer, ..rows } == *out)
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

/// Brings what products are added to into their places, for devices that add there.
pub fn bring_added(backend: &mut impl Backend, products: &[Product]) -> Result<()> {
    let elsewhere = |product: &&Product| product.added.is_some_and(|rows| rows != product.out);
    let mut all = products.iter().filter(elsewhere);
    all.try_for_each(|product| product.added.map_or(Ok(()), |rows| backend.copy(rows, product.out)))
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

/// The shapes that fit the input's gradient.
pub fn check_input_gradient(dy: Rows, weight: &Weight, dx: Rows) -> Result<()> {
    let fits = dy.columns == weight.rows
        && !(dy.narrow && weight.format == WeightFormat::F32)
        && dx.columns == weight.columns
        && dx.rows == dy.rows
        && (!dx.narrow || dx.columns.is_multiple_of(UNIT))
        && weight.buffer.bytes == weight.format.bytes(weight.rows, weight.columns);
    check(fits, "linear_input_gradient", || {
        format!(
            "dy {}x{}, weight {}x{}, dx {}x{}",
            dy.rows, dy.columns, weight.rows, weight.columns, dx.rows, dx.columns
        )
    })
}

/// The shapes that fit the weight's gradient.
pub fn check_weight_gradient(dy: Rows, x: Rows, exact: bool, first: usize, dw: Rows) -> Result<()> {
    let fits = dy.rows == x.rows
        && !(exact && (dy.narrow || x.narrow))
        && first.is_multiple_of(UNIT)
        && first + dw.rows <= dy.columns
        && dw.columns == x.columns
        && (!dw.narrow || dy.narrow && x.narrow && x.columns.is_multiple_of(UNIT));
    check(fits, "linear_weight_gradient", || {
        format!(
            "{}dy {}x{}, x {}x{}, dw of rows {first}.. {}x{}",
            if exact { "exact " } else { "" },
            dy.rows,
            dy.columns,
            x.rows,
            x.columns,
            dw.rows,
            dw.columns
        )
    })
}

/// dx[t,k] = s * dot_n(dy'[t,:], w[:,k])
pub fn input_gradient(
    dy: &[f32],
    weight: &[f32],
    columns: usize,
    scale: f32,
    format: WeightFormat,
) -> Vec<f32> {
    forward(dy, &transposed(weight, columns), weight.len() / columns, scale, None, format)
}

/// One token's share of a bias' gradient, added.
#[inline(always)]
pub fn bias_gradient(dy: &[f32], db: &mut [f32]) {
    for (db, dy) in db.iter_mut().zip(dy) {
        *db += dy;
    }
}

/// dw[n,k] = dot_t(dy'[:,n], x'[:,k]); nothing is rounded if `exact`.
pub fn weight_gradient(dy: &[f32], x: &[f32], tokens: usize, exact: bool) -> Vec<f32> {
    let (outputs, inputs) = (dy.len() / tokens, x.len() / tokens);
    let x = if exact { x.to_vec() } else { rounded(x) };
    let format = if exact { WeightFormat::F32 } else { WeightFormat::Bf16 };
    forward(&transposed(dy, outputs), &transposed(&x, inputs), tokens, 1.0, None, format)
}

fn transposed(x: &[f32], columns: usize) -> Vec<f32> {
    (0..columns).flat_map(|c| x.iter().skip(c).step_by(columns)).copied().collect()
}

/// What every backend must give, for few and many tokens, odd sizes, every format.
pub fn contract<B: Backend>(make: impl Fn(usize) -> B) {
    use WeightFormat::{Bf16, F32, Int8, Nvfp4};
    let small =
        [(1, 48, 64), (1, 17, 576), (2, 33, 160), (5, 64, 96), (16, 40, 128), (20, 128, 64), (70, 100, 200)];
    // More than any kernel takes at once, of each.
    let large = [(3, 20, 2100), (130, 270, 72)];
    let shapes = small.into_iter().chain(large);
    for format in [F32, Bf16, Int8, Nvfp4] {
        for (tokens, outputs, inputs) in shapes.clone() {
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
            bench.assert_products(out, &want, SUMMED, &what);
            bench.assert_products(out2, &want2, SUMMED, &what);
            let sums: Vec<f32> = want.iter().map(|y| y + y).collect();
            bench.backend.linear(x, &[Product { added: Some(out), ..products[0] }]).unwrap();
            bench.assert_products(out, &sums, SUMMED, &what);
            let (before, elsewhere) = (bench.rows(tokens, outputs, &want), bench.output(tokens, outputs));
            let product = Product { added: Some(before), out: elsewhere, ..products[0] };
            bench.backend.linear(x, &[product]).unwrap();
            bench.assert_products(elsewhere, &sums, SUMMED, &what);
            check_narrow(&mut bench, x, products[0]);
            check_narrow_results(&mut bench, x, weight);
            check_gradients(&mut bench, (tokens, outputs, inputs), weight, &held, scale);
        }
        check_one_token(&make, format);
        check_sums(&make, format);
    }
}

/// The gradient of an input that went into several products, whose weights differ in size and in scale.
fn check_sums<B: Backend>(make: &impl Fn(usize) -> B, format: WeightFormat) {
    for (tokens, inputs) in [(3, 64), (40, 33), (270, 130)] {
        let mut bench = Bench::new(make);
        let mut want: Option<Vec<f32>> = None;
        let all = [(72, 1.0), (40, 0.05), (130, 3.0)].map(|(outputs, size)| {
            let (dy, w) =
                (numbers(outputs, tokens * outputs as usize), numbers(9, outputs as usize * inputs));
            let w: Vec<f32> = w.iter().map(|w| w * size).collect();
            let (weight, held, scale) = bench.weight(format, outputs as usize, inputs, &w);
            let dx = input_gradient(&dy, &held, inputs, scale, format);
            want =
                Some(want.take().map_or(dx.clone(), |sum| sum.iter().zip(&dx).map(|(a, b)| a + b).collect()));
            let dy = bench.rows(tokens, outputs as usize, &dy);
            let dy = if format == WeightFormat::F32 { dy } else { bench.narrow(dy) };
            OutputGradient { dy, weight, luck: None }
        });
        let dx = bench.output(tokens, inputs);
        bench.backend.linear_input_gradients(&all, dx).unwrap();
        let what = format!("sums, {} {tokens}x{inputs}", format.name());
        bench.assert_products(dx, &want.unwrap_or_default(), SUMMED, &what);
        let other = bench.output(tokens, inputs + 1);
        assert!(bench.backend.linear_input_gradients(&all, other).is_err(), "{what}: another shape");
    }
}

/// One token, with more outputs than a device's parts take at once.
fn check_one_token<B: Backend>(make: &impl Fn(usize) -> B, format: WeightFormat) {
    for (outputs, inputs) in [(1100, 600), (2100, 1100), (6500, 600)] {
        let mut bench = Bench::new(make);
        let (x, w) = (numbers(1, inputs), numbers(2, outputs * inputs));
        let (weight, held, scale) = bench.weight(format, outputs, inputs, &w);
        let want = forward(&x, &held, inputs, scale, None, format);
        let (x, out) = (bench.rows(1, inputs, &x), bench.output(1, outputs));
        bench.backend.linear(x, &[Product::new(Matrix { weight, bias: None }, out)]).unwrap();
        bench.assert_products(out, &want, SUMMED, &format!("{} 1x{outputs}x{inputs}", format.name()));
    }
}

/// Narrow rows give what the same rows give in f32; a weight in f32 does not take them.
fn check_narrow<B: Backend>(bench: &mut Bench<B>, x: Rows, product: Product) {
    let gain = bench.vector(&numbers(5, x.columns));
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
    let (want_normed, out) = (bench.read(narrow), bench.output(x.rows, x.columns).narrow());
    bench.backend.normed_linear(Norm { x, rounded: None, gain, eps: 1e-6, out }, &[product]).unwrap();
    assert_same_bits(&bench.read(product.out), &want, "with its norm");
    assert_same_bits(&bench.read(out), &want_normed, "the norm beside it");
}

/// Where heads may be narrow, so may the results of products that go into them and come back.
fn check_narrow_results<B: Backend>(bench: &mut Bench<B>, x: Rows, weight: Weight) {
    let fits = weight.rows.is_multiple_of(UNIT) && weight.columns.is_multiple_of(UNIT);
    if !fits || weight.format == WeightFormat::F32 || !bench.backend.narrow_heads(x.rows, UNIT) {
        return;
    }
    let [wide, dx] = [weight.rows, weight.columns].map(|columns| bench.output(x.rows, columns));
    let [narrow, narrow_dx] =
        [weight.rows, weight.columns].map(|columns| bench.output(x.rows, columns).narrow());
    let matrix = Matrix { weight, bias: None };
    bench.backend.linear(x, &[Product::new(matrix, wide), Product::new(matrix, narrow)]).unwrap();
    bench.backend.linear_input_gradient(wide, &weight, dx, false).unwrap();
    bench.backend.linear_input_gradient(wide, &weight, narrow_dx, false).unwrap();
    for (wide, narrow) in [(wide, narrow), (dx, narrow_dx)] {
        let want = rounded_rows(&bench.read(wide));
        bench.assert_products(narrow, &want, NARROWED, "narrow results");
    }
}

fn check_gradients<B: Backend>(
    bench: &mut Bench<B>,
    (tokens, outputs, inputs): (usize, usize, usize),
    weight: Weight,
    held: &[f32],
    scale: f32,
) {
    let what = format!("gradients, {} {tokens}x{outputs}x{inputs}", weight.format.name());
    let (dy, x) = (numbers(7, tokens * outputs), numbers(8, tokens * inputs));
    let want = input_gradient(&dy, held, inputs, scale, weight.format);
    let exact = weight.format == WeightFormat::F32;
    let want_weight = weight_gradient(&dy, &x, tokens, exact);
    let (dy, x) = (bench.rows(tokens, outputs, &dy), bench.rows(tokens, inputs, &x));
    let (dx, dw) = (bench.output(tokens, inputs), bench.output(outputs, inputs));
    bench.backend.linear_input_gradient(dy, &weight, dx, false).unwrap();
    bench.assert_products(dx, &want, SUMMED, &what);
    bench.backend.linear_input_gradient(dy, &weight, dx, true).unwrap();
    bench.assert_products(dx, &want.iter().map(|x| x + x).collect::<Vec<_>>(), SUMMED, &what);
    bench.backend.linear_weight_gradient(dy, x, exact, 0, dw).unwrap();
    bench.assert_products(dw, &want_weight, SUMMED, &what);
    let first = outputs / 2 / UNIT * UNIT;
    let (part, some) = (bench.output(outputs - first, inputs), &want_weight[first * inputs..]);
    bench.backend.linear_weight_gradient(dy, x, exact, first, part).unwrap();
    bench.assert_products(part, some, SUMMED, &what);
    assert!(bench.backend.linear_weight_gradient(dy, x, exact, first + UNIT, part).is_err());
    let [narrow_dy, narrow_x] = [dy, x].map(|rows| bench.narrow(rows));
    if exact {
        assert!(bench.backend.linear_input_gradient(narrow_dy, &weight, dx, false).is_err());
        assert!(bench.backend.linear_weight_gradient(narrow_dy, narrow_x, exact, 0, dw).is_err());
    } else {
        bench.backend.linear_input_gradient(narrow_dy, &weight, dx, false).unwrap();
        bench.assert_products(dx, &want, SUMMED, &what);
        bench.backend.linear_weight_gradient(narrow_dy, narrow_x, exact, 0, dw).unwrap();
        bench.assert_products(dw, &want_weight, SUMMED, &what);
        bench.backend.linear_weight_gradient(narrow_dy, narrow_x, exact, first, part).unwrap();
        bench.assert_products(part, some, SUMMED, &what);
        if inputs.is_multiple_of(UNIT) && bench.backend.narrow_gradients(tokens) {
            let part = part.narrow();
            bench.backend.linear_weight_gradient(narrow_dy, narrow_x, exact, first, part).unwrap();
            bench.assert_products(part, some, SUMMED, &what);
        }
    }
    let mut db = numbers(9, outputs);
    let handle = bench.vector(&db);
    numbers(7, tokens * outputs).chunks(outputs).for_each(|dy| bias_gradient(dy, &mut db));
    bench.backend.bias_gradient(dy, handle).unwrap();
    bench.assert_products(Rows::new(handle.buffer, 1, outputs), &db, SUMMED, "bias_gradient");
}
