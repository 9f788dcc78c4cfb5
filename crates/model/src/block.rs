//! A layer as the chain of its named stages, over the planned buffers.

use std::ops::Range;

use halfbyte_ops::tensor::PANEL;
use halfbyte_ops::{
    Attention, Backend, CacheFormat, Fresh, Heads, Keep, Matrix, Norm, Product, Rows, Sight, WeightFormat,
};
use halfbyte_plan::Stage;

use crate::decoder::{Observer, Values};
use crate::error::Result;
use crate::layer::Layer;

/// What the layers have in common.
pub(crate) struct Pass {
    pub(crate) at: Values,
    pub(crate) head_dim: usize,
    pub(crate) norm_eps: f32,
    /// Rows of the tokens that see each other.
    pub(crate) samples: Vec<Range<usize>>,
    /// Where each of them goes on; nowhere in training, where samples see nothing but themselves.
    pub(crate) lanes: Vec<Lane>,
    /// What is stored of all that the way back needs.
    pub(crate) keep: Stored,
}

/// Parts of a layer whose values are stored.
#[derive(Clone, Copy, Default)]
pub(crate) struct Stored {
    pub(crate) attention: bool,
    pub(crate) feed_forward: bool,
}

/// A conversation's cache, and the position that a pass goes on from.
#[derive(Clone, Copy, Default)]
pub(crate) struct Lane {
    pub(crate) number: usize,
    pub(crate) start: usize,
}

/// entered -> residual
pub(crate) fn forward<B: Backend>(b: &mut B, w: &Layer, pass: &Pass, o: &mut Observer<'_>) -> Result<()> {
    let attended = attend(b, w, pass, o)?;
    add_attended(b, attended, w, pass, o)?;
    let activated = activate(b, w, pass, o)?;
    add(b, activated, w.down, [pass.at.middle, pass.at.residual], pass, Stage::Down, o)?;
    o.see(b, Stage::MlpResidual, pass.at.residual)
}

impl Pass {
    /// What `o` takes. Narrow rows may lie in tiles, which samples may not share; where heads are narrow they do not.
    pub(crate) fn attended(&self, o: Matrix) -> Rows {
        let apart = self.samples.iter().all(|sample| sample.start.is_multiple_of(PANEL));
        if apart || self.at.q.narrow { input(self.at.attended, &[o]) } else { self.at.attended }
    }

    /// Attention of a layer, once its queries, keys and values are there.
    pub(crate) fn attention(&self, w: &Layer) -> Attention<'_> {
        let Values { q, k, v, .. } = self.at;
        let exact = w.cache.format == CacheFormat::F32;
        Attention { samples: &self.samples, q, k, v, head_dim: self.head_dim, window: w.window, exact }
    }
}

/// Rows that these matrices take: narrow, unless one of them wants its input as it is.
pub(crate) fn input(rows: Rows, takers: &[Matrix]) -> Rows {
    match takers.iter().any(|taker| taker.weight.format == WeightFormat::F32) {
        true => rows,
        false => rows.narrow(),
    }
}

/// Adds a product to the residual on its way from one place to the next. Who watches sees the product by itself first.
fn add<B: Backend>(
    b: &mut B,
    x: Rows,
    matrix: Matrix,
    [from, to]: [Rows; 2],
    pass: &Pass,
    stage: Stage,
    o: &mut Observer<'_>,
) -> Result<()> {
    let part = pass.at.part;
    if !o.watches() {
        return Ok(b.linear(x, &[Product { matrix, out: to, added: Some(from) }])?);
    }
    b.linear(x, &[Product::new(matrix, part)])?;
    o.see(b, stage, part)?;
    if from != to {
        b.copy(from, to)?;
    }
    Ok(b.add(part, to)?)
}

/// entered -> middle, with what was attended
pub(crate) fn add_attended<B: Backend>(
    b: &mut B,
    attended: Rows,
    w: &Layer,
    pass: &Pass,
    o: &mut Observer<'_>,
) -> Result<()> {
    add(b, attended, w.o, [pass.at.entered, pass.at.middle], pass, Stage::O, o)?;
    o.see(b, Stage::AttnResidual, pass.at.middle)
}

