//! What a decoder looks like: sizes and switches. Families end here; beyond it they are only data.

use std::path::Path;

use crate::error::Error;
use crate::names::{LayerTensor, TensorName};
use crate::rope::Rope;

/// Largest layer count accepted; real models have at most a few hundred.
pub const MAX_LAYERS: usize = 4096;
/// Largest width (hidden, intermediate, vocabulary, context) accepted.
const MAX_WIDTH: usize = 1 << 28;
/// Largest number of parameters accepted: what 2^48 one-byte elements could hold.
const MAX_PARAMETERS: usize = 1 << 48;

/// The family a model was published as; needed only to write its config or GGUF back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs)] // the names are the meaning
pub enum Family {
    Qwen3,
    Qwen2,
    Llama,
}

impl Family {
    /// Every family, in the order messages name them.
    pub const ALL: [Family; 3] = [Family::Qwen3, Family::Qwen2, Family::Llama];

    /// `model_type` of config.json, and `general.architecture` of GGUF.
    pub fn name(self) -> &'static str {
        match self {
            Family::Qwen3 => "qwen3",
            Family::Qwen2 => "qwen2",
            Family::Llama => "llama",
        }
    }

    /// The family called `name` in config.json or GGUF.
    pub fn from_name(name: &str) -> Option<Family> {
        Family::ALL.into_iter().find(|family| family.name() == name)
    }
}

/// Sizes and switches of a decoder.
#[derive(Debug, Clone, PartialEq)]
pub struct Architecture {
    /// The family it was published as.
    pub family: Family,
    /// Rows of the embedding.
    pub vocab_size: usize,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Width of the feed-forward part.
    pub intermediate_size: usize,
    /// Number of layers.
    pub layers: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; divides `heads`.
    pub kv_heads: usize,
    /// Width of a head; may differ from hidden / heads.
    pub head_dim: usize,
    /// Epsilon of every RMS norm.
    pub norm_eps: f32,
    /// Rotary positions.
    pub rope: Rope,
    /// Per-head RMS norm of q and k before rope.
    pub qk_norm: bool,
    /// q, k and v have a bias.
    pub qkv_bias: bool,
    /// o has a bias.
    pub output_bias: bool,
    /// gate, up and down have a bias.
    pub mlp_bias: bool,
    /// The head is the embedding.
    pub tied: bool,
    /// Positions the model was made for.
    pub max_context: usize,
    /// Window of each layer, one entry per layer; `None` sees everything.
    pub sliding_window: Vec<Option<usize>>,
    /// Token put before text, if the model has one.
    pub bos: Option<u32>,
    /// Tokens that end a reply.
    pub eos: Vec<u32>,
}

impl Architecture {
    /// Every tensor the decoder needs, in forward order. The head of a tied model is not among them.
    pub fn tensor_names(&self) -> Vec<TensorName> {
        let mut names = vec![TensorName::Embedding];
        for layer in 0..self.layers {
            let tensors = LayerTensor::ALL.into_iter();
            let present = tensors.filter(|tensor| self.has(*tensor));
            names.extend(present.map(|tensor| TensorName::Layer(layer, tensor)));
        }
        names.push(TensorName::FinalNorm);
        if !self.tied {
            names.push(TensorName::Head);
        }
        names
    }

    /// Whether layers of this decoder have `tensor`.
    pub fn has(&self, tensor: LayerTensor) -> bool {
        use LayerTensor::*;
        match tensor {
            QBias | KBias | VBias => self.qkv_bias,
            OBias => self.output_bias,
            QNorm | KNorm => self.qk_norm,
            GateBias | UpBias | DownBias => self.mlp_bias,
            InputNorm | Q | K | V | O | PostNorm | Gate | Up | Down => true,
        }
    }

