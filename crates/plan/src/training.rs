//! The list of a training step's buffers. Each layer's input is kept; everything inside a layer is
//! computed again on the way back, so one layer's values are enough; or all of them are kept.

use halfbyte_checkpoint::{Architecture, Encoding, TensorName};
use halfbyte_ops::update::{self, Recipe, Second};
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
    /// How what is learnt is kept.
    pub recipe: Recipe,
    /// What is computed again on the way back.
    pub recompute: Recompute,
}

/// What is computed again on the way back. The numbers are the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recompute {
    /// Every layer, from its input.
    Layer,
    /// Nothing: every layer's values are kept.
    None,
}

/// How second moments of a matrix are kept.
pub fn second_of(name: TensorName) -> Second {
    match name {
        TensorName::Embedding | TensorName::Head => Second::PerRow,
        _ => Second::Factored,
    }
}

/// What a tensor keeps between steps besides itself.
fn state(
    a: &Architecture,
    name: TensorName,
    settings: &Settings,
    recipe: &Recipe,
    encoding: &dyn Fn(TensorName) -> Option<Encoding>,
) -> [Item; 3] {
    let (remainder, moment, second) = match a.shape(name)[..] {
        [rows, columns] => {
            let format = settings.weights.format(name, encoding(name));
            (
                recipe.remainder_bytes(format, rows, columns),
                recipe.moment_bytes(rows, columns),
                update::second_bytes(second_of(name), rows, columns),
            )
        }
        ref shape => (0, 4 * shape[0], 4 * shape[0]),
    };
    [(Name::Remainder(name), remainder), (Name::Moment(name), moment), (Name::Second(name), second)]
        .map(|(name, bytes)| (name, Group::State, None, bytes))
}

/// Whether a layer computes this on the way there and needs it on the way back.
fn of_layer(value: Value) -> bool {
    use Value::{Activated, Attended, Gate, K, KRaw, Middle, Normed, PostNormed, Q, QRaw, Up, V};
    matches!(value, Normed | Q | K | V | QRaw | KRaw | Attended | Middle | PostNormed | Gate | Up | Activated)
}

/// Plans a training step and what is kept between steps.
pub fn plan_training(
    architecture: &Architecture,
    settings: &Settings,
    training: TrainingSettings,
    encoding: &dyn Fn(TensorName) -> Option<Encoding>,
    scratch: usize,
) -> Plan {
    let a = architecture;
    let mut list = tensors(a, settings, encoding);
    for name in a.tensor_names() {
        list.extend(state(a, name, settings, &training.recipe, encoding));
    }
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
    for (value, columns) in values {
        let bytes = Rows::bytes(tokens, columns);
        let mut add = |name| list.push((name, Group::Activations, None, bytes));
        match training.recompute == Recompute::None && of_layer(value) {
            true => (0..a.layers).for_each(|layer| add(Name::Kept(layer, value))),
            false => add(Name::Value(value)),
        }
    }
    let words = training.vocabulary_chunk.min(a.vocab_size);
    list.push((Name::Value(Value::Logits), Group::Logits, None, Rows::bytes(tokens, words)));
    let layer = a.tensor_names().into_iter().filter(|name| matches!(name, TensorName::Layer(..)));
    let largest = layer.map(|name| a.shape(name).iter().product::<usize>()).max().unwrap_or(0);
    let gradient = largest.max(words * a.hidden_size) * 4;
    list.push((Name::Value(Value::Gradient), Group::Scratch, None, gradient));
    list.push((Name::Scratch, Group::Scratch, None, scratch));
    let mut plan = place(a, settings, list);
    // Angles on their way to the device, and zeros that gradients begin with.
    plan.host_bytes += 4 * (tokens * a.head_dim + (tokens * a.hidden_size.max(q)).max(words * a.hidden_size));
    plan
}
