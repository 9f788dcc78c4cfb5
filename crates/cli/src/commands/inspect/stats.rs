//! Ranges, broken values and block scales of every tensor, read once, run by run.

use std::fmt::Write as _;
use std::ops::Range;

use halfbyte_checkpoint::{Checkpoint, Tensor};
use halfbyte_formats::{blocked, e4m3};
use serde_json::{Value, json};

use crate::failure::Result;
use crate::output::{Progress, grouped};
use crate::rows::{self, each_run, runs};
use crate::summary::shape_text;

/// Classes of block scales: zero, then one for each exponent from 2^-9 to 2^8.
const CLASSES: usize = 19;

/// What the values of a tensor are like.
#[derive(Clone, Debug, Default)]
pub(super) struct Stats {
    min: f32,
    max: f32,
    sum_abs: f64,
    finite: u64,
    nan: u64,
    infinite: u64,
    /// Block scales by size; `None` for tensors without.
    scales: Option<[u64; CLASSES]>,
    /// Whether all scales came back from the 128×4 layout.
    blocked: bool,
}

impl Stats {
    fn new() -> Stats {
        Stats { min: f32::INFINITY, max: f32::NEG_INFINITY, blocked: true, ..Stats::default() }
    }

    fn of(values: &[f32]) -> Stats {
        let mut stats = Stats::new();
        for value in values {
            if value.is_finite() {
                stats.min = stats.min.min(*value);
                stats.max = stats.max.max(*value);
                stats.sum_abs += f64::from(value.abs());
                stats.finite += 1;
            } else if value.is_nan() {
                stats.nan += 1;
            } else {
                stats.infinite += 1;
            }
        }
        stats
    }

    fn add(&mut self, other: &Stats) {
        self.min = self.min.min(other.min);
        self.max = self.max.max(other.max);
        self.sum_abs += other.sum_abs;
        self.finite += other.finite;
        self.nan += other.nan;
        self.infinite += other.infinite;
        self.blocked &= other.blocked;
        if let Some(theirs) = &other.scales {
            let ours = self.scales.get_or_insert([0; CLASSES]);
            ours.iter_mut().zip(theirs).for_each(|(ours, theirs)| *ours += theirs);
        }
    }

    fn mean_abs(&self) -> f64 {
        self.sum_abs / self.finite.max(1) as f64
    }

    pub(super) fn json(&self) -> Value {
        let finite = |value: f32| value.is_finite().then_some(value);
        let mut value = json!({
            "min": finite(self.min),
            "max": finite(self.max),
            "mean_abs": self.mean_abs(),
            "nan": self.nan,
            "infinite": self.infinite,
        });
        if let Some(scales) = &self.scales {
            value["scales"] = histogram_json(scales);
            value["blocked_round_trip"] = json!(self.blocked);
        }
        value
    }
}

/// Statistics of every tensor, in their order.
pub(super) fn read(checkpoint: &Checkpoint) -> Result<Vec<Stats>> {
    let values: u64 = checkpoint.tensors.iter().map(|tensor| tensor.values() as u64).sum();
    let mut progress = Progress::new("reading", values);
    let mut all = Vec::new();
    for tensor in &checkpoint.tensors {
        let parts =
            each_run(&runs(tensor.rows(), tensor.columns()), |run| run_stats(checkpoint, tensor, run))?;
        let mut total = Stats::new();
        parts.iter().for_each(|part| total.add(part));
        all.push(total);
        progress.add(tensor.values() as u64);
    }
    Ok(all)
}

fn run_stats(checkpoint: &Checkpoint, tensor: &Tensor, run: Range<usize>) -> Result<Stats> {
    let mut stats = Stats::of(&rows::read(checkpoint, tensor, run.clone())?);
    if !tensor.encoding.is_nvfp4() {
        return Ok(stats);
    }
    let (rows, columns) = (run.len(), tensor.columns());
    let (mut codes, mut scales) = (vec![0; rows * columns / 2], vec![0; rows * columns / 16]);
    checkpoint.read_nvfp4(tensor, run, &mut codes, &mut scales)?;
    let mut histogram = [0; CLASSES];
    scales.iter().for_each(|scale| histogram[class(*scale)] += 1);
    stats.scales = Some(histogram);
    stats.blocked = blocked_round_trip(&scales, rows, columns / 16);
    Ok(stats)
}

