//! The list of a training step's buffers. Each layer's input is kept; everything inside a layer is
//! computed again on the way back, so one layer's values are enough.

use halfbyte_checkpoint::{Architecture, Encoding, TensorName};
use halfbyte_ops::{Cache, Rows, loss};

use crate::need::{Item, place, tensors};
use crate::settings::Settings;
use crate::{Group, Name, Plan, Value};

/// What a step's size depends on, besides [`Settings`] (whose chunk is the tokens of a batch and
/// whose context is the longest sample).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TrainingSettings {
    /// Words of the vocabulary whose logits exist at a time; a multiple of 16.
    pub vocabulary_chunk: usize,
}

/// Plans a training step, without what the optimizer keeps.
pub fn plan_training(
    architecture: &Architecture,
    settings: &Settings,
    training: TrainingSettings,
    encoding: &dyn Fn(TensorName) -> Option<Encoding>,
    scratch: usize,
) -> Plan {
    let a = architecture;
    let mut list = tensors(a, settings, encoding);
    let cache = Cache::bytes(settings.cache, a.kv_heads, a.head_dim, settings.context);
    list.push((Name::Cache(0), Group::Cache, None, cache));
    let tokens = settings.chunk;
    let hidden = Rows::bytes(tokens, a.hidden_size);
    for layer in 0..a.layers {
        list.push((Name::Saved(layer), Group::Activations, None, hidden));
    }
    let (q, kv, inner) = (a.heads * a.head_dim, a.kv_heads * a.head_dim, a.intermediate_size);
    let values = [
        (Value::Residual, a.hidden_size),
        (Value::Turns, a.head_dim),
        (Value::Normed, a.hidden_size),
        (Value::Q, q),
        (Value::K, kv),
        (Value::V, kv),
        (Value::QRaw, q),
        (Value::KRaw, kv),
        (Value::Attended, q),
        (Value::Middle, a.hidden_size),
        (Value::PostNormed, a.hidden_size),
        (Value::Gate, inner),
        (Value::Up, inner),
        (Value::Activated, inner),
        (Value::Part, a.hidden_size),
        (Value::FinalNormed, a.hidden_size),
        (Value::DResidual, a.hidden_size),
        (Value::DNormed, a.hidden_size),
        (Value::DActivated, inner),
        (Value::DAttended, q),
        (Value::DQ, q),
        (Value::DK, kv),
        (Value::DV, kv),
        (Value::DRaw, q),
        (Value::LossState, loss::STATE),
    ];
    let item = |(value, columns)| -> Item {
        (Name::Value(value), Group::Activations, None, Rows::bytes(tokens, columns))
    };
    list.extend(values.map(item));
    let words = training.vocabulary_chunk.min(a.vocab_size);
    list.push((Name::Value(Value::Logits), Group::Logits, None, Rows::bytes(tokens, words)));
    let layer = a.tensor_names().into_iter().filter(|name| matches!(name, TensorName::Layer(..)));
    let largest = layer.map(|name| a.shape(name).iter().product::<usize>()).max().unwrap_or(0);
    let gradient = largest.max(words * a.hidden_size) * 4;
    list.push((Name::Value(Value::Gradient), Group::Scratch, None, gradient));
    list.push((Name::Scratch, Group::Scratch, None, scratch));
    place(a, settings, list)
}
