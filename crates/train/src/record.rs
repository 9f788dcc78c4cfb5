//! What is written down about a step, and the samples between steps. One JSON object per line.

use serde::{Deserialize, Deserializer, Serialize};

use crate::journal::Entry;

/// One step. What is not a number is `null` in the file and comes back as NaN.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// Counted from 1.
    pub step: u64,
    /// Mean over the trained tokens of this step.
    #[serde(deserialize_with = "number")]
    pub loss: f64,
    /// Mean over the held-out tokens, in steps that measure it.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "measured")]
    pub held_out_loss: Option<f64>,
    /// Of the schedule, before the factors of groups.
    #[serde(deserialize_with = "number")]
    pub learning_rate: f64,
    /// RMS of the update, decay apart, in learning rates.
    #[serde(deserialize_with = "number")]
    pub update_size: f64,
    /// Length of the gradient over all tensors that learn, before clipping, in steps that store it.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "measured")]
    pub gradient_norm: Option<f64>,
    /// Share of the 4-bit codes that changed.
    #[serde(deserialize_with = "number")]
    pub codes_moved: f64,
    /// Tokens that went through the model.
    pub tokens: u64,
    /// Tokens that counted in the loss.
    pub trained_tokens: u64,
    /// Length of the step.
    #[serde(deserialize_with = "number")]
    pub seconds: f64,
    /// Of it, those in which tensors learnt.
    #[serde(default, deserialize_with = "number")]
    pub optimizer_seconds: f64,
    /// Tokens over seconds.
    #[serde(deserialize_with = "number")]
    pub tokens_per_second: f64,
    /// Share of the ceiling measured in this run.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "measured")]
    pub ceiling_share: Option<f64>,
    /// Bytes that the plan gave.
    pub memory_planned: u64,
    /// Bytes that the process had at its peak.
    pub memory_measured: u64,
    /// Losses and gradients so far that were not finite and were skipped.
    pub non_finite: u64,
}

/// A reply to one of the fixed prompts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sample {
    /// After this step; 0 is before training.
    pub step: u64,
    /// What was asked.
    pub prompt: String,
    /// What the model said.
    pub reply: String,
}

impl Entry for Record {
    fn step(&self) -> u64 {
        self.step
    }
}

impl Entry for Sample {
    fn step(&self) -> u64 {
        self.step
    }
}

fn number<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    Ok(Option::<f64>::deserialize(deserializer)?.unwrap_or(f64::NAN))
}

/// A key that is there was measured, even if nothing came out.
fn measured<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<f64>, D::Error> {
    number(deserializer).map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_reads_as_it_was_written() {
        let record = Record {
            step: 412,
            loss: 1.873,
            held_out_loss: Some(1.902),
            learning_rate: 4.1e-5,
            update_size: 3e-4,
            gradient_norm: Some(0.42),
            codes_moved: 0.059,
            tokens: 1024,
            trained_tokens: 700,
            optimizer_seconds: 0.02,
            seconds: 0.05625,
            tokens_per_second: 18_204.0,
            ceiling_share: Some(0.74),
            memory_planned: 10_887_742_586,
            memory_measured: 10_844_792_422,
            non_finite: 0,
        };
        let text = serde_json::to_string(&record).unwrap();
        assert_eq!(serde_json::from_str::<Record>(&text).unwrap(), record);
        assert!(text.starts_with(r#"{"step":412,"loss":1.873,"held_out_loss":1.902,"#), "{text}");
    }

    #[test]
    fn a_loss_that_is_no_number_survives_the_file() {
        let record =
            Record { step: 1, loss: f64::NAN, held_out_loss: Some(f64::INFINITY), ..Record::default() };
        let text = serde_json::to_string(&record).unwrap();
        let back: Record = serde_json::from_str(&text).unwrap();
        assert!(back.loss.is_nan() && back.held_out_loss.unwrap().is_nan());
        assert_eq!(back.ceiling_share, None);
    }
}
