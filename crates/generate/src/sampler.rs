//! logits -> penalties -> top-k -> top-p -> min-p -> temperature -> one id.
//!
//! The order is llama.cpp's: the filters look at the model's own distribution, and the temperature
//! only shapes the choice among what they left (transformers divides by the temperature first, so
//! there a high temperature also lets more tokens through top-p).
//!
//! - repetition: a positive logit of a token in the window is divided by the penalty, a negative one
//!   multiplied; frequency and presence are subtracted, once per occurrence and once in all
//! - no-repeat n-gram: a token that would complete an n-gram of the history is excluded
//! - top-k: the k best; equal logits in order of their ids
//! - top-p: the best tokens until their probability reaches p; the one that crosses stays
//! - min-p: tokens at least min-p times as probable as the best
//! - temperature 0 takes the best token, the lowest id if several are equal
//!
//! Draw n uses the Philox bits keyed by (seed, stream, n), so a reply can be repeated, and the next turn goes
//! on with the next draw instead of starting again. Probabilities are f64, summed in a fixed order.

use std::collections::HashMap;

use halfbyte_formats::philox::random_bits;
use halfbyte_ops::best::Best;

/// Keeps the sampler's random bits apart from those of tensors.
const STREAM: u64 = u64::from_be_bytes(*b"sampler\0");
/// How many of the best tokens are ordered first when top-k does not say; grown as needed.
const FIRST_ORDERED: usize = 256;

/// What can go wrong in choosing a token.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Error {
    /// A setting outside its range.
    #[error("{name} = {value}: must be {allowed}")]
    Setting {
        /// Name of the setting.
        name: &'static str,
        /// The value given.
        value: f64,
        /// The range it must be in.
        allowed: &'static str,
    },
    /// The model gave a logit that is not a number, or infinite.
    #[error("the logit of token {index} is not finite")]
    NonFinite {
        /// Token whose logit it is.
        index: usize,
    },
    /// There is nothing to choose from.
    #[error(
        "no token is left to choose: every one would repeat an n-gram. Raise no_repeat_ngram or set it to 0."
    )]
    NothingLeft,
}

/// How the next token is chosen. The default is greedy.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SamplerSettings {
    /// 0 takes the best token; 1 the model's own distribution.
    pub temperature: f32,
    /// Only this many best tokens; 0 is off.
    pub top_k: usize,
    /// Only the best tokens that together have this probability; 1 is off.
    pub top_p: f32,
    /// Only tokens this many times as probable as the best; 0 is off.
    pub min_p: f32,
    /// Divides or multiplies logits of tokens seen before; 1 is off.
    pub repetition_penalty: f32,
    /// Subtracted once from tokens seen before; 0 is off.
    pub presence_penalty: f32,
    /// Subtracted from tokens seen before, for each time; 0 is off.
    pub frequency_penalty: f32,
    /// Penalties look at this many last tokens; 0 looks at all.
    pub repeat_window: usize,
    /// No n-gram of this length appears twice; 0 is off.
    pub no_repeat_ngram: usize,
    /// Seed of the random draws.
    pub seed: u64,
}

impl Default for SamplerSettings {
    fn default() -> Self {
        SamplerSettings {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            repeat_window: 64,
            no_repeat_ngram: 0,
            seed: 0,
        }
    }
}

impl SamplerSettings {
    fn check(&self) -> Result<(), Error> {
        let unit = |x: f32| (0.0..=1.0).contains(&x);
        let finite = |x: f32| x.is_finite();
        let rules: [(&'static str, f32, bool, &'static str); 6] = [
            (
                "temperature",
                self.temperature,
                finite(self.temperature) && self.temperature >= 0.0,
                "0 or a positive number",
            ),
            ("top_p", self.top_p, unit(self.top_p), "from 0 to 1"),
            ("min_p", self.min_p, unit(self.min_p), "from 0 to 1"),
            (
                "repetition_penalty",
                self.repetition_penalty,
                finite(self.repetition_penalty) && self.repetition_penalty > 0.0,
                "a positive number",
            ),
            ("presence_penalty", self.presence_penalty, finite(self.presence_penalty), "a finite number"),
            ("frequency_penalty", self.frequency_penalty, finite(self.frequency_penalty), "a finite number"),
        ];
        match rules.into_iter().find(|(_, _, holds, _)| !holds) {
            Some((name, value, _, allowed)) => Err(Error::Setting { name, value: f64::from(value), allowed }),
            None => Ok(()),
        }
    }
}

/// Chooses tokens; keeps only which draws it makes, and their number.
#[derive(Debug, Clone)]
pub struct Sampler {
    settings: SamplerSettings,
    stream: u64,
    draws: u64,
}

