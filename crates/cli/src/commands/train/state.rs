//! What is kept between steps, as flags.

use clap::{Args, ValueEnum};
use halfbyte_formats::nvfp4::Scales;
use halfbyte_ops::CacheFormat;
use halfbyte_ops::update::Recipe;
use halfbyte_plan::WeightChoice;
use serde::{Serialize, Serializer};

use crate::device::{parse_scales, scales_name};

/// How what is learnt is kept between steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum State {
    /// NVFP4 with a remainder of eight bits, moments in four: 2.1 bytes a parameter
    Default,
    /// NVFP4 with a remainder of four bits: 1.6 bytes a parameter
    Lean,
}

#[derive(Args, Clone, Copy, Debug, Serialize)]
pub(crate) struct StateArgs {
    /// How what is learnt is kept between steps
    #[arg(long, value_enum, value_name = "STATE", default_value = "default")]
    pub(crate) state: State,
    /// How NVFP4 block scales are chosen at the start: nearest, four-over-six, search
    #[arg(long, default_value = "nearest", value_name = "RULE", value_parser = parse_scales)]
    #[serde(serialize_with = "write_scales")]
    pub(crate) scales: Scales,
}

impl StateArgs {
    pub(crate) fn recipe(&self) -> Recipe {
        match self.state {
            State::Default => Recipe::DEFAULT,
            State::Lean => Recipe::LEAN,
        }
    }

    /// How the forward pass holds weights, keys and values.
    pub(super) fn forward(&self) -> (WeightChoice, CacheFormat) {
        (WeightChoice::Nvfp4, CacheFormat::Bf16)
    }

    /// The same with the smallest state, where this is not it.
    pub(super) fn lean(&self) -> Option<StateArgs> {
        (self.state != State::Lean).then_some(StateArgs { state: State::Lean, ..*self })
    }
}

fn write_scales<S: Serializer>(scales: &Scales, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(scales_name(*scales))
}
