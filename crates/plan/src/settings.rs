//! What a person chooses: how weights and cache are kept, how long the context is.

use std::fmt;
use std::str::FromStr;

use halfbyte_checkpoint::{Encoding, TensorName};
use halfbyte_ops::{CacheFormat, WeightFormat};

/// How weights are held while running.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WeightChoice {
    /// As the file has them: NVFP4 and bf16 stay, everything else is held in f32.
    Keep,
    /// 4 bytes.
    F32,
    /// 2 bytes.
    Bf16,
    /// 8.5 bits.
    Int8,
    /// Matrices of the layers in NVFP4, embedding and head in 8-bit blocks.
    Nvfp4,
}

impl WeightChoice {
    /// Every choice.
    pub const ALL: [WeightChoice; 5] =
        [WeightChoice::Keep, WeightChoice::F32, WeightChoice::Bf16, WeightChoice::Int8, WeightChoice::Nvfp4];

    /// How a matrix is held; `encoding` is the file's, unknown for a bare config.
    pub fn format(self, name: TensorName, encoding: Option<Encoding>) -> WeightFormat {
        let layer = matches!(name, TensorName::Layer(..));
        match self {
            WeightChoice::F32 => WeightFormat::F32,
            WeightChoice::Bf16 => WeightFormat::Bf16,
            WeightChoice::Int8 => WeightFormat::Int8,
            WeightChoice::Nvfp4 if layer => WeightFormat::Nvfp4,
            WeightChoice::Nvfp4 => WeightFormat::Int8,
            WeightChoice::Keep => match encoding {
                Some(encoding) if encoding.is_nvfp4() => WeightFormat::Nvfp4,
                None | Some(Encoding::Bf16) => WeightFormat::Bf16,
                Some(_) => WeightFormat::F32,
            },
        }
    }

    /// As on the command line.
    pub fn name(self) -> &'static str {
        match self {
            WeightChoice::Keep => "keep",
            WeightChoice::F32 => "f32",
            WeightChoice::Bf16 => "bf16",
            WeightChoice::Int8 => "int8",
            WeightChoice::Nvfp4 => "nvfp4",
        }
    }
}

impl fmt::Display for WeightChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for WeightChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = WeightChoice::ALL.into_iter().find(|choice| choice.name() == text);
        found.ok_or_else(|| "one of keep, f32, bf16, int8, nvfp4".to_string())
    }
}

/// Everything the sizes depend on besides the architecture.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Positions the cache of a lane holds.
    pub context: usize,
    /// Conversations at once, each with a cache of its own.
    pub lanes: usize,
    /// Tokens computed together in a prompt.
    pub chunk: usize,
    /// Rows of logits computed together.
    pub logit_rows: usize,
    /// How weights are held.
    pub weights: WeightChoice,
    /// How keys and values are held.
    pub cache: CacheFormat,
    /// Threads that compute.
    pub threads: usize,
}
