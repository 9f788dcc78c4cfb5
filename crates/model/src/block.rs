//! A layer as the chain of its named stages, over the planned buffers.

use halfbyte_ops::{Backend, Rows, Sight};
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
    b.rms_norm(at.residual, w.input_norm, pass.norm_eps, at.normed)?;
    o.see(b, Stage::InputNorm, at.normed)?;
    attention(b, w, pass, o)?; // normed -> mixed
    b.add(at.mixed, at.residual)?;
    o.see(b, Stage::AttnResidual, at.residual)?;
    b.rms_norm(at.residual, w.post_norm, pass.norm_eps, at.normed)?;
    o.see(b, Stage::PostNorm, at.normed)?;
    feed_forward(b, w, pass, o)?; // normed -> fed
    b.add(at.fed, at.residual)?;
    o.see(b, Stage::MlpResidual, at.residual)
}

fn attention<B: Backend>(b: &mut B, w: &Layer, pass: &Pass, o: &mut Observer<'_>) -> Result<()> {
    let at = &pass.at;
    b.linear(at.normed, &[w.q.into(at.q), w.k.into(at.k), w.v.into(at.v)])?;
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
    b.attend(at.q, &w.cache, sight, at.attended)?;
    o.see(b, Stage::Attend, at.attended)?;
    b.linear(at.attended, &[w.o.into(at.mixed)])?;
    o.see(b, Stage::O, at.mixed)
}

fn feed_forward<B: Backend>(b: &mut B, w: &Layer, pass: &Pass, o: &mut Observer<'_>) -> Result<()> {
    let at = &pass.at;
    b.linear(at.normed, &[w.gate.into(at.gate), w.up.into(at.up)])?;
    o.see(b, Stage::Gate, at.gate)?;
    o.see(b, Stage::Up, at.up)?;
    b.swiglu(at.gate, at.up, at.gate)?;
    o.see(b, Stage::MlpMix, at.gate)?;
    b.linear(at.gate, &[w.down.into(at.fed)])?;
    o.see(b, Stage::Down, at.fed)
}
