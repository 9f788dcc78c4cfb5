//! A step of training: tokens -> embed -> block x L -> norm -> head -> loss, and back.
//!
//! The way there is the decoder's own, for several samples at once; the residual is kept as it enters each layer.
//! On the way back a layer is computed again with everything stored, then its gradients are
//! handed out one tensor at a time, those of matrices as the two factors that they are made of: who
//! takes them may change the weight at once, because everything that needs the old weight has been
//! computed by then. Where the plan has
//! room for the values of all layers, nothing is computed again.

mod back;
mod import;
mod vocabulary;

pub use import::import;

use halfbyte_checkpoint::{Architecture, Encoding, TensorName};
use halfbyte_ops::learn::Factors;
use halfbyte_ops::{Backend, Buffer, CacheFormat, Luck, Rows, Vector, Weight, loss};
use halfbyte_plan::{Name, Plan, Recompute, Stage, TrainingSettings, Value};

use crate::angles::Angles;
use crate::block::{self, Pass, Stored};
use crate::decoder::{Observer, Values};
use crate::error::{Error, Result};
use crate::layer::{Handles, Layer};
use crate::watch::FirstBad;

/// Samples of one step, one after the other.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    /// All tokens.
    pub tokens: Vec<u32>,
    /// What follows each, or [`loss::UNTRAINED`].
    pub targets: Vec<u32>,
    /// Lengths of the samples.
    pub lengths: Vec<usize>,
}

impl Batch {
    /// Tokens whose prediction counts.
    pub fn trained(&self) -> usize {
        self.targets.iter().filter(|&&target| target != loss::UNTRAINED).count()
    }
}

/// A tensor on the device.
#[derive(Clone, Copy, Debug)]
pub enum Learnt {
    /// A matrix or a table.
    Matrix(Weight),
    /// A gain or a bias.
    Vector(Vector),
}

/// Takes gradients as they become known.
pub trait Learner<B: Backend> {
    /// Whether a tensor learns: a gradient that nobody wants is not handed out, and that of a matrix not computed.
    fn wants(&self, _name: TensorName) -> bool {
        true
    }

    /// What decides roundings in the gradients of products with this tensor, where they may be random. See
    /// [`Backend::round_gradients`].
    fn luck(&self, _name: TensorName) -> Option<Luck> {
        None
    }

    /// `gradient` are rows `first..` of the tensor's gradient (a vector is one row); the buffer is
    /// used again afterwards. The tensor may be changed now.
    fn learn(&mut self, backend: &mut B, name: TensorName, first: usize, gradient: Rows) -> Result<()>;

    /// The same for a gradient that is still to be made; `room` is for as many of its rows as exist at a time.
    fn learn_from(
        &mut self,
        backend: &mut B,
        name: TensorName,
        factors: &Factors<'_>,
        room: Buffer,
    ) -> Result<()> {
        learn_in_parts(self, backend, name, factors, room)
    }

    /// Every gradient of the batch has been given.
    fn end(&mut self, _backend: &mut B) -> Result<()> {
        Ok(())
    }
}

/// Makes a gradient part by part; `learner` takes each.
pub fn learn_in_parts<B: Backend>(
    learner: &mut (impl Learner<B> + ?Sized),
    backend: &mut B,
    name: TensorName,
    factors: &Factors<'_>,
    room: Buffer,
) -> Result<()> {
    for rows in factors.parts(room)? {
        let gradient = factors.gradient(backend, rows.clone(), room)?;
        learner.learn(backend, name, factors.first + rows.start, gradient)?;
    }
    Ok(())
}

/// The decoder as training sees it.
pub struct Training<B: Backend> {
    /// The device.
    pub backend: B,
    architecture: Architecture,
    layers: Vec<Layer>,
    embedding: Weight,
    final_norm: Vector,
    head: Weight,
    buffers: Vec<(Value, Buffer)>,
    /// Values of each layer that are kept for the way back.
    kept: Vec<Vec<(Value, Buffer)>>,
    recompute: Recompute,
    /// Whether the residual is kept rounded, as it enters a layer and in its middle; else only the first, as it is.
    rounds: bool,
    /// Angles of the positions of the longest sample: to compute them at every step, the device would wait.
    turns: Vec<f32>,
    /// Lengths of the samples whose angles the device has.
    turned: Vec<usize>,
    most: usize,
    longest: usize,
    words: usize,
    /// Of a token's loss in the mean whose gradient is handed out.
    weight: f32,
}

