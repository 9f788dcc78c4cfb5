//! Does it fit, and if not, what is the smallest change that would?

use crate::Plan;
use crate::memory::Memory;
use crate::settings::{Settings, WeightChoice};
use halfbyte_ops::CacheFormat;

/// The answer.
#[derive(Clone, Debug)]
pub enum Fit {
    /// It fits, or there is no meter to say otherwise.
    Fits,
    /// It does not, by so many bytes.
    Lacks {
        /// Bytes over the budget.
        bytes: u64,
        /// Changes that would make it fit, smallest first.
        changes: Vec<Change>,
    },
}

/// One change of the settings.
#[derive(Clone, Debug)]
pub struct Change {
    /// The flag to add.
    pub flag: String,
    /// What it would then need.
    pub peak_bytes: usize,
}

/// Judges a plan; `again` plans other settings.
pub fn fit(plan: &Plan, memory: Option<Memory>, again: &dyn Fn(&Settings) -> Plan) -> Fit {
    let Some(memory) = memory else {
        return Fit::Fits;
    };
    let (need, budget) = (plan.peak_bytes() as u64, memory.budget());
    if need <= budget {
        return Fit::Fits;
    }
    let fits = |settings: &Settings| {
        let plan = again(settings);
        (plan.peak_bytes() as u64 <= budget).then(|| plan.peak_bytes())
    };
    let settings = &plan.settings;
    let mut changes = Vec::new();
    if let Some((context, peak_bytes)) = largest_context(settings, &fits) {
        changes.push(Change { flag: format!("--context {context}"), peak_bytes });
    }
    let int8 = Settings { cache: CacheFormat::Int8, ..settings.clone() };
    if settings.cache != CacheFormat::Int8
        && let Some(peak_bytes) = fits(&int8)
    {
        changes.push(Change { flag: "--cache int8".into(), peak_bytes });
    }
    let nvfp4 = Settings { weights: WeightChoice::Nvfp4, ..settings.clone() };
    if settings.weights != WeightChoice::Nvfp4
        && let Some(peak_bytes) = fits(&nvfp4)
    {
        changes.push(Change { flag: "--weights nvfp4".into(), peak_bytes });
    }
    Fit::Lacks { bytes: need - budget, changes }
}

/// The longest context below the asked one that fits, if it is worth having.
fn largest_context(settings: &Settings, fits: &dyn Fn(&Settings) -> Option<usize>) -> Option<(usize, usize)> {
    const STEP: usize = 256;
    let try_steps = |steps: usize| {
        let context = steps * STEP;
        let chunk = settings.chunk.min(context);
        fits(&Settings { context, chunk, ..settings.clone() }).map(|peak| (context, peak))
    };
    let (mut low, mut high) = (0, settings.context / STEP);
    let mut best = None;
    while low < high {
        let middle = (low + high).div_ceil(2);
        match try_steps(middle) {
            Some(found) => (low, best) = (middle, Some(found)),
            None => high = middle - 1,
        }
    }
    best
}
