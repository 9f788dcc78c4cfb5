//! `bench --profile`: where the time of a step, a prompt and a token goes, kernel by kernel.

use std::collections::HashMap;

use halfbyte_ops::Backend;
use serde::Serialize;

use crate::failure::{Failure, Result};
use crate::place::Place;

/// Kernels named in a table; the rest is one line.
const NAMED: usize = 20;

/// All calls of one kernel.
#[derive(Serialize)]
struct Spent {
    kernel: &'static str,
    calls: usize,
    seconds: f64,
}

/// What something spent.
#[derive(Serialize)]
pub(super) struct Profile {
    what: &'static str,
    /// In kernels; what the device waited for is not in it.
    seconds: f64,
    kernels: Vec<Spent>,
}

/// Refuses to wait for a profile that will not come.
pub(super) fn check(wanted: bool, place: &Place) -> Result<()> {
    match place {
        Place::Cpu { .. } if wanted => Err(Failure::misuse(
            "--profile: only a GPU notes the times of its kernels; on a CPU use the system's profiler",
        )),
        _ => Ok(()),
    }
}

impl Profile {
    /// From here on the device notes times.
    pub(super) fn begin(backend: &mut dyn Backend) -> Result<()> {
        backend.profile()?;
        Ok(())
    }

    /// What was done since the beginning, or since the last end.
    pub(super) fn end(what: &'static str, backend: &mut dyn Backend) -> Result<Profile> {
        let noted = backend.profile()?;
        let mut sums: HashMap<&'static str, (usize, f64)> = HashMap::new();
        for (kernel, time) in noted {
            let sum = sums.entry(kernel).or_default();
            *sum = (sum.0 + 1, sum.1 + time.as_secs_f64());
        }
        let each = sums.into_iter().map(|(kernel, (calls, seconds))| Spent { kernel, calls, seconds });
        let mut kernels: Vec<Spent> = each.collect();
        kernels.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
        Ok(Profile { what, seconds: kernels.iter().map(|spent| spent.seconds).sum(), kernels })
    }

    /// A table, longest first.
    pub(super) fn print(&self) {
        println!("\n{}: {:.2} ms in kernels", self.what, self.seconds * 1e3);
        let line = |name: &str, calls: usize, seconds: f64| {
            println!(
                "  {name:<32} {calls:>6} × {:>9.1} µs {:>9.2} ms {:>5.1}%",
                seconds / calls as f64 * 1e6,
                seconds * 1e3,
                100.0 * seconds / self.seconds
            );
        };
        let (named, rest) = self.kernels.split_at(NAMED.min(self.kernels.len()));
        named.iter().for_each(|spent| line(spent.kernel, spent.calls, spent.seconds));
        if !rest.is_empty() {
            let calls = rest.iter().map(|spent| spent.calls).sum();
            line("the rest", calls, rest.iter().map(|spent| spent.seconds).sum());
        }
    }
}
