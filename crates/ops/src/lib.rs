//! The list: every op of the decoder on one page, as a trait that a device implements.
//!
//! tokens -> embed -> (rms_norm -> linear -> rope -> store -> attend -> linear -> add
//!                     -> rms_norm -> gated -> linear -> add) x L -> rms_norm -> linear
//!
//! Each op has a file of its own with the maths, the shapes, a plain reference and a contract:
//! one test body that every backend runs. All outputs are overwritten, except where a name says that they are added to.
//! Backward ops stand beside their forward in the same files; `finite_differences` judges them all.
#![forbid(unsafe_code)]

pub mod accumulate;
pub mod again;
pub mod attend;
pub mod best;
mod boxed;
pub mod dot;
pub mod embed;
pub mod error;
pub mod finite_differences;
pub mod gated;
pub mod heads;
pub mod learn;
pub mod linear;
pub mod loss;
pub mod math;
pub mod panels;
pub mod residual;
pub mod rms_norm;
pub mod rope;
mod tallies;
pub mod tensor;
pub mod testing;
pub mod update;

use std::time::Duration;

use panels::Panels;

pub use again::Next;
pub use error::{Error, Result};
pub use halfbyte_formats::state::Tally;
pub use heads::{Fresh, Heads, HeadsGradient, Keep};
pub use linear::{Luck, OutputGradient};
pub use tallies::Tallies;
pub use tensor::{Buffer, Cache, CacheFormat, Rows, Vector, Weight, WeightFormat, WeightRows};

/// A weight with its bias: `y[t, n] = sum_k x[t, k] * weight[n, k] (+ bias[n])`.
#[derive(Clone, Copy, Debug)]
pub struct Matrix {
    /// `[n, k]`
    pub weight: Weight,
    /// Added to every row of the result.
    pub bias: Option<Vector>,
}

/// One product of a [`Backend::linear`] call.
#[derive(Clone, Copy, Debug)]
pub struct Product {
    /// `[n, k]`
    pub matrix: Matrix,
    /// `[t, n]`.
    pub out: Rows,
    /// What the result is added to, as [`Backend::add`] would do: what is in `out`, or rows elsewhere.
    pub added: Option<Rows>,
}

impl Product {
    /// A product that overwrites its output.
    pub fn new(matrix: Matrix, out: Rows) -> Product {
        Product { matrix, out, added: None }
    }
}

/// A norm on its way into products: see [`Backend::rms_norm`].
#[derive(Clone, Copy, Debug)]
pub struct Norm {
    /// `[t, c]`
    pub x: Rows,
    /// Where x is left narrow, so that it can be normed again: it is what lies there that is normed. For devices with
    /// [`Backend::rounds_residual`].
    pub rounded: Option<Rows>,
    /// `[c]`
    pub gain: Vector,
    /// Added to the mean square.
    pub eps: f32,
    /// What the products take, `[t, c]`.
    pub out: Rows,
}

/// Where the queries of an [`Backend::attend`] call stand and what they may see.
#[derive(Clone, Copy, Debug)]
pub struct Sight {
    /// Position of the first query; query `t` stands at `start + t` and sees keys `0..=start + t`.
    pub start: usize,
    /// Only the last `window` of those, where the model asks for it.
    pub window: Option<usize>,
}

/// Attention of samples as training keeps it: queries and keys after rope.
#[derive(Clone, Copy, Debug)]
pub struct Attention<'a> {
    /// Rows of the samples; tokens see those of their own sample.
    pub samples: &'a [std::ops::Range<usize>],
    /// `[t, heads * head_dim]`
    pub q: Rows,
    /// `[t, kv_heads * head_dim]`
    pub k: Rows,
    /// As k.
    pub v: Rows,
    /// Width of a head.
    pub head_dim: usize,
    /// As in [`Sight`].
    pub window: Option<usize>,
    /// Whether nothing was rounded (an f32 cache), else everything that is multiplied (bf16).
    pub exact: bool,
}

/// A device: one arena of bytes, copies in and out of it, and the ops.
///
/// Buffers are handles; the host cannot look behind them. Ops check shapes and bounds and
/// answer with an error that names op and sizes.
pub trait Backend {
    /// What computes, for people: "AMX bf16, 2 threads".
    fn describe(&self) -> String;

    /// Whether products, attention and sums over tokens give the bits of [`dot`] and of the
    /// references. A backend that sums in an order of its own, always the same, is judged by the
    /// rounding of f32 sums instead.
    fn exact_products(&self) -> bool {
        true
    }

