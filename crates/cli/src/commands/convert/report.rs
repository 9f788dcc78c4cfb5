//! What was written, how large, how far from the source.

use std::fmt::Write as _;
use std::time::Duration;

use halfbyte_checkpoint::Checkpoint;
use serde_json::{Value, json};

use super::stream::{Job, Written};
use super::verify::Checked;
use crate::coding::Deviation;
use crate::output::{bytes, count, duration};
use crate::summary;

/// Everything the report says.
pub(super) struct Report<'a> {
    pub(super) source: &'a Checkpoint,
    pub(super) written: &'a Checkpoint,
    pub(super) jobs: &'a [Job<'a>],
    pub(super) results: &'a [Written],
    pub(super) checked: Checked,
    pub(super) time: Duration,
}

/// The deviation over all tensors that changed, and the tensor with the largest one.
struct Errors<'a> {
    changed: usize,
    overall: Deviation,
    worst: Option<(&'a Job<'a>, f64)>,
}

impl Report<'_> {
    fn errors(&self) -> Errors<'_> {
        let mut errors = Errors { changed: 0, overall: Deviation::default(), worst: None };
        for (job, result) in self.jobs.iter().zip(self.results) {
            if result.deviation.error == 0.0 {
                continue;
            }
            errors.changed += 1;
            errors.overall.add(result.deviation);
            let relative = result.deviation.relative();
            if errors.worst.is_none_or(|(_, worst)| relative > worst) {
                errors.worst = Some((job, relative));
            }
        }
        errors
    }

    /// For people.
    pub(super) fn text(&self) -> String {
        let written = self.written;
        let parameters = count(summary::parameters(&written.architecture));
        let mut text = format!(
            "wrote {} · {} · {parameters} parameters · {} · {:.2} bits/parameter (from {} · {:.2}) · {}\n",
            written.path.display(),
            written.format,
            bytes(written.file_bytes()),
            summary::bits_per_parameter(written),
            bytes(self.source.file_bytes()),
            summary::bits_per_parameter(self.source),
            duration(self.time),
        );
        let errors = self.errors();
        let same = self.jobs.len() - errors.changed;
        let error = match errors.worst {
            None => format!("none: all {same} tensors have the same values as before"),
            Some((job, worst)) => format!(
                "relative RMS {:.5} over {} tensor{}; worst {worst:.5} in {}; {same} unchanged",
                errors.overall.relative(),
                errors.changed,
                if errors.changed == 1 { "" } else { "s" },
                job.declared.name,
            ),
        };
        let tokenizer = match self.checked.tokenizer {
            true => "tokenizer gives the same ids",
            false => "no tokenizer to carry",
        };
        let lines = [
            ("types", summary::types_line(&written.tensors)),
            ("error", error),
            ("checked", format!("{} tensors read back as intended; {tokenizer}", self.checked.tensors)),
        ];
        for (label, line) in lines {
            // Writing to a String does not fail.
            let _ = writeln!(text, "  {label:<8} {line}");
        }
        text
    }

    /// For programs.
    pub(super) fn json(&self) -> Value {
        let errors = self.errors();
        let tensors: Vec<Value> = self.jobs.iter().zip(self.results).map(tensor_json).collect();
        json!({
            "path": self.written.path.display().to_string(),
            "format": self.written.format.to_string(),
            "parameters": summary::parameters(&self.written.architecture),
            "bytes": self.written.file_bytes(),
            "bits_per_parameter": summary::bits_per_parameter(self.written),
            "source_bytes": self.source.file_bytes(),
            "changed_tensors": errors.changed,
            "relative_rms": errors.overall.relative(),
            "worst_relative_rms": errors.worst.map_or(0.0, |(_, worst)| worst),
            "worst_tensor": errors.worst.map(|(job, _)| job.declared.name.to_string()),
            "checked_tensors": self.checked.tensors,
            "tokenizer_checked": self.checked.tokenizer,
            "seconds": self.time.as_secs_f64(),
            "tensors": tensors,
        })
    }
}

fn tensor_json((job, result): (&Job<'_>, &Written)) -> Value {
    json!({
        "name": job.declared.name.to_string(),
        "shape": job.declared.shape,
        "from": job.source.encoding.to_string(),
        "to": job.declared.encoding.to_string(),
        "copied": result.coding.is_none(),
        "relative_rms": result.deviation.relative(),
        "max_abs": result.deviation.largest,
    })
}
