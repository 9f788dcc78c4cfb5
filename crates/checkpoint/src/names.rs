//! Disk string <-> `TensorName`. Hugging Face names here; GGUF names live with the GGUF reader.

use std::fmt;

/// A tensor of the decoder, whatever a file calls it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum TensorName {
    /// Token embedding, `[vocabulary, hidden]`.
    Embedding,
    /// A tensor of one layer.
    Layer(usize, LayerTensor),
    /// Gain of the last norm, `[hidden]`.
    FinalNorm,
    /// Output projection, `[vocabulary, hidden]`; absent in files of tied models.
    Head,
}

/// The tensors a layer may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs)] // the names are the meaning
pub enum LayerTensor {
    InputNorm,
    Q,
    K,
    V,
    O,
    QBias,
    KBias,
    VBias,
    OBias,
    QNorm,
    KNorm,
    PostNorm,
    Gate,
    Up,
    Down,
    GateBias,
    UpBias,
    DownBias,
}

impl LayerTensor {
    /// Every layer tensor, in the order a layer uses them.
    pub const ALL: [LayerTensor; 18] = [
        LayerTensor::InputNorm,
        LayerTensor::Q,
        LayerTensor::K,
        LayerTensor::V,
        LayerTensor::O,
        LayerTensor::QBias,
        LayerTensor::KBias,
        LayerTensor::VBias,
        LayerTensor::OBias,
        LayerTensor::QNorm,
        LayerTensor::KNorm,
        LayerTensor::PostNorm,
        LayerTensor::Gate,
        LayerTensor::Up,
        LayerTensor::Down,
        LayerTensor::GateBias,
        LayerTensor::UpBias,
        LayerTensor::DownBias,
    ];

    /// The name below `model.layers.N.` in a Hugging Face file.
    pub fn hugging_face(self) -> &'static str {
        match self {
            LayerTensor::InputNorm => "input_layernorm.weight",
            LayerTensor::Q => "self_attn.q_proj.weight",
            LayerTensor::K => "self_attn.k_proj.weight",
            LayerTensor::V => "self_attn.v_proj.weight",
            LayerTensor::O => "self_attn.o_proj.weight",
            LayerTensor::QBias => "self_attn.q_proj.bias",
            LayerTensor::KBias => "self_attn.k_proj.bias",
            LayerTensor::VBias => "self_attn.v_proj.bias",
            LayerTensor::OBias => "self_attn.o_proj.bias",
            LayerTensor::QNorm => "self_attn.q_norm.weight",
            LayerTensor::KNorm => "self_attn.k_norm.weight",
            LayerTensor::PostNorm => "post_attention_layernorm.weight",
            LayerTensor::Gate => "mlp.gate_proj.weight",
            LayerTensor::Up => "mlp.up_proj.weight",
            LayerTensor::Down => "mlp.down_proj.weight",
            LayerTensor::GateBias => "mlp.gate_proj.bias",
            LayerTensor::UpBias => "mlp.up_proj.bias",
            LayerTensor::DownBias => "mlp.down_proj.bias",
        }
    }

    /// Whether this is one of the seven matrices of a layer.
    pub fn is_matrix(self) -> bool {
        use LayerTensor::*;
        matches!(self, Q | K | V | O | Gate | Up | Down)
    }
}

impl fmt::Display for TensorName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TensorName::Embedding => f.write_str("model.embed_tokens.weight"),
            TensorName::Layer(layer, tensor) => {
                write!(f, "model.layers.{layer}.{}", tensor.hugging_face())
            }
            TensorName::FinalNorm => f.write_str("model.norm.weight"),
            TensorName::Head => f.write_str("lm_head.weight"),
        }
    }
}

impl TensorName {
    /// The tensor a Hugging Face file means by `text`, if it is one of ours.
    pub fn from_hugging_face(text: &str) -> Option<TensorName> {
        match text {
            "model.embed_tokens.weight" => return Some(TensorName::Embedding),
            "model.norm.weight" => return Some(TensorName::FinalNorm),
            "lm_head.weight" => return Some(TensorName::Head),
            _ => {}
        }
        let (number, rest) = text.strip_prefix("model.layers.")?.split_once('.')?;
        let layer = parse_index(number)?;
        let tensor = LayerTensor::ALL.into_iter().find(|tensor| tensor.hugging_face() == rest)?;
        Some(TensorName::Layer(layer, tensor))
    }

    /// Whether the tensor is a matrix that NVFP4 may hold: a layer's seven, the embedding, the head.
    pub fn is_matrix(self) -> bool {
        match self {
            TensorName::Embedding | TensorName::Head => true,
            TensorName::FinalNorm => false,
            TensorName::Layer(_, tensor) => tensor.is_matrix(),
        }
    }
}

/// A decimal index as writers print it: no sign, no leading zero, so one number has one name.
pub(crate) fn parse_index(text: &str) -> Option<usize> {
    let plain = text.bytes().all(|byte| byte.is_ascii_digit());
    match plain && (text == "0" || !text.starts_with('0')) {
        true => text.parse().ok(),
        false => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_reads_back_as_itself() {
        let layers = LayerTensor::ALL.map(|tensor| TensorName::Layer(17, tensor));
        let others = [TensorName::Embedding, TensorName::FinalNorm, TensorName::Head];
        for name in layers.into_iter().chain(others) {
            assert_eq!(TensorName::from_hugging_face(&name.to_string()), Some(name));
        }
    }

    #[test]
    fn one_layer_number_has_one_spelling() {
        for text in ["+1", "01", "", "-1", "1x", "99999999999999999999999"] {
            let name = format!("model.layers.{text}.self_attn.q_proj.weight");
            assert_eq!(TensorName::from_hugging_face(&name), None, "{name}");
        }
    }
}
