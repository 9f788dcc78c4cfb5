//! What a step does with its gradients: learn from each at once, or store them until it knows all.

use std::fmt;

use clap::{Args, ValueEnum};
use halfbyte_model::training::Batch;
use halfbyte_ops::accumulate::Storage;
use halfbyte_text::packing::Sequence;
use halfbyte_train::STORAGE;
use serde::Serialize;

use super::not_finite::NotFinite;
use super::setup::Setup;
use super::size::MOST_SEQUENCES;
use crate::failure::{Failure, Result};

/// When tensors learn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Gradient {
    /// Each as soon as its gradient is known
    Fused,
    /// All at the end of the step; until then gradients are kept in four bits: 0.56 bytes a parameter
    Stored,
}

impl Gradient {
    pub(crate) fn storage(self) -> Option<Storage> {
        (self == Gradient::Stored).then_some(STORAGE)
    }
}

#[derive(Args, Clone, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) struct GradientArgs {
    /// Batches of a step: their gradients are added up, weighted by their trained tokens
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) accumulate: usize,
    /// When tensors learn [default: fused, or stored where --accumulate asks for it]
    #[arg(long, value_enum, value_name = "WHEN")]
    gradient: Option<Gradient>,
    /// Longest gradient, over all tensors, that is learnt from as it is; a longer one is scaled down
    /// to it. Needs --gradient stored
    #[arg(long, value_name = "LENGTH")]
    pub(crate) clip_norm: Option<f64>,
}

impl GradientArgs {
    fn kind(&self) -> Gradient {
        let implied = if self.accumulate > 1 { Gradient::Stored } else { Gradient::Fused };
        self.gradient.unwrap_or(implied)
    }

    /// As on the command line.
    pub(super) fn name(&self) -> &'static str {
        match self.kind() {
            Gradient::Fused => "fused",
            Gradient::Stored => "stored",
        }
    }

    /// How gradients are stored, if they are.
    pub(super) fn storage(&self) -> Option<Storage> {
        self.kind().storage()
    }

    pub(super) fn check(&self) -> Result<()> {
        let fused = self.kind() == Gradient::Fused;
        match () {
            _ if self.accumulate == 0 => Err(Failure::misuse("--accumulate must be at least 1")),
            _ if self.accumulate > MOST_SEQUENCES => {
                Err(Failure::misuse(format!("--accumulate takes at most {MOST_SEQUENCES} batches")))
            }
            _ if fused && self.accumulate > 1 => Err(Failure::misuse(
                "--accumulate adds gradients up, and --gradient fused keeps none\ntake --gradient stored, \
                 or a larger --batch instead of --accumulate",
            )),
            _ if fused && self.clip_norm.is_some() => Err(Failure::misuse(
                "--clip-norm needs the whole gradient before anything is learnt\nadd --gradient stored, \
                 which takes 0.56 bytes a parameter more",
            )),
            _ if self.clip_norm.is_some_and(|clip| !clip.is_finite() || clip <= 0.0) => {
                Err(Failure::misuse("--clip-norm takes a number above 0"))
            }
            _ => Ok(()),
        }
    }
}

impl fmt::Display for GradientArgs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let batches = if self.accumulate == 1 { "" } else { "es" };
        write!(f, "{}, of {} batch{batches} a step", self.name(), self.accumulate)?;
        match self.clip_norm {
            Some(clip) => write!(f, ", clipped to a length of {clip}"),
            None => Ok(()),
        }
    }
}

/// What a step came to.
pub(super) struct Learnt {
    pub(super) loss: f64,
    /// The length of the gradient, where it was stored.
    pub(super) gradient_norm: Option<f64>,
    pub(super) trouble: Option<NotFinite>,
}

/// Learns from the batches of a step, which are these sequences.
pub(super) fn learn(
    setup: &mut Setup,
    step: u64,
    batches: &[Batch],
    sequences: Vec<Sequence>,
) -> Result<Learnt> {
    let Setup { model, adam, stored, .. } = setup;
    let taken = match stored {
        Some(stored) => stored.step(model, step, batches, adam).map(|taken| (taken.loss, Some(taken.norm))),
        None => model.step(&batches[0], adam).map(|loss| (loss, None)),
    };
    let (loss, gradient_norm) = match taken {
        Err(halfbyte_model::Error::LossNotFinite) => {
            let trouble = Some(NotFinite::Loss(sequences));
            return Ok(Learnt { loss: f64::NAN, gradient_norm: None, trouble });
        }
        taken => taken?,
    };
    let trouble = match (gradient_norm, adam.bad()) {
        (Some(norm), _) if !norm.is_finite() => Some(NotFinite::Gradient(sequences)),
        (_, bad) => bad.map(|name| NotFinite::Update(name, sequences)),
    };
    Ok(Learnt { loss, gradient_norm, trouble })
}