    /// Copies f32 values to the device.
    fn write(&mut self, to: Buffer, values: &[f32]) -> Result<()>;
    /// Copies values from the device.
    fn read(&mut self, from: Rows, values: &mut [f32]) -> Result<()>;
    /// Copies bytes as the device keeps them, to save a cache.
    fn read_bytes(&mut self, from: Buffer, bytes: &mut [u8]) -> Result<()>;
    /// Restores what [`Backend::read_bytes`] gave on the same kind of device.
    fn write_bytes(&mut self, to: Buffer, bytes: &[u8]) -> Result<()>;
    /// Copies rows of a weight, or of what it learns with, as every device takes them.
    fn read_panels(&mut self, from: &Panels<'_>, bytes: &mut [u8]) -> Result<()> {
        self.read_bytes(from.place(bytes.len())?, bytes)
    }
    /// Takes back what [`Backend::read_panels`] gave, on any device.
    fn write_panels(&mut self, to: &Panels<'_>, bytes: &[u8]) -> Result<()> {
        self.write_bytes(to.place(bytes.len())?, bytes)
    }
    /// Lays rows of a weight out as the device wants them. `first_row` is a multiple of 16.
    fn write_weight(&mut self, to: &Weight, first_row: usize, rows: WeightRows<'_>) -> Result<()>;

    /// Takes a row of an 8-bit or NVFP4 weight off the device as `halfbyte_formats` writes it (see
    /// [`WeightRows`]), in whole blocks; gives the tensor's scale.
    fn read_row(&mut self, from: &Weight, row: usize, codes: &mut [u8], scales: &mut [u8]) -> Result<f32>;

    /// out[t, c] = table[tokens[t], c]
    fn embed(&mut self, tokens: &[u32], table: &Weight, out: Rows) -> Result<()>;
    /// dtable[tokens[t] - first, c] += dy[t, c], for the tokens among dtable's rows.
    fn embed_gradient(&mut self, tokens: &[u32], first: usize, dy: Rows, dtable: Rows) -> Result<()>;
    /// out[t, c] = gain[c] * x[t, c] / sqrt(mean_c x^2 + eps). Out may be x, or narrow; x may be narrow where the device
    /// rounds the residual.
    fn rms_norm(&mut self, x: Rows, gain: Vector, eps: f32, out: Rows) -> Result<()>;
    /// Whether norms of the residual, and their gradients, take it narrow.
    fn rounds_residual(&self) -> bool {
        false
    }
    /// The same, of x made narrow where that is kept.
    fn norm(&mut self, norm: Norm) -> Result<()> {
        let Norm { x, rounded, gain, eps, out } = norm;
        rounded.map_or(Ok(()), |rounded| self.copy(x, rounded))?;
        self.rms_norm(rounded.unwrap_or(x), gain, eps, out)
    }
    /// dx and dgain have their shares added. X may be narrow as in `rms_norm`.
    fn rms_norm_gradient(
        &mut self,
        x: Rows,
        gain: Vector,
        eps: f32,
        dy: Rows,
        dx: Rows,
        dgain: Vector,
    ) -> Result<()>;
    /// The same, and what dx has become goes to `narrow` too, made narrow.
    fn rms_norm_gradient_narrow(
        &mut self,
        x: Rows,
        gain: Vector,
        eps: f32,
        dy: Rows,
        [dx, narrow]: [Rows; 2],
        dgain: Vector,
    ) -> Result<()> {
        self.rms_norm_gradient(x, gain, eps, dy, dx, dgain)?;
        self.copy(dx, narrow)
    }
    /// Several products of one input, which may be narrow.
    fn linear(&mut self, x: Rows, products: &[Product]) -> Result<()>;
    /// A norm, then several products of its output; a device may do all at once.
    fn normed_linear(&mut self, norm: Norm, products: &[Product]) -> Result<()> {
        self.norm(norm)?;
        self.linear(norm.out, products)
    }
    /// dx[t, k] = sum_n dy[t, n] * weight[n, k], or added to dx. Dy may be narrow.
    fn linear_input_gradient(&mut self, dy: Rows, weight: &Weight, dx: Rows, added: bool) -> Result<()>;
    /// The same summed over several products, each of them rounded as its luck decides ([`Backend::round_gradients`]).
    fn linear_input_gradients(&mut self, of: &[OutputGradient], dx: Rows) -> Result<()> {
        for (i, OutputGradient { dy, weight, luck }) in of.iter().enumerate() {
            self.round_gradients(*luck);
            self.linear_input_gradient(*dy, weight, dx, i > 0)?;
        }
        Ok(())
    }
    /// dw[n, k] = sum_t dy[t, first + n] * x[t, k] for dw's rows n; not rounded if `exact` (f32 weights),
    /// else both may be narrow, and dw where [`Backend::narrow_gradients`] says so. First is a multiple of 64.
    fn linear_weight_gradient(
        &mut self,
        dy: Rows,
        x: Rows,
        exact: bool,
        first: usize,
        dw: Rows,
    ) -> Result<()>;
    /// Whether a weight's gradient that is made of narrow rows of so many tokens, and learnt from at once, may be narrow.
    fn narrow_gradients(&self, _tokens: usize) -> bool {
        false
    }
    /// Whose products the gradients from here on are of: a device that was asked for few bits makes them so, and rounds
    /// as this decides. Without it they are as exact as they always are.
    fn round_gradients(&mut self, _luck: Option<Luck>) {}
    /// db[n] += sum_t dy[t, n]
    fn bias_gradient(&mut self, dy: Rows, db: Vector) -> Result<()>;
    /// Rotates each head of x in place by the angles whose cosines and sines are `turns[t, ..]`.
    fn rope(&mut self, x: Rows, head_dim: usize, turns: Rows) -> Result<()>;
    /// Rotates each head of a gradient back.
    fn rope_gradient(&mut self, dx: Rows, head_dim: usize, turns: Rows) -> Result<()>;
    /// The norm of every head, where there is one, then its rotation, then the cache: see [`heads`].
    fn heads(
        &mut self,
        queries: Heads,
        keys: Heads,
        eps: f32,
        turns: Rows,
        keep: Option<Keep<'_>>,
    ) -> Result<()> {
        heads::one_by_one(self, queries, keys, eps, turns, keep)
    }
    /// Whether heads of so many tokens, as wide as this, may be narrow: those that [`Backend::heads`] takes and turns and
    /// whole samples attend with (through a bf16 cache), values, and all of their gradients.
    fn narrow_heads(&self, _tokens: usize, _head_dim: usize) -> bool {
        false
    }
    /// The way back of [`Backend::heads`]: the rotation, then the norm; the gradients of gains are added. See [`heads`].
    fn heads_gradient(
        &mut self,
        queries: HeadsGradient,
        keys: HeadsGradient,
        eps: f32,
        turns: Rows,
    ) -> Result<()> {
        heads::gradient_one_by_one(self, queries, keys, eps, turns)
    }
    /// Puts keys and values of positions `start..start + t` into the cache.
    fn store(&mut self, keys: Rows, values: Rows, start: usize, cache: &Cache) -> Result<()>;
    /// out[t, h] = sum_j softmax_j(q[t, h] . k[j, h/group] / sqrt(head_dim)) v[j, h/group]. Out may be narrow.
    fn attend(&mut self, q: Rows, cache: &Cache, sight: Sight, out: Rows) -> Result<()>;
    /// The same for whole samples, which see nothing but themselves. The cache is room for one of them; what it
    /// holds afterwards is not said. Out may be narrow.
    fn attend_samples(&mut self, of: &Attention<'_>, cache: &Cache, out: Rows) -> Result<()> {
        attend::sample_by_sample(self, of, cache, out)
    }
    /// [`Backend::heads`] with a cache, then [`Backend::attend`]: a device may do all at once, and leaves queries and
    /// keys in any state.
    fn heads_attend(&mut self, of: Fresh<'_>, window: Option<usize>, out: Rows) -> Result<()> {
        heads::then_attend(self, of, window, out)
    }
    /// Gradients of the samples' queries, keys and values. Out is what attention gave, which may be narrow. See `attend`.
    fn attend_gradient(
        &mut self,
        of: &Attention<'_>,
        out: Rows,
        dout: Rows,
        dq: Rows,
        dk: Rows,
        dv: Rows,
    ) -> Result<()>;
    /// out[t, c] = 0
    fn clear(&mut self, out: Rows) -> Result<()>;
    /// out[t, c] = x[t, c]. Out may be narrow.
    fn copy(&mut self, x: Rows, out: Rows) -> Result<()>;
    /// out[t, c] += x[t, c]
    fn add(&mut self, x: Rows, out: Rows) -> Result<()>;
    /// out = silu(x gate) * (x up), where `kept` are the two products, if they are wanted; both may be narrow. Two
    /// weights of different formats need `kept` in f32. X and out may be narrow.
    fn gated(
        &mut self,
        x: Rows,
        gate: Matrix,
        up: Matrix,
        kept: Option<(Rows, Rows)>,
        out: Rows,
    ) -> Result<()>;
    /// A norm, then a gated pair of its output; a device may do all at once.
    fn normed_gated(
        &mut self,
        norm: Norm,
        gate: Matrix,
        up: Matrix,
        kept: Option<(Rows, Rows)>,
        out: Rows,
    ) -> Result<()> {
        self.norm(norm)?;
        self.gated(norm.out, gate, up, kept, out)
    }
    /// Gradients of the products that a gated pair kept, from dy of what `down` made of their mix:
    /// in their places, or elsewhere, where they may be narrow. What was kept and dy may be narrow too. See `gated`.
    fn gated_gradient(
        &mut self,
        dy: Rows,
        down: &Weight,
        kept: (Rows, Rows),
        dgate: Rows,
        dup: Rows,
    ) -> Result<()>;
    /// Does for a token what was recorded of another's ops, which were the same but for what [`Next`] has. False where
    /// nothing is recorded: then the ops from here to [`Backend::recorded`] may be, and are done when that is asked for.
    fn again(&mut self, _next: &Next<'_>) -> Result<bool> {
        Ok(false)
    }
    /// What began with [`Backend::again`] ends here. False where it was not done: a device failed to record it, or it was
    /// not asked for whole, because an op failed.
    fn recorded(&mut self, whole: bool) -> Result<bool> {
        Ok(whole)
    }
    /// The highest values of a row, best first; false where one of the row's is not finite. See `best`.
    fn best(&mut self, x: Rows, best: &mut [best::Best]) -> Result<bool> {
        best::by_reading(self, x, best)
    }
    /// Takes the logits of the words from `first` on into the tokens' state. See `loss`.
    fn loss(&mut self, logits: Rows, first: usize, targets: &[u32], state: Rows) -> Result<()>;
    /// The same, and out = e^(logit - m) with the m of the new state: in place of the logits, or elsewhere, where it may
    /// be narrow and leaves nothing certain of the logits. Sums over the words so far that such numbers are factors of
    /// become those of the new m. See `loss`.
    fn loss_exponentials(
        &mut self,
        logits: Rows,
        first: usize,
        targets: &[u32],
        state: Rows,
        out: Rows,
        sums: Rows,
    ) -> Result<()>;
    /// dx[t, k] = `weight` * (dx[t, k] / s - of_targets[t, k]), or zero where there is no target: the gradient of the
    /// head's input from the sum of the head's rows times their exponentials and from the targets' rows. See `loss`.
    fn loss_input_gradient(
        &mut self,
        targets: &[u32],
        state: Rows,
        weight: f32,
        of_targets: Rows,
        dx: Rows,
    ) -> Result<()>;
    /// out = `weight` times the gradients of the tokens' losses by their logits: in their place, or elsewhere, where it
    /// may be narrow and leaves nothing certain of the logits. See `loss`.
    fn loss_gradient(
        &mut self,
        logits: Rows,
        first: usize,
        targets: &[u32],
        state: Rows,
        weight: f32,
        out: Rows,
    ) -> Result<()>;
    /// Adds rows `first..` of a gradient to what is stored of it. Values that storage cannot hold count as
    /// refused. See `accumulate`.
    fn accumulate(
        &mut self,
        gradient: Rows,
        first: usize,
        to: &accumulate::Stored,
        share: &accumulate::Share,
    ) -> Result<()>;
    /// out = factor * rows `first..` of a stored gradient.
    fn accumulated(&mut self, from: &accumulate::Stored, first: usize, factor: f32, out: Rows) -> Result<()>;
    /// Sum of the squares of a stored gradient.
    fn accumulated_squares(&mut self, of: &accumulate::Stored) -> Result<f64>;
    /// A weight learns from rows `first..` of its gradient, which may be narrow where [`Backend::narrow_gradients`] says
    /// so. Rows come in order. See `update`.
    fn update(
        &mut self,
        of: &Weight,
        first: usize,
        gradient: Rows,
        kept: &update::Kept,
        step: &update::Step,
    ) -> Result<()>;
    /// A weight learns from rows of its gradient, of which only some need exist at a time; `room` is a place for
    /// them. Gives the number of tallies that makes. See [`learn`].
    fn learn(
        &mut self,
        of: &Weight,
        from: &learn::Factors<'_>,
        kept: &update::Kept,
        step: &update::Step,
        room: Buffer,
    ) -> Result<usize> {
        learn::in_parts(self, of, from, kept, step, room)
    }
    /// A vector learns.
    fn update_vector(
        &mut self,
        of: Vector,
        gradient: Rows,
        kept: &update::Kept,
        step: &update::Step,
    ) -> Result<()>;
    /// What each call of `accumulate`, `update`, `learn` and `update_vector` since the last reading did. Waits for
    /// them.
    fn tallies(&mut self) -> Result<Tallies>;
    /// Kernels since the last reading and their times, in order, where the device can note them; the first reading
    /// begins the noting. Waits for them.
    fn profile(&mut self) -> Result<Vec<(&'static str, Duration)>> {
        Ok(Vec::new())
    }
}