impl Sampler {
    /// Refuses settings outside their range, by name.
    pub fn new(settings: SamplerSettings) -> Result<Self, Error> {
        settings.check()?;
        Ok(Sampler { settings, stream: 0, draws: 0 })
    }

    /// One with draws of its own, for every number: what others draw does not change them.
    pub fn stream(&self, number: u64) -> Sampler {
        Sampler { settings: self.settings, stream: number, draws: 0 }
    }

    /// Goes on after `draws` draws, as a saved session does.
    pub fn continue_from(mut self, draws: u64) -> Self {
        self.draws = draws;
        self
    }

    /// Random draws made so far; greedy choices make none.
    pub fn draws(&self) -> u64 {
        self.draws
    }

    /// The settings in use.
    pub fn settings(&self) -> &SamplerSettings {
        &self.settings
    }

    /// The next token. `history` holds prompt and reply so far; penalties change `logits` in place.
    pub fn sample(&mut self, logits: &mut [f32], history: &[u32]) -> Result<u32, Error> {
        if let Some(index) = logits.iter().position(|logit| !logit.is_finite()) {
            return Err(Error::NonFinite { index });
        }
        self.penalize(logits, history);
        exclude_repeated(logits, history, self.settings.no_repeat_ngram);
        if self.settings.temperature == 0.0 {
            return best(logits);
        }
        let kept = self.filter(logits);
        if kept.is_empty() {
            return Err(Error::NothingLeft);
        }
        let chosen = choose(&kept, f64::from(self.settings.temperature), self.draw());
        Ok(chosen)
    }

    /// How many of the best of so many tokens decide the choice, whatever the others are; `None` where all do.
    pub fn deciding(&self, vocabulary: usize) -> Option<usize> {
        let s = &self.settings;
        let few = if s.temperature == 0.0 { 1 } else { s.top_k };
        (!self.penalizes() && s.no_repeat_ngram == 0 && (1..vocabulary).contains(&few)).then_some(few)
    }

    /// The token that [`Sampler::sample`] would choose, from those that decide, best first.
    pub fn sample_best(&mut self, best: &[Best]) -> u32 {
        if self.settings.temperature == 0.0 {
            return best[0].column;
        }
        let kept = self.most_probable(best.to_vec());
        choose(&kept, f64::from(self.settings.temperature), self.draw())
    }

    fn penalizes(&self) -> bool {
        let s = &self.settings;
        s.repetition_penalty != 1.0 || s.presence_penalty != 0.0 || s.frequency_penalty != 0.0
    }

    fn penalize(&self, logits: &mut [f32], history: &[u32]) {
        let s = &self.settings;
        if !self.penalizes() {
            return;
        }
        let start = match s.repeat_window {
            0 => 0,
            window => history.len().saturating_sub(window),
        };
        let mut counts: HashMap<u32, f32> = HashMap::new();
        for &id in &history[start..] {
            *counts.entry(id).or_default() += 1.0;
        }
        for (id, count) in counts {
            let Some(logit) = logits.get_mut(id as usize) else {
                continue;
            };
            let scaled = match *logit > 0.0 {
                true => *logit / s.repetition_penalty,
                false => *logit * s.repetition_penalty,
            };
            let penalized = scaled - count * s.frequency_penalty - s.presence_penalty;
            *logit = penalized.clamp(f32::MIN, f32::MAX);
        }
    }

    /// What the filters leave: best first if they had to order, else in order of ids.
    fn filter(&self, logits: &[f32]) -> Vec<Best> {
        let top_k = self.settings.top_k;
        // Room for all at once: most of the time all are left.
        let mut candidates = Vec::with_capacity(logits.len());
        let finite = logits.iter().zip(0..).filter(|(logit, _)| logit.is_finite());
        candidates.extend(finite.map(|(&value, column)| Best { column, value }));
        if top_k > 0 && top_k < candidates.len() {
            candidates.select_nth_unstable_by(top_k - 1, Best::order);
            candidates.truncate(top_k);
            candidates.sort_unstable_by(Best::order);
        }
        self.most_probable(candidates)
    }

    /// What top-p and min-p leave of what top-k did.
    fn most_probable(&self, mut candidates: Vec<Best>) -> Vec<Best> {
        let s = &self.settings;
        let Some(most) = candidates.iter().map(|c| c.value).reduce(f32::max) else {
            return candidates;
        };
        let top_p_mass = match s.top_p < 1.0 {
            true => {
                let total: f64 = candidates.iter().map(|c| weight(c.value, most, 1.0)).sum();
                Some(f64::from(s.top_p) * total)
            }
            false => None,
        };
        if s.min_p > 0.0 {
            let least = f64::from(s.min_p);
            // Of tokens ordered by probability this removes the tail, so it may come before top-p.
            candidates.retain(|c| weight(c.value, most, 1.0) >= least);
        }
        if let Some(mass) = top_p_mass {
            return best_until(candidates, mass, most);
        }
        candidates
    }

