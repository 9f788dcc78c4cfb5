//! Which encoding each tensor gets: by target, by `--weights`, by `--keep`, by what its rows allow.

use clap::ValueEnum;
use halfbyte_checkpoint::{Encoding, Format, TensorName};
use halfbyte_formats::ggml;

use crate::failure::{Failure, Result};

/// What to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Target {
    /// A Hugging Face directory with unquantised safetensors
    Hf,
    /// A directory with NVFP4 safetensors, as ModelOpt writes them
    Modelopt,
    /// One GGUF file
    Gguf,
    /// The origin's .dat, with config.json beside it
    Dat,
}

impl Target {
    pub(crate) fn format(self) -> Format {
        match self {
            Target::Hf => Format::HuggingFace,
            Target::Modelopt => Format::ModelOpt,
            Target::Gguf => Format::Gguf,
            Target::Dat => Format::Dat,
        }
    }

    fn default_weights(self) -> Weights {
        match self {
            Target::Hf => Weights::Bf16,
            Target::Modelopt | Target::Gguf | Target::Dat => Weights::Nvfp4,
        }
    }

    /// The unquantised type of values that have no such type yet.
    fn plain(self) -> Encoding {
        match self {
            Target::Hf | Target::Modelopt => Encoding::Bf16,
            Target::Gguf | Target::Dat => Encoding::F16,
        }
    }

    /// Whether a tensor may stand in the file so.
    fn stores(self, name: TensorName, columns: usize, encoding: Encoding) -> bool {
        if encoding.row_bytes(columns).is_none() {
            return false;
        }
        match (self, encoding) {
            (_, Encoding::F32 | Encoding::F16 | Encoding::Bf16) => true,
            // llama.cpp applies no tensor scale to an embedding.
            (Target::Gguf, nvfp4) if nvfp4.is_nvfp4() => {
                name != TensorName::Embedding && columns.is_multiple_of(64)
            }
            (Target::Gguf, Encoding::Ggml(_)) => true,
            (Target::Dat, Encoding::E2m1(_)) => true,
            (Target::Modelopt | Target::Dat, nvfp4) => nvfp4.is_nvfp4() && columns.is_multiple_of(16),
            _ => false,
        }
    }
}

/// How weights shall be stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Weights {
    /// As they are, wherever the target has that type
    Keep,
    /// Layer matrices in 4 bits, embedding and head not
    Nvfp4,
    Bf16,
    F16,
    #[value(name = "q8_0")]
    Q8_0,
    F32,
}

/// The choices of one conversion, checked against each other.
#[derive(Debug)]
pub(crate) struct Choice {
    pub(crate) target: Target,
    pub(crate) weights: Weights,
    pub(crate) keep: Vec<String>,
    /// Quantise a head of its own too.
    pub(crate) head: bool,
}

impl Choice {
    pub(crate) fn new(
        target: Target,
        weights: Option<Weights>,
        keep: Vec<String>,
        head: bool,
    ) -> Result<Choice> {
        let weights = weights.unwrap_or(target.default_weights());
        let refusal = match (target, weights) {
            (Target::Hf, Weights::Nvfp4) => {
                "--to hf --weights nvfp4\nplain directories hold no NVFP4\nuse --to modelopt"
            }
            (Target::Hf | Target::Modelopt | Target::Dat, Weights::Q8_0) => {
                "--weights q8_0\nonly GGUF has Q8_0\nuse --to gguf"
            }
            (Target::Modelopt, Weights::Bf16 | Weights::F16 | Weights::F32) => {
                "--to modelopt\nthese directories hold NVFP4 weights\nleave --weights out, or use --to hf"
            }
            _ => return Ok(Choice { target, weights, keep, head }),
        };
        Err(Failure::misuse(refusal))
    }

    /// Whether `--keep` names this tensor.
    fn kept(&self, name: TensorName) -> bool {
        let name = name.to_string();
        self.keep.iter().any(|pattern| matches(pattern, &name))
    }

    /// The first pattern that names no tensor: most likely a mistake.
    pub(crate) fn useless_pattern(&self, names: &[TensorName]) -> Option<&str> {
        let names: Vec<String> = names.iter().map(TensorName::to_string).collect();
        let useless = |pattern: &&String| !names.iter().any(|name| matches(pattern, name));
        self.keep.iter().find(useless).map(String::as_str)
    }

    /// The encoding of a tensor that is stored as `source` now.
    pub(crate) fn encoding(&self, name: TensorName, columns: usize, source: Encoding) -> Encoding {
        if !name.is_matrix() {
            return self.vector(source);
        }
        let wanted = match self.weights {
            _ if self.kept(name) => self.unquantised(source),
            Weights::Keep => as_nvfp4(source),
            Weights::Bf16 => Encoding::Bf16,
            Weights::F16 => Encoding::F16,
            Weights::F32 => Encoding::F32,
            Weights::Q8_0 => Encoding::Ggml(ggml::Type::Q8_0),
            Weights::Nvfp4 if self.quantised(name) => Encoding::Nvfp4,
            Weights::Nvfp4 if self.target == Target::Gguf => Encoding::Ggml(ggml::Type::Q8_0),
            Weights::Nvfp4 if self.target == Target::Dat => Encoding::F16,
            Weights::Nvfp4 => self.unquantised(source),
        };
        let eight_bits = Encoding::Ggml(ggml::Type::Q8_0);
        let fallbacks = [wanted, eight_bits, self.unquantised(source)];
        let mut fallbacks = fallbacks.into_iter();
        fallbacks.find(|encoding| self.target.stores(name, columns, *encoding)).unwrap_or(self.target.plain())
    }

