//! A layer as the chain of its named stages, over the planned buffers.

use halfbyte_ops::{Backend, Matrix, Product, Rows, Sight, WeightFormat};
use halfbyte_plan::Stage;

use crate::decoder::{Observer, Values};
use crate::error::Result;
use crate::layer::Layer;

/// What the layers have in common.
pub(crate) struct Pass {
    pub(crate) at: Values,
    pub(crate) head_dim: usize,
    pub(crate) norm_eps: f32,
    pub(crate) start: usize,
}

/// residual -> residual
pub(crate) fn forward<B: Backend>(b: &mut B, w: &Layer, pass: &Pass, o: &mut Observer<'_>) -> Result<()> {
    let at = &pass.at;
    let normed = input(at.normed, &[w.q, w.k, w.v]);
    b.rms_norm(at.residual, w.input_norm, pass.norm_eps, normed)?;
    o.see(b, Stage::InputNorm, normed)?;
    attention(b, w, pass, normed, o)?; // normed -> residual
    o.see(b, Stage::AttnResidual, at.residual)?;
    let normed = input(at.normed, &[w.gate, w.up]);
    b.rms_norm(at.residual, w.post_norm, pass.norm_eps, normed)?;
    o.see(b, Stage::PostNorm, normed)?;
    feed_forward(b, w, pass, normed, o)?; // normed -> residual
    o.see(b, Stage::MlpResidual, at.residual)
}

/// Adds a product to the residual. Who watches sees the product by itself first.
fn add<B: Backend>(
    b: &mut B,
    x: Rows,
    matrix: Matrix,
    pass: &Pass,
    stage: Stage,
    o: &mut Observer<'_>,
) -> Result<()> {
    let at = &pass.at;
    if !o.watches() {
        return Ok(b.linear(x, &[Product { matrix, out: at.residual, added: true }])?);
    }
    b.linear(x, &[Product::new(matrix, at.part)])?;
    o.see(b, stage, at.part)?;
    Ok(b.add(at.part, at.residual)?)
}

/// Rows that these matrices take: narrow, unless one of them wants its input as it is.
pub(crate) fn input(rows: Rows, takers: &[Matrix]) -> Rows {
    match takers.iter().any(|taker| taker.weight.format == WeightFormat::F32) {
        true => rows,
        false => rows.narrow(),
    }
}

fn attention<B: Backend>(
    b: &mut B,
    w: &Layer,
    pass: &Pass,
    normed: Rows,
    o: &mut Observer<'_>,
) -> Result<()> {
    let at = &pass.at;
    b.linear(normed, &[Product::new(w.q, at.q), Product::new(w.k, at.k), Product::new(w.v, at.v)])?;
    o.see(b, Stage::Q, at.q)?;
    o.see(b, Stage::K, at.k)?;
    o.see(b, Stage::V, at.v)?;
    if let (Some(q_norm), Some(k_norm)) = (w.q_norm, w.k_norm) {
        let heads = |x: Rows| x.reshape(pass.head_dim);
        b.rms_norm(heads(at.q), q_norm, pass.norm_eps, heads(at.q))?;
        b.rms_norm(heads(at.k), k_norm, pass.norm_eps, heads(at.k))?;
        o.see(b, Stage::QkNorm, at.q)?;
    }
    b.rope(at.q, pass.head_dim, at.turns)?;
    b.rope(at.k, pass.head_dim, at.turns)?;
    o.see(b, Stage::Rope, at.q)?;
    b.store(at.k, at.v, pass.start, &w.cache)?;
    let sight = Sight { start: pass.start, window: w.window };
    let attended = input(at.attended, &[w.o]);
    b.attend(at.q, &w.cache, sight, attended)?;
    o.see(b, Stage::Attend, attended)?;
    add(b, attended, w.o, pass, Stage::O, o)
}

fn feed_forward<B: Backend>(
    b: &mut B,
    w: &Layer,
    pass: &Pass,
    normed: Rows,
    o: &mut Observer<'_>,
) -> Result<()> {
    let at = &pass.at;
    let products = (at.gate, at.up);
    let keep = o.watches() || w.gate.weight.format != w.up.weight.format;
    let activated = input(at.activated, &[w.down]);
    b.gated(normed, w.gate, w.up, keep.then_some(products), activated)?;
    if o.watches() {
        o.see(b, Stage::Gate, at.gate)?;
        o.see(b, Stage::Up, at.up)?;
    }
    o.see(b, Stage::MlpMix, activated)?;
    add(b, activated, w.down, pass, Stage::Down, o)
}