    /// A number in [0, 1) with 53 random bits.
    fn draw(&mut self) -> f64 {
        let half = |i| u64::from(random_bits(self.settings.seed, self.draws, STREAM, 2 * self.stream + i));
        let (high, low) = (half(0), half(1));
        self.draws += 1;
        ((high << 32 | low) >> 11) as f64 / (1u64 << 53) as f64
    }
}

fn weight(logit: f32, most: f32, temperature: f64) -> f64 {
    exp_below_zero((f64::from(logit) - f64::from(most)) / temperature)
}

/// e^x for x of at most zero, within 1e-11 of it; below -700 what it is there. A library's is exact and takes ten times
/// as long, and a choice wants one for every word of the vocabulary: this one is computed for several at once.
#[inline(always)]
fn exp_below_zero(x: f64) -> f64 {
    /// 1.5 * 2^52: adding it rounds to a whole number, which the lowest bits then hold.
    const SHIFT: f64 = 6_755_399_441_055_744.0;
    /// ln 2 in two parts, the first of which is exact when multiplied by so small a number.
    const LN_2: [f64; 2] = [0.693_147_180_369_123_8, 1.908_214_929_270_587_7e-10];
    let x = if x > -700.0 { x } else { -700.0 };
    let shifted = x * std::f64::consts::LOG2_E + SHIFT;
    let n = shifted - SHIFT;
    let r = x - n * LN_2[0] - n * LN_2[1];
    // 1 + r + r^2 / 2! + ... + r^9 / 9!
    let mut p = 1.0 / 362_880.0;
    for factorial in [40_320.0, 5_040.0, 720.0, 120.0, 24.0, 6.0, 2.0, 1.0, 1.0] {
        p = p * r + 1.0 / factorial;
    }
    p * f64::from_bits(shifted.to_bits().wrapping_add(1023) << 52)
}

fn best(logits: &[f32]) -> Result<u32, Error> {
    let mut found: Option<(u32, f32)> = None;
    for (&logit, id) in logits.iter().zip(0..) {
        if logit.is_finite() && found.is_none_or(|(_, most)| logit > most) {
            found = Some((id, logit));
        }
    }
    found.map(|(id, _)| id).ok_or(Error::NothingLeft)
}

/// The best candidates, in order, up to and with the one whose weight reaches `mass`.
fn best_until(mut candidates: Vec<Best>, mass: f64, most: f32) -> Vec<Best> {
    let mut ordered = FIRST_ORDERED;
    loop {
        let whole = ordered >= candidates.len();
        if !whole {
            candidates.select_nth_unstable_by(ordered - 1, Best::order);
        }
        let end = ordered.min(candidates.len());
        candidates[..end].sort_unstable_by(Best::order);
        let mut sum = 0.0;
        let crossing = candidates[..end].iter().position(|c| {
            sum += weight(c.value, most, 1.0);
            sum >= mass
        });
        match crossing {
            Some(last) => {
                candidates.truncate(last + 1);
                return candidates;
            }
            None if whole => return candidates,
            None => ordered *= 8,
        }
    }
}

/// The candidate at `draw` of the cumulated probability.
fn choose(candidates: &[Best], temperature: f64, draw: f64) -> u32 {
    let most = candidates.iter().map(|c| c.value).fold(f32::MIN, f32::max);
    let weights: Vec<f64> = candidates.iter().map(|c| weight(c.value, most, temperature)).collect();
    let mut left = draw * weights.iter().sum::<f64>();
    for (candidate, weight) in candidates.iter().zip(weights) {
        left -= weight;
        if left < 0.0 {
            return candidate.column;
        }
    }
    // Rounding can leave a rest after the last token; the best one is never wrong.
    candidates.iter().min_by(|a, b| a.order(b)).map_or(0, |c| c.column)
}

/// Sets the logit of every token that would complete an n-gram of the history to minus infinity.
fn exclude_repeated(logits: &mut [f32], history: &[u32], length: usize) {
    if length == 0 || history.len() < length {
        return;
    }
    let begun = &history[history.len() + 1 - length..];
    for window in history.windows(length) {
        let (start, last) = window.split_at(length - 1);
        if start == begun
            && let Some(logit) = logits.get_mut(last[0] as usize)
        {
            *logit = f32::NEG_INFINITY;
        }
    }
}

#[cfg(test)]
mod tests;