/// Class 0 is zero, class n holds [2^(n-10), 2^(n-9)).
fn class(scale: u8) -> usize {
    let value = e4m3::decode(scale);
    match value > 0.0 {
        true => ((value.log2().floor() as i32) + 10).clamp(1, CLASSES as i32 - 1) as usize,
        false => 0,
    }
}

fn blocked_round_trip(scales: &[u8], rows: usize, columns: usize) -> bool {
    let mut there = vec![0; blocked::size(rows, columns)];
    blocked::to_blocked(scales, rows, columns, &mut there);
    let mut back = vec![0; scales.len()];
    blocked::from_blocked(&there, rows, columns, &mut back);
    back == scales
}

fn label(class: usize) -> String {
    match class {
        0 => "0".to_string(),
        class => format!("2^{}", class as i32 - 10),
    }
}

fn histogram_json(scales: &[u64; CLASSES]) -> Value {
    let entries = scales.iter().enumerate().filter(|(_, count)| **count > 0);
    Value::Object(entries.map(|(class, count)| (label(class), json!(count))).collect())
}

fn total(stats: &[Stats]) -> Stats {
    let mut total = Stats::new();
    stats.iter().for_each(|part| total.add(part));
    total
}

/// The whole model's figures.
pub(super) fn total_json(stats: &[Stats]) -> Value {
    total(stats).json()
}

/// For people: a line for each tensor, then the block scales of all.
pub(super) fn table(tensors: &[Tensor], stats: &[Stats]) -> String {
    let names: Vec<String> = tensors.iter().map(|tensor| tensor.name.to_string()).collect();
    let width = names.iter().map(String::len).max().unwrap_or(0);
    let mut text = format!(
        "\n  {:<width$}  {:>13}  {:<6} {:>10} {:>10} {:>10} {:>7} {:>7}\n",
        "tensor", "shape", "type", "min", "max", "mean abs", "NaN", "Inf"
    );
    for ((tensor, name), stats) in tensors.iter().zip(&names).zip(stats) {
        // Writing to a String does not fail.
        let _ = writeln!(
            text,
            "  {name:<width$}  {:>13}  {:<6} {:>10.4} {:>10.4} {:>10.5} {:>7} {:>7}",
            shape_text(&tensor.shape),
            tensor.encoding.to_string(),
            stats.min,
            stats.max,
            stats.mean_abs(),
            stats.nan,
            stats.infinite,
        );
    }
    let total = total(stats);
    let _ = writeln!(
        text,
        "\n  {} values · {} NaN · {} infinite · largest magnitude {:.4}",
        grouped(total.finite + total.nan + total.infinite),
        total.nan,
        total.infinite,
        total.max.max(-total.min),
    );
    if let Some(scales) = &total.scales {
        text.push_str(&histogram(scales));
        let blocked = if total.blocked { "every scale comes back" } else { "scales are LOST" };
        let _ = writeln!(text, "  128×4 blocked layout and back: {blocked}");
    }
    text
}

fn histogram(scales: &[u64; CLASSES]) -> String {
    let sum: u64 = scales.iter().sum();
    let most = scales.iter().copied().max().unwrap_or(0).max(1);
    let mut text = format!("  block scales ({} blocks), by power of two\n", grouped(sum));
    for (class, count) in scales.iter().enumerate().filter(|(_, count)| **count > 0) {
        let bar = "█".repeat((count * 40).div_ceil(most) as usize);
        let share = *count as f64 * 100.0 / sum.max(1) as f64;
        let _ = writeln!(text, "  {:>5} {share:>5.1}%  {bar}", label(class));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_scale_has_a_class_by_its_exponent() {
        assert_eq!(label(class(e4m3::encode(0.0))), "0");
        assert_eq!(label(class(e4m3::encode(448.0))), "2^8");
        assert_eq!(label(class(e4m3::encode(1.5))), "2^0");
        assert_eq!(label(class(0x01)), "2^-9");
    }

    #[test]
    fn broken_values_are_counted_and_leave_the_range_alone() {
        let stats = Stats::of(&[1.0, -2.0, f32::NAN, f32::INFINITY]);
        assert_eq!((stats.min, stats.max, stats.nan, stats.infinite), (-2.0, 1.0, 1, 1));
        assert_eq!(stats.mean_abs(), 1.5);
    }
}