    /// The shape of a tensor: `[out, in]` or `[n]`.
    pub fn shape(&self, name: TensorName) -> Vec<usize> {
        use LayerTensor::*;
        let hidden = self.hidden_size;
        let (q, kv) = (self.heads * self.head_dim, self.kv_heads * self.head_dim);
        let TensorName::Layer(_, tensor) = name else {
            return match name {
                TensorName::FinalNorm => vec![hidden],
                _ => vec![self.vocab_size, hidden],
            };
        };
        match tensor {
            InputNorm | PostNorm | OBias | DownBias => vec![hidden],
            Q => vec![q, hidden],
            K | V => vec![kv, hidden],
            O => vec![hidden, q],
            QBias => vec![q],
            KBias | VBias => vec![kv],
            QNorm | KNorm => vec![self.head_dim],
            Gate | Up => vec![self.intermediate_size, hidden],
            Down => vec![hidden, self.intermediate_size],
            GateBias | UpBias => vec![self.intermediate_size],
        }
    }

    /// Number of parameters; a tied head counts once.
    pub fn parameters(&self) -> u64 {
        let size = |name: TensorName| self.shape(name).iter().map(|&n| n as u64).product::<u64>();
        let layer = LayerTensor::ALL.into_iter().filter(|tensor| self.has(*tensor));
        let layer: u64 = layer.map(|tensor| size(TensorName::Layer(0, tensor))).sum();
        let heads = if self.tied { 1 } else { 2 };
        layer * self.layers as u64 + size(TensorName::Embedding) * heads + size(TensorName::FinalNorm)
    }

    /// Refuses sizes no decoder can have. After it, products of sizes do not overflow.
    pub fn check(&self, file: &Path) -> Result<(), Error> {
        let refuse = |place: &str, problem: String| {
            let remedy = "take the file the model was published with; this one cannot be run";
            Err(Error::input(file, place, problem, remedy))
        };
        let widths = [
            ("vocab_size", self.vocab_size),
            ("hidden_size", self.hidden_size),
            ("intermediate_size", self.intermediate_size),
            ("num_attention_heads", self.heads),
            ("num_key_value_heads", self.kv_heads),
            ("head_dim", self.head_dim),
            ("max_position_embeddings", self.max_context),
        ];
        for (place, value) in widths {
            if value == 0 || value > MAX_WIDTH {
                return refuse(place, format!("{value} is not between 1 and {MAX_WIDTH}"));
            }
        }
        if self.layers == 0 || self.layers > MAX_LAYERS {
            let problem = format!("{} is not between 1 and {MAX_LAYERS}", self.layers);
            return refuse("num_hidden_layers", problem);
        }
        if !self.heads.is_multiple_of(self.kv_heads) {
            let problem =
                format!("{} query heads cannot share {} key/value heads evenly", self.heads, self.kv_heads);
            return refuse("num_key_value_heads", problem);
        }
        if !self.head_dim.is_multiple_of(2) {
            let problem = format!("{} is odd; rotary positions need pairs", self.head_dim);
            return refuse("head_dim", problem);
        }
        if !(self.norm_eps.is_finite() && self.norm_eps >= 0.0) {
            let problem = format!("{} is not a small positive number", self.norm_eps);
            return refuse("rms_norm_eps", problem);
        }
        if !self.parameters_fit() {
            return refuse("", "the sizes multiply to more than 2^48 parameters".into());
        }
        self.check_windows(file)?;
        self.rope.check(file, self.head_dim)
    }

    fn parameters_fit(&self) -> bool {
        let product = |a: usize, b: usize| a.checked_mul(b).filter(|&n| n <= MAX_PARAMETERS);
        let total = || -> Option<usize> {
            let q = product(self.heads, self.head_dim)?;
            let attention = product(q, self.hidden_size)?.checked_mul(4)?;
            let feed = product(self.intermediate_size, self.hidden_size)?.checked_mul(3)?;
            let layers = product(attention.checked_add(feed)?, self.layers)?;
            let vocabulary = product(self.vocab_size, self.hidden_size)?.checked_mul(2)?;
            layers.checked_add(vocabulary)
        };
        total().is_some_and(|n| n <= MAX_PARAMETERS)
    }

    fn check_windows(&self, file: &Path) -> Result<(), Error> {
        let wrong = self.sliding_window.len() != self.layers || self.sliding_window.contains(&Some(0));
        match wrong {
            false => Ok(()),
            true => Err(Error::input(
                file,
                "sliding_window",
                format!(
                    "{} windows for {} layers, or a window of 0 positions",
                    self.sliding_window.len(),
                    self.layers
                ),
                "give layer_types one entry per layer and a sliding_window above 0",
            )),
        }
    }
}
