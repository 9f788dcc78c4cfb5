//! Learning from gradients, and a run around its steps: schedule, records, run folder, checkpoints on disk, report.
//!
//! ```text
//! Schedule, Groups ─> step ─> Record ─> Journal (log.jsonl) ─> Live (one line), Report (one HTML file)
//!                       └─> Staging (parts, manifest last) ─> checkpoints/000412 ─> Snapshot, on resume
//! ```
//! A run that is killed at any moment goes on from its newest whole checkpoint; what is not whole is
//! never mistaken for it. Nothing here prints.
#![forbid(unsafe_code)]

mod accumulation;
mod adam;
mod binding;
mod disk;
mod error;
mod exact;
mod folder;
mod groups;
mod hash;
mod journal;
mod line;
mod manifest;
mod plot;
mod record;
mod report;
mod schedule;
mod snapshot;
mod spike;
mod staging;
mod style;
mod words;

pub use accumulation::{Accumulation, STORAGE, Taken};
pub use adam::Adam;
pub use binding::{Binding, Difference, Facts};
pub use error::{Error, Result};
pub use folder::{Resumed, RunFolder};
pub use groups::{GroupSettings, RateScale, Training, groups};
pub use hash::Hash;
pub use journal::{Entry, Journal, Tail, read as read_journal};
pub use line::{Live, Pace};
pub use manifest::{DataPosition, FORMAT, Manifest, Part, Progress};
pub use plot::{Mark, Plot, Series, svg};
pub use record::{Record, Sample};
pub use report::{Check, Pair, Report, html, losses_of};
pub use schedule::{Decay, Schedule, ScheduleSettings, WarmUp};
pub use snapshot::{Found, Passed, Saved, Snapshot, Snapshots};
pub use spike::{Spike, SpikeWatch};
pub use staging::Staging;
pub use words::memory_size;
