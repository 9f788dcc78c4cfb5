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
    let Some((bytes, budget)) = lack(plan, memory) else {
        return Fit::Fits;
    };
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
    Fit::Lacks { bytes, changes }
}

/// Bytes that a plan is over the budget, and the budget; `None` where it fits, or where there is no
/// meter to say otherwise.
pub fn lack(plan: &Plan, memory: Option<Memory>) -> Option<(u64, u64)> {
    let (need, budget) = (plan.peak_bytes() as u64, memory?.budget());
    (need > budget).then(|| (need - budget, budget))
}

/// The largest number from 1 to `most` that fits, with what it needs then. Larger ones need more.
pub fn largest(most: usize, fits: &dyn Fn(usize) -> Option<usize>) -> Option<(usize, usize)> {
    let (mut low, mut high, mut best) = (0, most, None);
    while low < high {
        let middle = (low + high).div_ceil(2);
        match fits(middle) {
            Some(peak) => (low, best) = (middle, Some((middle, peak))),
            None => high = middle - 1,
        }
    }
    best
}

/// The longest context below the asked one that fits, if it is worth having.
fn largest_context(settings: &Settings, fits: &dyn Fn(&Settings) -> Option<usize>) -> Option<(usize, usize)> {
    const STEP: usize = 256;
    let found = largest(settings.context / STEP, &|steps| {
        let context = steps * STEP;
        fits(&Settings { context, chunk: settings.chunk.min(context), ..settings.clone() })
    });
    found.map(|(steps, peak)| (steps * STEP, peak))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_that_fits_is_found_and_no_more_is_tried_than_needed() {
        let tried = std::cell::Cell::new(0);
        let up_to = |limit: usize| move |n: usize| (n <= limit).then_some(n * 10);
        for limit in 0..40 {
            let expected = (limit > 0).then_some((limit.min(33), limit.min(33) * 10));
            assert_eq!(largest(33, &up_to(limit)), expected);
        }
        let counted = |n: usize| {
            tried.set(tried.get() + 1);
            up_to(7)(n)
        };
        assert_eq!(largest(1 << 16, &counted), Some((7, 70)));
        assert!(tried.get() <= 17);
        assert_eq!(largest(0, &|_| Some(1)), None);
    }
}
