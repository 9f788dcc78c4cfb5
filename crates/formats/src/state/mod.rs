//! What training keeps between steps: narrow weights, moments and second moments, and how a step moves them.
//!
//! ```text
//! g -> adamw(m, v, w) -> m' -> moment (4 or 8 bits, stochastic) ;  v: second (factored, per row, full)
//!                     -> delta -> weight (NVFP4 + remainder) | int8 (8-bit block + remainder) | master
//! ```
//!
//! Everything here is a pure function on a row or on a block of 16: nothing is allocated, nothing
//! depends on what lies around the block, and every random bit is [`draw::Draws`], keyed by
//! (seed, step, tensor, element). So a tensor may be cut at any block, for any number of threads.
//!
//! **Zero update, zero bytes changed** holds in every mode: a block whose sixteen updates are zero is
//! left alone, and elsewhere an element moves by whole units from where it lies, never by decoding
//! and rounding again; none moves without an update. Only when a block changes its scale are its sixteen numbers rounded anew.
//!
//! Rows consist of whole blocks. Whoever owns a shorter row pads it with zeros, which stay zero
//! under zero updates.

pub mod adamw;
pub mod draw;
pub mod int8;
pub mod master;
pub mod moment;
pub mod second;
mod units;
pub mod weight;

pub use units::LUCK_BASE;

/// Values that share one scale, in every format of this module.
pub const BLOCK: usize = 16;

/// What an update did, to be summed over blocks, rows and tensors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Codes of the exported plane that are not what they were.
    pub changed: u64,
    /// Blocks that got another scale.
    pub rescaled: u64,
    /// Elements held at the end of the range, because no scale was large enough.
    pub saturated: u64,
    /// Blocks left as they were, because the update or the stored block is not finite.
    pub refused: u64,
    /// Sum of the squares of the updates, decay apart, in learning rates and [`SQUARES_PER_ONE`]: whole
    /// numbers for every block, so that no order of summing shows.
    pub squares: u64,
}

/// [`Tally::squares`] of one element that moved by the learning rate.
pub const SQUARES_PER_ONE: f32 = 65536.0;

impl Tally {
    /// Adds what another part of the work did.
    pub fn add(&mut self, other: Tally) {
        self.changed += other.changed;
        self.rescaled += other.rescaled;
        self.saturated += other.saturated;
        self.refused += other.refused;
        self.squares += other.squares;
    }
}

/// What sixteen weights are moved by: size * times * along[i] - decay * w[i].
#[derive(Clone, Copy, Debug)]
pub struct Push<'a> {
    /// Its direction.
    pub along: &'a [f32; BLOCK],
    /// How far.
    pub size: f32,
    /// How many times as far: one over a row's root.
    pub times: f32,
    /// Share of itself that each weight loses.
    pub decay: f32,
}

impl<'a> Push<'a> {
    /// w += delta.
    pub fn by(delta: &'a [f32; BLOCK]) -> Self {
        Push { along: delta, size: 1.0, times: 1.0, decay: 0.0 }
    }

    /// What is added to weights `w`.
    #[inline(always)]
    pub fn values(&self, w: &[f32; BLOCK]) -> [f32; BLOCK] {
        let mut delta = [0.0; BLOCK];
        for i in 0..BLOCK {
            delta[i] = self.size * self.times * self.along[i] - self.decay * w[i];
        }
        delta
    }

    /// Whole units by which weights of `k` units move, rounded down or up as the upper halves of `bits` decide. Of units so
    /// small that a step is infinitely many, what does not move comes out far away as well: a block whose weights lie there
    /// is moved by its values instead.
    #[inline(always)]
    fn whole_units(&self, k: &[i32; BLOCK], unit: f32, bits: &[u32; BLOCK]) -> [i32; BLOCK] {
        let times = self.size / unit * self.times;
        let (mut moves, mut sums, mut whole) = ([0.0; BLOCK], [0.0; BLOCK], [0; BLOCK]);
        for i in 0..BLOCK {
            let luck = units::luck(bits[i]);
            // One rounding where nothing decays.
            (moves[i], sums[i]) = if self.decay == 0.0 {
                (self.along[i] * times, self.along[i].mul_add(times, luck))
            } else {
                let t = self.along[i].mul_add(times, -(self.decay * k[i] as f32));
                (t, t + luck)
            };
            whole[i] = units::settled(sums[i]);
        }
        if !units::all_near(&sums) {
            for i in (0..BLOCK).filter(|&i| !units::near(sums[i])) {
                whole[i] = units::stochastic(units::hold(moves[i]), bits[i]);
            }
        }
        whole
    }
}

/// An exponential average: how much of the old stays, and how much of the new comes in.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Average {
    /// beta.
    pub keep: f32,
    /// 1 - beta.
    pub fresh: f32,
}

impl Average {
    /// beta and 1 - beta, both rounded from f64: in f32 the second would be off by 1e-5 at 0.999.
    pub fn new(beta: f64) -> Self {
        Average { keep: beta as f32, fresh: (1.0 - beta) as f32 }
    }

    /// beta * old + (1 - beta) * new.
    #[inline(always)]
    pub fn of(self, old: f32, new: f32) -> f32 {
        self.keep * old + self.fresh * new
    }
}
