//! tokens -> logits, in chunks, onto a cache that may already hold a conversation.

mod lanes;

use std::ops::Range;

use halfbyte_checkpoint::{Architecture, Encoding, TensorName};
use halfbyte_ops::best::Best;
use halfbyte_ops::{Backend, Buffer, Matrix, Next, Norm, Product, Rows, Vector, Weight, WeightFormat};
use halfbyte_plan::{Name, Plan, Stage, Value, WATCHED};

use crate::angles::Angles;
use crate::block::{self, Lane, Pass, Stored};
use crate::error::{Error, Result};
use crate::layer::{Handles, Layer};
use crate::watch::{FirstBad, Watch};

/// Which logits a caller wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// Of the last token.
    Last,
    /// Of every token.
    All,
}

/// Rows of the current chunk, named by what they hold.
#[derive(Clone, Copy)]
pub(crate) struct Values {
    /// The residual as it enters a layer, between attention and what follows, and as it leaves.
    pub(crate) entered: Rows,
    pub(crate) middle: Rows,
    pub(crate) residual: Rows,
    /// Where norms leave what enters and what is between, if the way back takes it rounded.
    pub(crate) rounded: Option<[Rows; 2]>,
    pub(crate) normed: Rows,
    pub(crate) post_normed: Rows,
    pub(crate) turns: Rows,
    pub(crate) q: Rows,
    pub(crate) k: Rows,
    pub(crate) q_raw: Rows,
    pub(crate) k_raw: Rows,
    pub(crate) v: Rows,
    pub(crate) attended: Rows,
    pub(crate) gate: Rows,
    pub(crate) up: Rows,
    pub(crate) activated: Rows,
    pub(crate) part: Rows,
}

/// The decoder on a device. Holds handles; the numbers are in the device's arena.
pub struct Decoder<B: Backend> {
    /// The device.
    pub backend: B,
    architecture: Architecture,
    layers: Vec<Layer>,
    embedding: Weight,
    final_norm: Vector,
    head: Weight,
    buffers: [Buffer; 12],
    chunk: usize,
    logit_rows: usize,
    context: usize,
    threads: usize,
    angles: Angles,
    logits: Vec<f32>,
    turns: Vec<f32>,
    /// Of each lane, the tokens whose keys and values are in its cache.
    lanes: Vec<Vec<u32>>,
    /// The lane that is spoken of.
    lane: usize,
}

const VALUES: [Value; 12] = [
    Value::Residual,
    Value::Normed,
    Value::Turns,
    Value::Q,
    Value::K,
    Value::V,
    Value::Attended,
    Value::Gate,
    Value::Up,
    Value::Activated,
    Value::Part,
    Value::Logits,
];

impl<B: Backend> Decoder<B> {
    /// A decoder whose weights are still to be written (see [`crate::load`]).
    pub fn new(
        backend: B,
        architecture: &Architecture,
        plan: &Plan,
        encoding: &dyn Fn(TensorName) -> Option<Encoding>,
    ) -> Result<Self> {
        let handles = Handles { architecture, plan, encoding, one_cache: false };
        let layers = (0..architecture.layers).map(|i| handles.layer(i)).collect::<Result<_>>()?;
        let (embedding, head) = handles.tables()?;
        let mut buffers = [Buffer::default(); 12];
        for (buffer, value) in buffers.iter_mut().zip(VALUES) {
            *buffer = handles.buffer(Name::Value(value))?;
        }
        let settings = &plan.settings;
        Ok(Decoder {
            final_norm: handles.vector(TensorName::FinalNorm)?,
            architecture: architecture.clone(),
            backend,
            layers,
            embedding,
            head,
            buffers,
            chunk: settings.chunk,
            logit_rows: settings.logit_rows,
            context: settings.context,
            threads: settings.threads.max(1),
            angles: Angles::new(architecture),
            logits: vec![0.0; settings.logit_rows * architecture.vocab_size],
            turns: vec![0.0; settings.chunk * architecture.head_dim],
            lanes: (0..settings.lanes).map(|_| Vec::with_capacity(settings.context)).collect(),
            lane: 0,
        })
    }