/// entered -> what `o` takes
pub(crate) fn attend<B: Backend>(b: &mut B, w: &Layer, pass: &Pass, o: &mut Observer<'_>) -> Result<Rows> {
    let at = &pass.at;
    let normed = input(at.normed, &[w.q, w.k, w.v]);
    let norm = Norm {
        x: at.entered,
        rounded: at.rounded.map(|[entered, _]| entered),
        gain: w.input_norm,
        eps: pass.norm_eps,
        out: normed,
    };
    let (q, k) = if w.q_norm.is_some() || at.q.narrow { (at.q_raw, at.k_raw) } else { (at.q, at.k) };
    b.normed_linear(norm, &[Product::new(w.q, q), Product::new(w.k, k), Product::new(w.v, at.v)])?;
    o.see(b, Stage::InputNorm, normed)?;
    o.see(b, Stage::Q, q)?;
    o.see(b, Stage::K, k)?;
    o.see(b, Stage::V, at.v)?;
    let mut queries = Heads { raw: q, norm: w.q_norm, out: at.q };
    let mut keys = Heads { raw: k, norm: w.k_norm, out: at.k };
    if o.watches() && w.q_norm.is_some() && !at.q.narrow {
        // Who watches sees them between norm and rope.
        for heads in [&mut queries, &mut keys] {
            if let Some(norm) = heads.norm.take() {
                let apart = |x: Rows| x.reshape(pass.head_dim);
                b.rms_norm(apart(heads.raw), norm, pass.norm_eps, apart(heads.out))?;
            }
            heads.raw = heads.out;
        }
        o.see(b, Stage::QkNorm, at.q)?;
    }
    // Narrow heads are attended with as they lie.
    let alone = pass.samples.len() == 1 && !at.q.narrow;
    let Lane { number, start } = pass.lanes.first().copied().unwrap_or_default();
    let cache = w.cache_of(number);
    let keep = alone.then_some(Keep { values: at.v, start, cache: &cache });
    let attended = pass.attended(w.o);
    if let Some(keep) = keep.filter(|_| !pass.keep.attention && !o.watches()) {
        let fresh = Fresh { queries, keys, eps: pass.norm_eps, turns: at.turns, keep };
        b.heads_attend(fresh, w.window, attended)?;
        return Ok(attended);
    }
    b.heads(queries, keys, pass.norm_eps, at.turns, keep)?;
    o.see(b, Stage::Rope, at.q)?;
    if alone {
        b.attend(at.q, &cache, Sight { start, window: w.window }, attended)?;
    } else if !pass.lanes.is_empty() {
        attend_lanes(b, w, pass, attended)?;
    } else {
        b.attend_samples(&pass.attention(w), &w.cache, attended)?;
    }
    o.see(b, Stage::Attend, attended)?;
    Ok(attended)
}

/// Every sample over its own lane's cache.
fn attend_lanes<B: Backend>(b: &mut B, w: &Layer, pass: &Pass, attended: Rows) -> Result<()> {
    for (sample, &Lane { number, start }) in pass.samples.iter().zip(&pass.lanes) {
        let part = |rows: Rows| rows.slice(sample.start, sample.len());
        let cache = w.cache_of(number);
        b.store(part(pass.at.k), part(pass.at.v), start, &cache)?;
        b.attend(part(pass.at.q), &cache, Sight { start, window: w.window }, part(attended))?;
    }
    Ok(())
}

/// middle -> what `down` takes
pub(crate) fn activate<B: Backend>(b: &mut B, w: &Layer, pass: &Pass, o: &mut Observer<'_>) -> Result<Rows> {
    let at = &pass.at;
    let normed = input(at.post_normed, &[w.gate, w.up]);
    let norm = Norm {
        x: at.middle,
        rounded: at.rounded.map(|[_, middle]| middle),
        gain: w.post_norm,
        eps: pass.norm_eps,
        out: normed,
    };
    let products = (at.gate, at.up);
    let keep = pass.keep.feed_forward || o.watches() || w.gate.weight.format != w.up.weight.format;
    let activated = input(at.activated, &[w.down]);
    b.normed_gated(norm, w.gate, w.up, keep.then_some(products), activated)?;
    o.see(b, Stage::PostNorm, normed)?;
    if o.watches() {
        o.see(b, Stage::Gate, at.gate)?;
        o.see(b, Stage::Up, at.up)?;
    }
    o.see(b, Stage::MlpMix, activated)?;
    Ok(activated)
}