impl<B: Backend> Training<B> {
    /// A model whose weights are still to be written.
    pub fn new(
        backend: B,
        architecture: &Architecture,
        plan: &Plan,
        training: TrainingSettings,
        encoding: &dyn Fn(TensorName) -> Option<Encoding>,
    ) -> Result<Self> {
        let handles = Handles { architecture, plan, encoding, one_cache: true };
        let layers = (0..architecture.layers).map(|i| handles.layer(i)).collect::<Result<Vec<_>>>()?;
        let (embedding, head) = handles.tables()?;
        let planned = plan.buffers.iter().filter_map(|planned| match planned.name {
            Name::Value(value) => Some((value, planned.buffer)),
            _ => None,
        });
        let kept = (0..architecture.layers).map(|layer| {
            let of = plan.buffers.iter().filter_map(|planned| match planned.name {
                Name::Kept(index, value) if index == layer => Some((value, planned.buffer)),
                _ => None,
            });
            of.collect()
        });
        let settings = &plan.settings;
        let words = training.vocabulary_chunk.min(architecture.vocab_size);
        let mut turns = vec![0.0; settings.context * architecture.head_dim];
        Angles::new(architecture).fill(0..settings.context, &mut turns);
        Ok(Training {
            final_norm: handles.vector(TensorName::FinalNorm)?,
            rounds: training.rounds_residual && layers.iter().all(Layer::rounds_residual),
            recompute: training.recompute,
            layers,
            embedding,
            head,
            buffers: planned.collect(),
            kept: kept.collect(),
            turns,
            turned: Vec::new(),
            most: settings.chunk,
            longest: settings.context,
            words,
            weight: 0.0,
            architecture: architecture.clone(),
            backend,
        })
    }

    /// The weight of a matrix, or the values of a vector.
    pub fn tensor(&self, name: TensorName) -> Option<Learnt> {
        use halfbyte_checkpoint::LayerTensor::*;
        let TensorName::Layer(index, tensor) = name else {
            return Some(match name {
                TensorName::Embedding => Learnt::Matrix(self.embedding),
                TensorName::Head => Learnt::Matrix(self.head),
                _ => Learnt::Vector(self.final_norm),
            });
        };
        let w = self.layers.get(index)?;
        let vector = |vector: Option<Vector>| vector.map(Learnt::Vector);
        match tensor {
            InputNorm => vector(Some(w.input_norm)),
            PostNorm => vector(Some(w.post_norm)),
            QNorm => vector(w.q_norm),
            KNorm => vector(w.k_norm),
            Q => Some(Learnt::Matrix(w.q.weight)),
            K => Some(Learnt::Matrix(w.k.weight)),
            V => Some(Learnt::Matrix(w.v.weight)),
            O => Some(Learnt::Matrix(w.o.weight)),
            Gate => Some(Learnt::Matrix(w.gate.weight)),
            Up => Some(Learnt::Matrix(w.up.weight)),
            Down => Some(Learnt::Matrix(w.down.weight)),
            QBias => vector(w.q.bias),
            KBias => vector(w.k.bias),
            VBias => vector(w.v.bias),
            OBias => vector(w.o.bias),
            GateBias => vector(w.gate.bias),
            UpBias => vector(w.up.bias),
            DownBias => vector(w.down.bias),
        }
    }

    /// The values of a row of a matrix.
    pub fn read_values(&mut self, weight: &Weight, row: usize, values: &mut [f32]) -> Result<()> {
        // They are what a token of that number would begin with; between steps there is room.
        let decoded = self.rows(Value::Gradient, 1, weight.columns);
        self.backend.embed(&[row as u32], weight, decoded)?;
        Ok(self.backend.read(decoded, values)?)
    }

    /// What the model is.
    pub fn architecture(&self) -> &Architecture {
        &self.architecture
    }

    /// Mean loss of the trained tokens, without learning from it.
    pub fn loss(&mut self, batch: &Batch) -> Result<f64> {
        let mut pass = self.pass(batch)?;
        self.there(batch, &mut pass, &mut Observer::nobody())?;
        self.measure(batch, &pass, false)
    }