    /// Norms and biases are small, and rounding them gains nothing.
    fn vector(&self, source: Encoding) -> Encoding {
        match (self.target, self.weights) {
            (Target::Gguf, _) => Encoding::F32,
            (_, Weights::Bf16) => Encoding::Bf16,
            (_, Weights::F16) => Encoding::F16,
            (_, Weights::F32) => Encoding::F32,
            (Target::Dat, Weights::Nvfp4) => Encoding::F16,
            (_, Weights::Keep) if source == Encoding::F32 => Encoding::F32,
            _ => self.unquantised(source),
        }
    }

    fn quantised(&self, name: TensorName) -> bool {
        match name {
            TensorName::Embedding => false,
            // The origin packs the head as well.
            TensorName::Head => self.head || self.target == Target::Dat,
            _ => true,
        }
    }

    /// 16 bits; whichever they are now, if they are.
    fn unquantised(&self, source: Encoding) -> Encoding {
        match source {
            Encoding::F16 | Encoding::Bf16 => source,
            Encoding::F32 if self.weights == Weights::Keep => source,
            _ => self.target.plain(),
        }
    }
}

/// Both names of NVFP4 are one encoding here.
fn as_nvfp4(encoding: Encoding) -> Encoding {
    if encoding.is_nvfp4() { Encoding::Nvfp4 } else { encoding }
}

/// A glob in which `*` stands for any run of characters, and everything else for itself.
fn matches(pattern: &str, name: &str) -> bool {
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = name.strip_prefix(first) else {
        return false;
    };
    let parts: Vec<&str> = parts.collect();
    let Some((last, middle)) = parts.split_last() else {
        return rest.is_empty();
    };
    for part in middle {
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    rest.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;
    use halfbyte_checkpoint::LayerTensor;

    const Q: TensorName = TensorName::Layer(3, LayerTensor::Q);
    const Q8: Encoding = Encoding::Ggml(ggml::Type::Q8_0);

    fn choice(target: Target, keep: &[&str]) -> Choice {
        let keep = keep.iter().map(ToString::to_string).collect();
        Choice::new(target, None, keep, false).unwrap()
    }

    #[test]
    fn stars_stand_for_any_run_of_characters() {
        for (pattern, name) in
            [("*", "a.b"), ("a*", "a.b"), ("*.q_proj.*", "x.q_proj.weight"), ("a.b", "a.b"), ("*b*b", "bb")]
        {
            assert!(matches(pattern, name), "{pattern} {name}");
        }
        for (pattern, name) in [("a", "a.b"), ("*.q_proj", "x.q_proj.weight"), ("*b*b", "b"), ("", "a")] {
            assert!(!matches(pattern, name), "{pattern} {name}");
        }
    }

    #[test]
    fn defaults_follow_the_target() {
        let norm = TensorName::FinalNorm;
        let table = [
            (Target::Hf, Encoding::Bf16, Encoding::Bf16, Encoding::Bf16),
            (Target::Modelopt, Encoding::Nvfp4, Encoding::Bf16, Encoding::Bf16),
            (Target::Gguf, Encoding::Nvfp4, Q8, Encoding::F32),
            (Target::Dat, Encoding::Nvfp4, Encoding::F16, Encoding::F16),
        ];
        for (target, layer, embedding, vector) in table {
            let choice = choice(target, &[]);
            assert_eq!(choice.encoding(Q, 64, Encoding::Bf16), layer);
            assert_eq!(choice.encoding(TensorName::Embedding, 64, Encoding::Bf16), embedding);
            assert_eq!(choice.encoding(norm, 64, Encoding::Bf16), vector);
        }
    }

    #[test]
    fn rows_that_do_not_fill_blocks_fall_back() {
        assert_eq!(choice(Target::Gguf, &[]).encoding(Q, 96, Encoding::Bf16), Q8);
        assert_eq!(choice(Target::Gguf, &[]).encoding(Q, 80, Encoding::F32), Encoding::F16);
        assert_eq!(choice(Target::Modelopt, &[]).encoding(Q, 80, Encoding::Bf16), Encoding::Nvfp4);
        assert_eq!(choice(Target::Modelopt, &[]).encoding(Q, 72, Encoding::Bf16), Encoding::Bf16);
    }

    #[test]
    fn kept_tensors_stay_unquantised() {
        let choice = choice(Target::Modelopt, &["*.3.*"]);
        assert_eq!(choice.encoding(Q, 64, Encoding::F16), Encoding::F16);
        assert_eq!(choice.encoding(Q, 64, Encoding::Ggml(ggml::Type::Q4_1)), Encoding::Bf16);
        assert_eq!(choice.useless_pattern(&[TensorName::FinalNorm]), Some("*.3.*"));
        assert_eq!(choice.useless_pattern(&[Q]), None);
    }

    #[test]
    fn keeping_passes_on_what_the_target_has() {
        let keep = |target| Choice::new(target, Some(Weights::Keep), Vec::new(), false).unwrap();
        let q4 = Encoding::Ggml(ggml::Type::Q4_1);
        assert_eq!(keep(Target::Gguf).encoding(Q, 64, q4), q4);
        assert_eq!(keep(Target::Hf).encoding(Q, 64, q4), Encoding::Bf16);
        assert_eq!(keep(Target::Hf).encoding(Q, 64, Encoding::Nvfp4), Encoding::Bf16);
        assert_eq!(keep(Target::Hf).encoding(Q, 64, Encoding::F32), Encoding::F32);
        assert_eq!(keep(Target::Gguf).encoding(TensorName::Embedding, 64, Encoding::Nvfp4), Q8);
    }
}
