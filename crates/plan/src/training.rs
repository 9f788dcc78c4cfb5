//! The list of a training step's buffers. The residual is kept as it enters each layer, and in the middle where it is
//! kept rounded; everything else inside a layer is computed again on the way back, so one layer's values are enough; or
//! some of them are kept, or all.

use halfbyte_checkpoint::{Architecture, Encoding, LayerTensor, TensorName};
use halfbyte_ops::accumulate::{Storage, Stored};
use halfbyte_ops::update::Recipe;
use halfbyte_ops::{Buffer, Cache, CacheFormat, Rows, WeightFormat, learn, loss};

use crate::need::{Item, place, tensors};
use crate::settings::Settings;
use crate::{Group, Name, Plan, Stage, Value};

/// What a step's size depends on, besides [`Settings`] (whose chunk is the tokens of a batch and
/// whose context is the longest sample).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TrainingSettings {
    /// Words of the vocabulary whose logits exist at a time; a multiple of 16.
    pub vocabulary_chunk: usize,
    /// How what is learnt is kept.
    pub recipe: Recipe,
    /// How gradients are stored until a step knows all of them; `None` learns from each at once.
    pub gradient: Option<Storage>,
    /// What is computed again on the way back.
    pub recompute: Recompute,
    /// Whether the device takes the residual rounded, see [`halfbyte_ops::Backend::rounds_residual`].
    pub rounds_residual: bool,
    /// Tokens from which on the device takes heads narrow, see [`halfbyte_ops::Backend::narrow_heads`].
    pub narrow_heads_from: Option<usize>,
}

/// What is computed again on the way back. The numbers are the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recompute {
    /// Every layer, from the residual.
    Layer,
    /// Every layer's feed-forward part; attention's values and the middle of the residual are kept. Attention takes its time
    /// beside the products, and half of the memory.
    FeedForward,
    /// Nothing: every layer's values are kept.
    None,
}

impl Recompute {
    /// Whether every layer keeps such a value for the way back.
    fn keeps(self, value: Value) -> bool {
        use Value::{Activated, Attended, Gate, K, KRaw, Middle, Normed, PostNormed, Q, QRaw, Up, V};
        match value {
            Normed | Q | K | V | QRaw | KRaw | Attended | Middle => self != Recompute::Layer,
            PostNormed | Gate | Up | Activated => self == Recompute::None,
            _ => false,
        }
    }

    /// Operations of a step for each parameter and token: two there, as many for what is computed again, and twice that
    /// back.
    pub fn operations(self, a: &Architecture) -> f64 {
        let again = match self {
            Recompute::Layer => 1.0,
            Recompute::FeedForward => {
                (2 * a.layers * a.intermediate_size * a.hidden_size) as f64 / a.parameters() as f64
            }
            Recompute::None => 0.0,
        };
        6.0 + 2.0 * again
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
                recipe.second_bytes(rows, columns),
            )
        }
        ref shape => (0, 4 * shape[0], 4 * shape[0]),
    };
    [(Name::Remainder(name), remainder), (Name::Moment(name), moment), (Name::Second(name), second)]
        .map(|(name, bytes)| (name, Group::State, None, bytes))
}

/// The gradient of a tensor, as a step stores it. Vectors are few, and exact.
pub fn stored_gradient(a: &Architecture, name: TensorName, storage: Storage) -> Stored {
    let (storage, rows, columns) = match a.shape(name)[..] {
        [rows, columns] => (storage, rows, columns),
        ref shape => (Storage::Float, 1, shape[0]),
    };
    Stored { buffer: Buffer { offset: 0, bytes: storage.bytes(rows, columns) }, storage, rows, columns }
}

/// Whether this is narrow where heads are.
fn of_heads(value: Value) -> bool {
    use Value::{Attended, DAttended, DK, DQ, DRaw, DV, K, KRaw, Q, QRaw, V};
    matches!(value, Q | K | V | QRaw | KRaw | Attended | DAttended | DQ | DK | DV | DRaw)
}

/// Values that only products read, or that products alone make, and that are therefore kept rounded.
fn narrow_values(
    a: &Architecture,
    settings: &Settings,
    encoding: &dyn Fn(TensorName) -> Option<Encoding>,
) -> Vec<Value> {
    use LayerTensor::{Down, Gate, GateBias, K, Q, Up, UpBias, V};
    let format = |name| settings.weights.format(name, encoding(name));
    let everywhere = |test: &dyn Fn(usize) -> bool| (0..a.layers).all(test);
    let rounds = |takers: &[LayerTensor]| {
        let rounds = |layer| takers.iter().all(|t| format(TensorName::Layer(layer, *t)) != WeightFormat::F32);
        everywhere(&rounds)
    };
    let alike = |layer| format(TensorName::Layer(layer, Gate)) == format(TensorName::Layer(layer, Up));
    let mixed = rounds(&[Gate, Up]) && everywhere(&alike) && !a.has(GateBias) && !a.has(UpBias);
    let head = format(if a.tied { TensorName::Embedding } else { TensorName::Head }) != WeightFormat::F32;
    let all = [
        (Value::Normed, rounds(&[Q, K, V])),
        (Value::PostNormed, rounds(&[Gate, Up])),
        (Value::Gate, mixed),
        (Value::Up, mixed),
        (Value::Activated, rounds(&[Down])),
        (Value::FinalNormed, head),
        (Value::DRounded, true),
    ];
    all.into_iter().filter(|(_, narrow)| *narrow).map(|(value, _)| value).collect()
}