    /// Mean loss of the trained tokens; `learner` is given the gradient of that mean.
    pub fn step(&mut self, batch: &Batch, learner: &mut dyn Learner<B>) -> Result<f64> {
        self.part_of_step(batch, batch.trained(), learner)
    }

    /// The same for one of several batches with so many trained tokens together: `learner` is given
    /// this batch's share of the gradient of the mean over all of them.
    pub fn part_of_step(
        &mut self,
        batch: &Batch,
        trained: usize,
        learner: &mut dyn Learner<B>,
    ) -> Result<f64> {
        self.weight = 1.0 / trained as f32;
        let mut pass = self.pass(batch)?;
        pass.keep = Stored {
            attention: self.recompute != Recompute::Layer,
            feed_forward: self.recompute == Recompute::None,
        };
        self.there(batch, &mut pass, &mut Observer::nobody())?;
        let mean = self.measure(batch, &pass, true)?;
        if !mean.is_finite() {
            self.wipe()?;
            return Err(Error::LossNotFinite);
        }
        pass.keep = Stored { attention: true, feed_forward: true };
        self.head_back(batch, &pass, learner)?;
        for index in (0..self.layers.len()).rev() {
            pass.at = self.values(index, batch.tokens.len());
            if let Some([entered, middle]) = pass.at.rounded.take() {
                (pass.at.entered, pass.at.middle) = (entered, middle);
            }
            self.layer_back(index, &pass, learner)?;
        }
        self.tables_back(batch, learner)?;
        learner.end(&mut self.backend)?;
        Ok(mean)
    }

    /// The logits of what follows these tokens. All of them are computed: nothing is cached.
    pub fn last_logits(&mut self, tokens: &[u32]) -> Result<Vec<f32>> {
        // Any target does: no loss is taken.
        let batch =
            Batch { tokens: tokens.to_vec(), targets: vec![0; tokens.len()], lengths: vec![tokens.len()] };
        let mut pass = self.pass(&batch)?;
        self.there(&batch, &mut pass, &mut Observer::nobody())?;
        self.row_logits(pass.at.residual.slice(tokens.len() - 1, 1), pass.norm_eps)
    }

    /// Computes a batch again and names the first stage with a value that is not finite, and the
    /// token, counted over the batch; `None` where there is none before the loss.
    pub fn first_bad(&mut self, batch: &Batch) -> Result<Option<(Option<usize>, Stage, usize)>> {
        let mut pass = self.pass(batch)?;
        let mut watch = FirstBad::default();
        self.there(batch, &mut pass, &mut Observer::of(&mut watch))?;
        self.wipe()?;
        Ok(watch.found)
    }

    /// Forgets what lies in the cache. Masked keys weigh zero, but zero times a NaN is a NaN: one
    /// left behind would reach the next batch.
    pub fn wipe(&mut self) -> Result<()> {
        let buffer = self.layers[0].cache.buffer;
        Ok(self.backend.clear(Rows::new(buffer, 1, buffer.bytes / 4))?)
    }

    /// Checks a batch and lays out its positions.
    fn pass(&mut self, batch: &Batch) -> Result<Pass> {
        let tokens = batch.tokens.len();
        let whole = batch.targets.len() == tokens && batch.lengths.iter().sum::<usize>() == tokens;
        let longest = batch.lengths.iter().copied().max().unwrap_or(0);
        if !whole || tokens == 0 || batch.trained() == 0 || tokens > self.most || longest > self.longest {
            return Err(Error::Batch {
                tokens,
                targets: batch.targets.len(),
                trained: batch.trained(),
                longest,
                most: self.most,
                context: self.longest,
            });
        }
        let mut end = 0;
        let samples = batch.lengths.iter().map(|length| {
            end += length;
            end - length..end
        });
        let samples: Vec<_> = samples.collect();
        let at = self.values(0, tokens);
        let stale = if self.turned == batch.lengths { &[] } else { &samples[..] };
        self.turned.clear();
        for sample in stale {
            let turns = at.turns.slice(sample.start, sample.len());
            let angles = &self.turns[..sample.len() * self.architecture.head_dim];
            self.backend.write(turns.buffer, angles)?;
        }
        self.turned.clone_from(&batch.lengths);
        let (head_dim, norm_eps) = (self.architecture.head_dim, self.architecture.norm_eps);
        Ok(Pass { at, head_dim, norm_eps, samples, lanes: Vec::new(), keep: Stored::default() })
    }

