//! What a model is, in a few lines: parameters, bits, types, shapes.

use std::collections::BTreeMap;

use halfbyte_checkpoint::{Architecture, Checkpoint, Encoding, LayerTensor, Tensor, TensorName};

/// Values of the decoder; a tied head is not counted twice.
pub(crate) fn parameters(architecture: &Architecture) -> u64 {
    let values = |name| architecture.shape(name).iter().product::<usize>() as u64;
    architecture.tensor_names().into_iter().map(values).sum()
}

/// "GGUF v3"; the plain name where a format has no versions.
pub(crate) fn format(checkpoint: &Checkpoint) -> String {
    let version = checkpoint.version.map(|version| format!(" v{version}")).unwrap_or_default();
    format!("{}{version}", checkpoint.format)
}

/// Bits on disk for each parameter, everything in the files included.
pub(crate) fn bits_per_parameter(checkpoint: &Checkpoint) -> f64 {
    checkpoint.file_bytes() as f64 * 8.0 / parameters(&checkpoint.architecture).max(1) as f64
}

/// How many tensors are stored in each way, most first.
pub(crate) fn types(tensors: &[Tensor]) -> Vec<(Encoding, Vec<&Tensor>)> {
    let mut types: BTreeMap<String, (Encoding, Vec<&Tensor>)> = BTreeMap::new();
    for tensor in tensors {
        let entry = types.entry(tensor.encoding.to_string()).or_insert((tensor.encoding, Vec::new()));
        entry.1.push(tensor);
    }
    let mut types: Vec<_> = types.into_values().collect();
    types.sort_by_key(|(_, tensors)| std::cmp::Reverse(tensors.len()));
    types
}

/// "210 Q4_1 · 1 Q8_0 (embedding) · 61 F32 (norms)".
pub(crate) fn types_line(tensors: &[Tensor]) -> String {
    let part = |(encoding, tensors): &(Encoding, Vec<&Tensor>)| {
        let role = common_role(tensors).map(|role| format!(" ({role})")).unwrap_or_default();
        format!("{} {encoding}{role}", tensors.len())
    };
    types(tensors).iter().map(part).collect::<Vec<_>>().join(" · ")
}

/// The name for a set of tensors, where one word covers them.
fn common_role(tensors: &[&Tensor]) -> Option<&'static str> {
    let roles: Vec<&str> = tensors.iter().map(|tensor| role(tensor.name)).collect();
    let only = |words: &[&str]| roles.iter().all(|role| words.contains(role));
    match () {
        _ if only(&["embedding"]) => Some("embedding"),
        _ if only(&["head"]) => Some("head"),
        _ if only(&["embedding", "head"]) => Some("embedding, head"),
        _ if only(&["norm"]) => Some("norms"),
        _ if only(&["bias"]) => Some("biases"),
        _ if only(&["norm", "bias"]) => Some("norms, biases"),
        _ if only(&["norm", "bias", "embedding"]) => Some("embedding, norms"),
        _ if only(&["norm", "bias", "embedding", "head"]) => Some("embedding, head, norms"),
        _ => None,
    }
}

fn role(name: TensorName) -> &'static str {
    use LayerTensor::*;
    match name {
        TensorName::Embedding => "embedding",
        TensorName::Head => "head",
        TensorName::FinalNorm => "norm",
        TensorName::Layer(_, InputNorm | PostNorm | QNorm | KNorm) => "norm",
        TensorName::Layer(_, part) if part.is_matrix() => "matrix",
        TensorName::Layer(..) => "bias",
    }
}

/// "30 layers × (q 576×576, k 192×576, …)".
pub(crate) fn layers_line(architecture: &Architecture) -> String {
    use LayerTensor::*;
    let parts = [(Q, "q"), (K, "k"), (V, "v"), (O, "o"), (Gate, "gate"), (Up, "up"), (Down, "down")];
    let part = |(tensor, name): (LayerTensor, &str)| {
        let shape = architecture.shape(TensorName::Layer(0, tensor));
        format!("{name} {}", shape_text(&shape))
    };
    format!("{} layers × ({})", architecture.layers, parts.map(part).join(", "))
}

/// "576×1536".
pub(crate) fn shape_text(shape: &[usize]) -> String {
    shape.iter().map(usize::to_string).collect::<Vec<_>>().join("×")
}
