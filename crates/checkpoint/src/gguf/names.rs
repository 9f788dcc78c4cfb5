//! GGUF tensor names <-> `TensorName`.

use crate::names::{LayerTensor, TensorName, parse_index};

/// GGUF's tensor of divisors of the rotary frequencies.
pub(super) const ROPE_FREQUENCIES: &str = "rope_freqs.weight";

/// What a GGUF tensor is to us.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// A tensor of the decoder.
    Weight(TensorName),
    /// The f32 scale of an NVFP4 matrix.
    Scale(TensorName),
    /// The f32 scale of a matrix's activations; nothing here uses it.
    InputScale,
    /// Divisors of the rotary frequencies.
    RopeFrequencies,
}

/// The stem and ending of a layer tensor below `blk.N.`.
fn layer_name(tensor: LayerTensor) -> (&'static str, &'static str) {
    match tensor {
        LayerTensor::InputNorm => ("attn_norm", "weight"),
        LayerTensor::Q => ("attn_q", "weight"),
        LayerTensor::K => ("attn_k", "weight"),
        LayerTensor::V => ("attn_v", "weight"),
        LayerTensor::O => ("attn_output", "weight"),
        LayerTensor::QBias => ("attn_q", "bias"),
        LayerTensor::KBias => ("attn_k", "bias"),
        LayerTensor::VBias => ("attn_v", "bias"),
        LayerTensor::OBias => ("attn_output", "bias"),
        LayerTensor::QNorm => ("attn_q_norm", "weight"),
        LayerTensor::KNorm => ("attn_k_norm", "weight"),
        LayerTensor::PostNorm => ("ffn_norm", "weight"),
        LayerTensor::Gate => ("ffn_gate", "weight"),
        LayerTensor::Up => ("ffn_up", "weight"),
        LayerTensor::Down => ("ffn_down", "weight"),
        LayerTensor::GateBias => ("ffn_gate", "bias"),
        LayerTensor::UpBias => ("ffn_up", "bias"),
        LayerTensor::DownBias => ("ffn_down", "bias"),
    }
}

fn stem_and_ending(name: TensorName) -> (String, &'static str) {
    match name {
        TensorName::Embedding => ("token_embd".to_string(), "weight"),
        TensorName::FinalNorm => ("output_norm".to_string(), "weight"),
        TensorName::Head => ("output".to_string(), "weight"),
        TensorName::Layer(layer, tensor) => {
            let (stem, ending) = layer_name(tensor);
            (format!("blk.{layer}.{stem}"), ending)
        }
    }
}

/// What GGUF calls a tensor.
pub(super) fn disk_name(name: TensorName) -> String {
    let (stem, ending) = stem_and_ending(name);
    format!("{stem}.{ending}")
}

/// What GGUF calls the f32 scale of an NVFP4 matrix.
pub(super) fn scale_name(name: TensorName) -> String {
    format!("{}.scale", stem_and_ending(name).0)
}

/// What the tensor called `text` is, or `None` for one that no decoder of ours has.
pub(super) fn role(text: &str) -> Option<Role> {
    if text == ROPE_FREQUENCIES {
        return Some(Role::RopeFrequencies);
    }
    let (stem, ending) = text.rsplit_once('.')?;
    match ending {
        "scale" => matrix(stem).map(Role::Scale),
        "input_scale" => matrix(stem).map(|_| Role::InputScale),
        _ => tensor(stem, ending).map(Role::Weight),
    }
}

fn matrix(stem: &str) -> Option<TensorName> {
    tensor(stem, "weight").filter(|name| name.is_matrix())
}

fn tensor(stem: &str, ending: &str) -> Option<TensorName> {
    match (stem, ending) {
        ("token_embd", "weight") => return Some(TensorName::Embedding),
        ("output_norm", "weight") => return Some(TensorName::FinalNorm),
        ("output", "weight") => return Some(TensorName::Head),
        _ => {}
    }
    let (number, stem) = stem.strip_prefix("blk.")?.split_once('.')?;
    let layer = parse_index(number)?;
    let mut tensors = LayerTensor::ALL.into_iter();
    let found = tensors.find(|tensor| layer_name(*tensor) == (stem, ending))?;
    Some(TensorName::Layer(layer, found))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_reads_back_as_itself() {
        let layers = LayerTensor::ALL.map(|tensor| TensorName::Layer(17, tensor));
        let others = [TensorName::Embedding, TensorName::FinalNorm, TensorName::Head];
        for name in layers.into_iter().chain(others) {
            assert_eq!(role(&disk_name(name)), Some(Role::Weight(name)));
            if name.is_matrix() {
                assert_eq!(role(&scale_name(name)), Some(Role::Scale(name)));
            }
        }
        assert_eq!(role("rope_freqs.weight"), Some(Role::RopeFrequencies));
        assert_eq!(role("blk.3.ffn_up.input_scale"), Some(Role::InputScale));
    }

    #[test]
    fn names_of_other_models_are_not_ours() {
        for text in ["blk.0.ffn_gate_inp.weight", "blk.01.attn_q.weight", "blk.0.attn_norm.scale", "output"] {
            assert_eq!(role(text), None, "{text}");
        }
    }
}