    /// Embedding and all layers; the residual is kept, and all else if the pass says so.
    fn there(&mut self, batch: &Batch, pass: &mut Pass, observer: &mut Observer<'_>) -> Result<()> {
        let tokens = batch.tokens.len();
        self.backend.embed(&batch.tokens, &self.embedding, pass.at.entered)?;
        observer.see(&mut self.backend, Stage::Embed, pass.at.entered)?;
        for index in 0..self.layers.len() {
            observer.layer = Some(index);
            pass.at = self.values(index, tokens);
            block::forward(&mut self.backend, &self.layers[index], pass, observer)?;
        }
        Ok(())
    }

    fn buffer(&self, value: Value) -> Buffer {
        let found = self.buffers.iter().find(|(name, _)| *name == value);
        found.map_or(Buffer::default(), |(_, buffer)| *buffer)
    }

    fn rows(&self, value: Value, rows: usize, columns: usize) -> Rows {
        Rows::new(self.buffer(value), rows, columns)
    }

    /// A value of a layer that is its own, if it is kept.
    fn own(&self, layer: usize, value: Value, rows: usize, columns: usize) -> Option<Rows> {
        let (_, buffer) = self.kept.get(layer)?.iter().find(|(name, _)| *name == value)?;
        Some(Rows::new(*buffer, rows, columns))
    }

    /// The residual stays in one place where it is kept rounded; else it goes from what is kept of one layer to what is
    /// kept of the next.
    fn values(&self, layer: usize, tokens: usize) -> Values {
        let a = &self.architecture;
        let (q, kv) = (a.heads * a.head_dim, a.kv_heads * a.head_dim);
        let rows = |value, columns| {
            self.own(layer, value, tokens, columns).unwrap_or_else(|| self.rows(value, tokens, columns))
        };
        let mixed = |value| self.layers[layer].mixed(rows(value, a.intermediate_size));
        let residual = rows(Value::Residual, a.hidden_size);
        // What attention rounds is narrow where the device takes it so, and nothing else wants it.
        let w = &self.layers[layer];
        let rounds = ![w.q, w.k, w.v, w.o].into_iter().any(back::wants_f32);
        let narrow =
            rounds && w.cache.format == CacheFormat::Bf16 && self.backend.narrow_heads(tokens, a.head_dim);
        let heads = |value, columns| {
            let rows = rows(value, columns);
            if narrow { rows.narrow() } else { rows }
        };
        let (q_heads, k_heads) = (heads(Value::Q, q), heads(Value::K, kv));
        // Where nothing comes between them, heads are made where they stay.
        let raw = |value, made: Rows| {
            let planned = self.own(layer, value, 0, 0).is_some() || self.buffer(value).bytes > 0;
            if planned { heads(value, made.columns) } else { made }
        };
        let kept = |layer, value| self.own(layer, value, tokens, a.hidden_size).unwrap_or(residual);
        let [entered, middle] = [Value::Entered, Value::Middle].map(|value| kept(layer, value));
        let (entered, middle, residual, rounded) = match self.rounds {
            true => (residual, residual, residual, Some([entered.narrow(), middle.narrow()])),
            false => (entered, middle, kept(layer + 1, Value::Entered), None),
        };
        Values {
            entered,
            middle,
            residual,
            rounded,
            normed: rows(Value::Normed, a.hidden_size),
            post_normed: rows(Value::PostNormed, a.hidden_size),
            turns: rows(Value::Turns, a.head_dim),
            q: q_heads,
            k: k_heads,
            q_raw: raw(Value::QRaw, q_heads),
            k_raw: raw(Value::KRaw, k_heads),
            v: heads(Value::V, kv),
            attended: rows(Value::Attended, q),
            gate: mixed(Value::Gate),
            up: mixed(Value::Up),
            activated: rows(Value::Activated, a.intermediate_size),
            // Nobody goes back while somebody watches.
            part: rows(Value::DNormed, a.hidden_size),
        }
    }
}
