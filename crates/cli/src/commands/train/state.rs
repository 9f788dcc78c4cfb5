//! What is kept between steps, as flags: the recipe, and the ways it is compared with.

use clap::{Args, ValueEnum};
use halfbyte_formats::nvfp4::Scales;
use halfbyte_formats::state::master::Master;
use halfbyte_formats::state::moment::Moment;
use halfbyte_ops::CacheFormat;
use halfbyte_ops::update::Recipe;
use halfbyte_plan::WeightChoice;
use serde::{Serialize, Serializer};

use crate::device::{parse_scales, scales_name};
use crate::failure::{Failure, Result};

/// How weights are kept between steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum State {
    /// NVFP4 with a remainder of eight bits: 2.1 bytes a parameter, moments included
    Default,
    /// NVFP4 with a remainder of four bits: 1.6 bytes a parameter
    Lean,
    /// bf16, from which NVFP4 is made anew after every step
    Bf16,
    /// f32, from which NVFP4 is made anew after every step
    F32,
    /// f32, used as they are: nothing is quantised, and the model is written in f32
    AllF32,
}

/// How first moments are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Moments {
    /// Four bits, in blocks of 16
    #[value(name = "4")]
    #[serde(rename = "4")]
    Four,
    /// Eight bits, in blocks of 16
    #[value(name = "8")]
    #[serde(rename = "8")]
    Eight,
    /// f32
    #[value(name = "32")]
    #[serde(rename = "32")]
    Float,
}

/// How second moments are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Second {
    /// Means of rows times a profile of the columns
    Factored,
    /// One f32 per element
    Full,
}

#[derive(Args, Clone, Copy, Debug, Serialize)]
pub(crate) struct StateArgs {
    /// How weights are kept between steps
    #[arg(long, value_enum, value_name = "STATE", default_value = "default")]
    pub(crate) state: State,
    /// How first moments are kept: bits of each
    #[arg(long, value_enum, value_name = "BITS", default_value = "4")]
    pub(crate) moments: Moments,
    /// How second moments are kept
    #[arg(long, value_enum, value_name = "KIND", default_value = "factored")]
    pub(crate) second: Second,
    /// How NVFP4 block scales are chosen at the start, with a bf16 or f32 state also after every
    /// step: nearest, four-over-six, search
    #[arg(long, default_value = "nearest", value_name = "RULE", value_parser = parse_scales)]
    #[serde(serialize_with = "write_scales")]
    pub(crate) scales: Scales,
}

impl StateArgs {
    /// A state with the moments that belong to it.
    pub(crate) fn of(state: State) -> StateArgs {
        let (moments, second) = match state {
            State::Default | State::Lean => (Moments::Four, Second::Factored),
            State::Bf16 | State::F32 | State::AllF32 => (Moments::Float, Second::Full),
        };
        StateArgs { state, moments, second, scales: Scales::Nearest }
    }

    pub(super) fn check(&self) -> Result<()> {
        if self.state == State::AllF32 && self.scales != Scales::Nearest {
            return Err(Failure::misuse("--scales: with --state all-f32 nothing is quantised; leave it out"));
        }
        Ok(())
    }

    pub(crate) fn recipe(&self) -> Recipe {
        let kept = match self.state {
            State::Default | State::AllF32 => Recipe::DEFAULT,
            State::Lean => Recipe::LEAN,
            State::Bf16 => Recipe { master: Some(Master::Bf16), ..Recipe::DEFAULT },
            State::F32 => Recipe { master: Some(Master::Float), ..Recipe::DEFAULT },
        };
        let moment = match self.moments {
            Moments::Four => Moment::Four,
            Moments::Eight => Moment::Eight,
            Moments::Float => Moment::Float,
        };
        Recipe { moment, full_second: self.second == Second::Full, scales: self.scales, ..kept }
    }

    /// How the forward pass holds weights, keys and values.
    pub(super) fn forward(&self) -> (WeightChoice, CacheFormat) {
        match self.state {
            State::AllF32 => (WeightChoice::F32, CacheFormat::F32),
            _ => (WeightChoice::Nvfp4, CacheFormat::Bf16),
        }
    }

    /// The same with the smallest state, where this is not it.
    pub(super) fn lean(&self) -> Option<StateArgs> {
        let lean =
            StateArgs { state: State::Lean, moments: Moments::Four, second: Second::Factored, ..*self };
        (self.recipe() != lean.recipe()).then_some(lean)
    }
}

fn write_scales<S: Serializer>(scales: &Scales, to: S) -> std::result::Result<S::Ok, S::Error> {
    to.serialize_str(scales_name(*scales))
}