/// Whether all that heads come from and go to rounds them, so that they may be narrow.
fn rounds_heads(
    a: &Architecture,
    settings: &Settings,
    encoding: &dyn Fn(TensorName) -> Option<Encoding>,
) -> bool {
    use LayerTensor::{K, KBias, O, OBias, Q, QBias, V, VBias};
    let rounds = |layer, tensor| {
        let name = TensorName::Layer(layer, tensor);
        settings.weights.format(name, encoding(name)) != WeightFormat::F32
    };
    let all = (0..a.layers).all(|layer| [Q, K, V, O].into_iter().all(|tensor| rounds(layer, tensor)));
    all && settings.cache == CacheFormat::Bf16
        && ![QBias, KBias, VBias, OBias].into_iter().any(|bias| a.has(bias))
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
        if let Some(storage) = training.gradient {
            let bytes = stored_gradient(a, name, storage).buffer.bytes;
            list.push((Name::Gradient(name), Group::State, None, bytes));
        }
    }
    let cache = Cache::bytes(settings.cache, a.kv_heads, a.head_dim, settings.context);
    list.push((Name::Cache(0), Group::Cache, None, cache));
    let tokens = settings.chunk;
    let narrow = narrow_values(a, settings, encoding);
    let rounds = [Value::Normed, Value::PostNormed].iter().all(|normed| narrow.contains(normed));
    let rounds = training.rounds_residual && rounds;
    let hidden = if rounds { Rows::narrow_bytes } else { Rows::bytes }(tokens, a.hidden_size);
    let middle = rounds || training.recompute.keeps(Value::Middle);
    let kept: &[Value] = if middle { &[Value::Entered, Value::Middle] } else { &[Value::Entered] };
    for layer in 0..a.layers {
        let kept = kept.iter().map(|value| (Name::Kept(layer, *value), Group::Activations, None, hidden));
        list.extend(kept);
    }
    let (q, kv, inner) = (a.heads * a.head_dim, a.kv_heads * a.head_dim, a.intermediate_size);
    // What lives inside a layer ends with it, what the way back through attention needs begins when
    // the feed-forward part is done, and logits come when no layer is at work.
    let (layer, fed, heads) = (
        Some((Stage::InputNorm, Stage::MlpResidual)),
        Some((Stage::PostNorm, Stage::MlpMix)),
        Some((Stage::Down, Stage::MlpResidual)),
    );
    let values = [
        (Value::Residual, None, a.hidden_size),
        (Value::Turns, None, a.head_dim),
        (Value::Normed, layer, a.hidden_size),
        (Value::Q, layer, q),
        (Value::K, layer, kv),
        (Value::V, layer, kv),
        (Value::QRaw, layer, q),
        (Value::KRaw, layer, kv),
        (Value::Attended, layer, q),
        (Value::PostNormed, fed, a.hidden_size),
        (Value::Gate, fed, inner),
        (Value::Up, fed, inner),
        (Value::Activated, fed, inner),
        (Value::FinalNormed, None, a.hidden_size),
        (Value::DResidual, None, a.hidden_size),
        (Value::DRounded, layer, a.hidden_size),
        (Value::DNormed, None, a.hidden_size),
        (Value::DAttended, heads, q),
        (Value::DQ, heads, q),
        (Value::DK, heads, kv),
        (Value::DV, heads, kv),
        (Value::DRaw, heads, q),
        (Value::LossState, None, loss::STATE),
    ];
    // Fewer tokens may have heads in f32.
    let few_heads = training.narrow_heads_from.filter(|_| rounds_heads(a, settings, encoding));
    let few_heads = few_heads.map(|from| tokens.min(from - 1));
    // Without norms of their own and as wide as they come, heads are made where they stay.
    let raw = a.has(LayerTensor::QNorm) || few_heads.is_some();
    let planned = |value| raw || !matches!(value, Value::QRaw | Value::KRaw);
    for (value, lifetime, columns) in values.into_iter().filter(|(value, ..)| planned(*value)) {
        let bytes = match (narrow.contains(&value), few_heads) {
            (true, _) => Rows::narrow_bytes(tokens, columns),
            (false, Some(few)) if of_heads(value) => {
                Rows::narrow_bytes(tokens, columns).max(Rows::bytes(few, columns))
            }
            (false, _) => Rows::bytes(tokens, columns),
        };
        let mut add = |name, lifetime| list.push((name, Group::Activations, lifetime, bytes));
        match training.recompute.keeps(value) {
            true => (0..a.layers).for_each(|layer| add(Name::Kept(layer, value), None)),
            false => add(Name::Value(value), lifetime),
        }
    }
    let words = training.vocabulary_chunk.min(a.vocab_size);
    let head = Some((Stage::Head, Stage::Head));
    list.push((Name::Value(Value::Logits), Group::Logits, head, Rows::bytes(tokens, words)));
    list.push((Name::Value(Value::DLogits), Group::Logits, head, Rows::narrow_bytes(tokens, words)));
    let layer = a.tensor_names().into_iter().filter(|name| matches!(name, TensorName::Layer(..)));
    let gradient = layer.map(|name| learn::room(&a.shape(name))).max().unwrap_or(0);
    let gradient = gradient.max(words * a.hidden_size * 4);
    list.push((Name::Value(Value::Gradient), Group::Scratch, None, gradient));
    list.push((Name::Scratch, Group::Scratch, None, scratch));
    let mut plan = place(a, settings, list);
    // Angles of a sample's positions.
    plan.beside_bytes += 4 * settings.context * a.head_dim;
    plan
}