    /// What the model is.
    pub fn architecture(&self) -> &Architecture {
        &self.architecture
    }

    /// Tokens in the cache.
    pub fn tokens(&self) -> &[u32] {
        &self.lanes[self.lane]
    }

    /// Positions the cache of a lane holds.
    pub fn context(&self) -> usize {
        self.context
    }

    /// Forgets all but the first `count` tokens.
    pub fn keep(&mut self, count: usize) {
        self.lanes[self.lane].truncate(count);
    }

    /// Appends tokens to the cache; gives `each` the index and logits of every wanted token.
    pub fn feed(
        &mut self,
        tokens: &[u32],
        wanted: Wanted,
        mut watch: Option<&mut dyn Watch>,
        each: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<()> {
        self.check_room(tokens.len())?;
        if let (&[token], None) = (tokens, &watch) {
            let logits = self.one(token)?;
            self.backend.read(logits, &mut self.logits[..logits.columns])?;
            each(0, &self.logits[..logits.columns]);
            return Ok(());
        }
        // Who watches also sees products that are otherwise never stored: there is room for a few.
        let size = if watch.is_some() { self.chunk.min(WATCHED) } else { self.chunk };
        let chunks = tokens.len().div_ceil(size);
        for (index, chunk) in tokens.chunks(size).enumerate() {
            let mut observer = Observer {
                watch: watch.as_mut().map(|w| &mut **w as &mut dyn Watch),
                layer: None,
                start: self.tokens().len(),
                values: Vec::new(),
            };
            self.chunk(chunk, &mut observer)?;
            let first = match wanted {
                Wanted::All => 0,
                Wanted::Last if index + 1 == chunks => chunk.len() - 1,
                Wanted::Last => chunk.len(),
            };
            self.head(first..chunk.len(), index * size, &mut observer, each)?;
            self.lanes[self.lane].extend_from_slice(chunk);
        }
        Ok(())
    }

    /// Appends at least one token to the cache and finds the highest logits of the last, best first, without bringing
    /// all of them to the host; false where one is not finite.
    pub fn feed_for_best(&mut self, tokens: &[u32], best: &mut [Best]) -> Result<bool> {
        self.check_room(tokens.len())?;
        if let &[token] = tokens {
            let logits = self.one(token)?;
            return Ok(self.backend.best(logits, best)?);
        }
        let mut last = 0;
        for chunk in tokens.chunks(self.chunk) {
            self.chunk(chunk, &mut Observer::nobody())?;
            self.lanes[self.lane].extend_from_slice(chunk);
            last = chunk.len() - 1;
        }
        let logits = self.logits(last, 1, &mut Observer::nobody())?;
        Ok(self.backend.best(logits, best)?)
    }

    /// Appends a token to the cache; gives its logits, on the device. What a device has kept of the ops of the token
    /// before it is told once.
    fn one(&mut self, token: u32) -> Result<Rows> {
        let start = self.tokens().len();
        let (at, out) = (self.values(1).turns, Rows::new(self.buffers[11], 1, self.architecture.vocab_size));
        let turns = &mut self.turns[..self.architecture.head_dim];
        self.angles.fill(start..start + 1, turns);
        let cache = self.layers[0].cache_of(self.lane).buffer;
        let next = Next { token, table: &self.embedding, start, cache, turns, at };
        if !self.backend.again(&next)? {
            // What fails while it is recorded may be done unrecorded; if not, that has the better error.
            let told = self.told(token);
            if !self.backend.recorded(told.is_ok())? {
                self.told(token)?;
            }
        }
        self.lanes[self.lane].push(token);
        Ok(out)
    }

    /// A token's ops, one by one.
    fn told(&mut self, token: u32) -> Result<()> {
        self.chunk(&[token], &mut Observer::nobody())?;
        self.logits(0, 1, &mut Observer::nobody())?;
        Ok(())
    }

    fn check_room(&self, new: usize) -> Result<()> {
        let (have, context) = (self.tokens().len(), self.context);
        if have + new > context { Err(Error::TooLong { have, new, context }) } else { Ok(()) }
    }

    /// The logits of the last token of `tokens`.
    pub fn last_logits(&mut self, tokens: &[u32]) -> Result<Vec<f32>> {
        let mut out = Vec::new();
        self.feed(tokens, Wanted::Last, None, &mut |_, logits| out.extend_from_slice(logits))?;
        Ok(out)
    }

    /// Computes the tokens again and names the first stage with a bad value. The cache is empty
    /// afterwards.
    pub fn first_bad(&mut self) -> Result<Error> {
        let again = std::mem::take(&mut self.lanes[self.lane]);
        self.wipe()?;
        let mut watch = FirstBad::default();
        self.feed(&again, Wanted::All, Some(&mut watch), &mut |_, _| ())?;
        self.wipe()?;
        let (layer, stage, position) = watch.found.unwrap_or((None, Stage::Head, again.len()));
        Ok(Error::NotFinite { layer, stage, position })
    }

    /// Forgets everything, and what lies in the cache too. Masked keys weigh zero, but zero times
    /// a NaN is a NaN: one left behind would reach tokens that must not see it.
    fn wipe(&mut self) -> Result<()> {
        self.keep(0);
        let zeros = vec![0; self.cache_bytes()];
        for layer in &self.layers {
            self.backend.write_bytes(layer.cache_of(self.lane).buffer, &zeros)?;
        }
        Ok(())
    }

    fn values(&self, tokens: usize) -> Values {
        let a = &self.architecture;
        let (q, kv) = (a.heads * a.head_dim, a.kv_heads * a.head_dim);
        let rows = |index: usize, columns| Rows::new(self.buffers[index], tokens, columns);
        Values {
            entered: rows(0, a.hidden_size),
            middle: rows(0, a.hidden_size),
            residual: rows(0, a.hidden_size),
            rounded: None,
            normed: rows(1, a.hidden_size),
            post_normed: rows(1, a.hidden_size),
            turns: rows(2, a.head_dim),
            q: rows(3, q),
            k: rows(4, kv),
            q_raw: rows(3, q),
            k_raw: rows(4, kv),
            v: rows(5, kv),
            attended: rows(6, q),
            gate: rows(7, a.intermediate_size),
            up: rows(8, a.intermediate_size),
            activated: rows(9, a.intermediate_size),
            part: rows(10, a.hidden_size),
        }
    }

    fn chunk(&mut self, tokens: &[u32], observer: &mut Observer<'_>) -> Result<()> {
        let lane = Lane { number: self.lane, start: self.tokens().len() };
        self.pass(tokens, vec![(0..tokens.len(), lane)], observer)
    }

    /// All layers, for tokens whose parts go on in different lanes.
    fn pass(
        &mut self,
        tokens: &[u32],
        parts: Vec<(Range<usize>, Lane)>,
        observer: &mut Observer<'_>,
    ) -> Result<()> {
        let at = self.values(tokens.len());
        let turns = &mut self.turns[..tokens.len() * self.architecture.head_dim];
        let positions = parts.iter().flat_map(|(rows, lane)| lane.start..lane.start + rows.len());
        self.angles.fill(positions, turns);
        self.backend.write(at.turns.buffer, turns)?;
        self.backend.embed(tokens, &self.embedding, at.residual)?;
        observer.see(&mut self.backend, Stage::Embed, at.residual)?;
        let (samples, lanes) = parts.into_iter().unzip();
        let pass = Pass {
            at,
            head_dim: self.architecture.head_dim,
            norm_eps: self.architecture.norm_eps,
            samples,
            lanes,
            keep: Stored::default(),
        };
        for (index, layer) in self.layers.iter().enumerate() {
            observer.layer = Some(index);
            block::forward(&mut self.backend, layer, &pass, observer)?;
        }
        observer.layer = None;
        Ok(())
    }

    /// Norm and head of some rows of the chunk, a few at a time.
    fn head(
        &mut self,
        rows: Range<usize>,
        before: usize,
        observer: &mut Observer<'_>,
        each: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<()> {
        let vocabulary = self.architecture.vocab_size;
        let chunk_start = observer.start;
        for first in rows.clone().step_by(self.logit_rows) {
            let count = self.logit_rows.min(rows.end - first);
            observer.start = chunk_start + first;
            let out = self.logits(first, count, observer)?;
            let logits = &mut self.logits[..count * vocabulary];
            self.backend.read(out, logits)?;
            for (i, logits) in logits.chunks_exact(vocabulary).enumerate() {
                each(before + first + i, logits);
            }
        }
        observer.start = chunk_start;
        Ok(())
    }

    /// Norm and head of no more rows than the device has room for.
    fn logits(&mut self, first: usize, count: usize, observer: &mut Observer<'_>) -> Result<Rows> {
        let at = self.values(first + count);
        let head = Matrix { weight: self.head, bias: None };
        let (x, normed) = (at.residual.slice(first, count), at.normed.slice(0, count));
        let wide = self.head.format == WeightFormat::F32;
        let normed = if wide { normed } else { normed.narrow() };
        let norm =
            Norm { x, rounded: None, gain: self.final_norm, eps: self.architecture.norm_eps, out: normed };
        let out = Rows::new(self.buffers[11], count, self.architecture.vocab_size);
        self.backend.normed_linear(norm, &[Product::new(head, out)])?;
        observer.see(&mut self.backend, Stage::FinalNorm, normed)?;
        observer.see(&mut self.backend, Stage::Head, out)?;
        Ok(out)
    }

    /// Bytes of one layer's cache of a lane, for sessions.
    pub fn cache_bytes(&self) -> usize {
        self.layers[0].cache.buffer.bytes
    }

    /// Copies a layer's cache out.
    pub fn read_cache(&mut self, layer: usize, bytes: &mut [u8]) -> Result<()> {
        Ok(self.backend.read_bytes(self.layers[layer].cache_of(self.lane).buffer, bytes)?)
    }

    /// Puts a layer's cache back.
    pub fn write_cache(&mut self, layer: usize, bytes: &[u8]) -> Result<()> {
        Ok(self.backend.write_bytes(self.layers[layer].cache_of(self.lane).buffer, bytes)?)
    }

    /// Says which tokens the restored cache belongs to.
    pub fn restore_tokens(&mut self, tokens: &[u32]) -> Result<()> {
        if tokens.len() > self.context {
            return Err(Error::TooLong { have: 0, new: tokens.len(), context: self.context });
        }
        self.keep(0);
        self.lanes[self.lane].extend_from_slice(tokens);
        Ok(())
    }
}

/// Passes stage outputs to a watch, if there is one.
pub(crate) struct Observer<'a> {
    watch: Option<&'a mut dyn Watch>,
    pub(crate) layer: Option<usize>,
    start: usize,
    values: Vec<f32>,
}

impl<'a> Observer<'a> {
    /// Nobody looks.
    pub(crate) fn nobody() -> Observer<'static> {
        Observer { watch: None, layer: None, start: 0, values: Vec::new() }
    }

    /// Someone looks at a pass from its first token on.
    pub(crate) fn of(watch: &'a mut dyn Watch) -> Observer<'a> {
        Observer { watch: Some(watch), ..Observer::nobody() }
    }

    pub(crate) fn watches(&self) -> bool {
        self.watch.is_some()
    }

    pub(crate) fn see<B: Backend>(&mut self, backend: &mut B, stage: Stage, rows: Rows) -> Result<()> {
        if let Some(watch) = &mut self.watch {
            self.values.resize(rows.rows * rows.columns, 0.0);
            backend.read(rows, &mut self.values)?;
            watch.see(self.layer, stage, self.start, rows.columns, &self.values);
        }
        Ok(())
    }
}
