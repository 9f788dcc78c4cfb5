//! The list of a run's buffers.

use std::collections::HashMap;

use halfbyte_checkpoint::{Architecture, Encoding, LayerTensor, TensorName};
use halfbyte_ops::{Buffer, Cache, Rows};

use crate::arrange::arrange;
use crate::settings::Settings;
use crate::{Group, LOADING_VALUES, Name, Plan, Planned, Stage, Value, WATCHED};

const ALIGN: usize = 64;
/// The program itself: code, the embedded model, stacks, small tables.
const PROGRAM: usize = 16 << 20;
/// A token of the vocabulary costs the tokenizer's tables about so much.
const TOKEN: usize = 400;

/// Plans a run. `encoding` gives the file's encoding of a tensor (None for a bare config);
/// `scratch` the bytes that the device's kernels need.
pub fn plan(
    architecture: &Architecture,
    settings: &Settings,
    encoding: &dyn Fn(TensorName) -> Option<Encoding>,
    scratch: usize,
) -> Plan {
    let mut list = tensors(architecture, settings, encoding);
    let lane = Cache::bytes(settings.cache, architecture.kv_heads, architecture.head_dim, settings.context);
    for layer in 0..architecture.layers {
        list.push((Name::Cache(layer), Group::Cache, None, lane * settings.lanes));
    }
    let format = |name| settings.weights.format(name, encoding(name));
    let mixed = (0..architecture.layers)
        .map(|i| [LayerTensor::Gate, LayerTensor::Up].map(|t| TensorName::Layer(i, t)));
    let mixed = mixed.into_iter().any(|[gate, up]| format(gate) != format(up));
    list.extend(values(architecture, settings, mixed));
    list.push((Name::Scratch, Group::Scratch, None, scratch));
    place(architecture, settings, list)
}

/// The model's own tensors.
pub(crate) fn tensors(
    architecture: &Architecture,
    settings: &Settings,
    encoding: &dyn Fn(TensorName) -> Option<Encoding>,
) -> Vec<Item> {
    let bytes = |name| match architecture.shape(name)[..] {
        [rows, columns] => settings.weights.format(name, encoding(name)).bytes(rows, columns),
        ref shape => shape.iter().product::<usize>() * 4,
    };
    let names = architecture.tensor_names().into_iter();
    names.map(|name| (Name::Tensor(name), Group::Weights, None, bytes(name))).collect()
}

pub(crate) type Item = (Name, Group, Option<(Stage, Stage)>, usize);

/// Gate and up are mixed as they are computed, and what is added to the residual is added at once;
/// only who watches sees them, in places for few tokens. Gate and up of different formats
/// (`mixed`) are stored for all.
fn values(a: &Architecture, settings: &Settings, mixed: bool) -> Vec<Item> {
    let (q, kv) = (a.heads * a.head_dim, a.kv_heads * a.head_dim);
    let rows = |value, rows: usize, columns: usize, first, last| {
        (Name::Value(value), Group::Activations, Some((first, last)), Rows::bytes(rows, columns))
    };
    let value = |value, columns, first, last| rows(value, settings.chunk, columns, first, last);
    let seldom = if mixed { settings.chunk } else { settings.chunk.min(WATCHED) };
    use Stage as S;
    let logits = settings.logit_rows * a.vocab_size * 4;
    vec![
        // The head takes rows of the residual a few at a time, while logits are already written.
        value(Value::Residual, a.hidden_size, S::Embed, S::Head),
        value(Value::Turns, a.head_dim, S::Embed, S::Head),
        value(Value::Normed, a.hidden_size, S::InputNorm, S::Head),
        value(Value::Q, q, S::Q, S::Attend),
        value(Value::K, kv, S::K, S::Attend),
        value(Value::V, kv, S::V, S::Attend),
        value(Value::Attended, q, S::Attend, S::O),
        rows(Value::Gate, seldom, a.intermediate_size, S::Gate, S::MlpMix),
        rows(Value::Up, seldom, a.intermediate_size, S::Gate, S::MlpMix),
        value(Value::Activated, a.intermediate_size, S::Gate, S::Down),
        rows(Value::Part, settings.chunk.min(WATCHED), a.hidden_size, S::O, S::MlpResidual),
        (Name::Value(Value::Logits), Group::Logits, Some((S::Head, S::Head)), logits),
    ]
}

pub(crate) fn place(architecture: &Architecture, settings: &Settings, list: Vec<Item>) -> Plan {
    let whole = (Stage::Embed as usize, Stage::Head as usize);
    let spans: Vec<(usize, (usize, usize))> = list
        .iter()
        .map(|(_, _, lifetime, bytes)| {
            let span = lifetime.map_or(whole, |(first, last)| (first as usize, last as usize));
            (*bytes, span)
        })
        .collect();
    let (offsets, arena_bytes) = arrange(&spans, ALIGN);
    let buffers: Vec<Planned> = list
        .into_iter()
        .zip(offsets)
        .map(|((name, group, lifetime, bytes), offset)| Planned {
            name,
            group,
            lifetime,
            buffer: Buffer { offset, bytes },
        })
        .collect();
    let by_name = buffers.iter().enumerate().map(|(i, b)| (b.name, i)).collect::<HashMap<_, _>>();
    Plan {
        settings: settings.clone(),
        buffers,
        arena_bytes,
        beside_bytes: beside_bytes(architecture, settings),
        by_name,
    }
}

/// Rows on their way from the file (values, codes, what the file had), the program, and of lanes the logits, once as
/// they come and once to choose from, and what each thread that chooses has beside them: candidates and their weights.
fn beside_bytes(architecture: &Architecture, settings: &Settings) -> usize {
    let columns = [TensorName::Embedding, TensorName::Layer(0, LayerTensor::Down)]
        .map(|name| architecture.shape(name)[1]);
    let widest = columns.into_iter().max().unwrap_or(0);
    let rows = LOADING_VALUES.max(widest * 16);
    let vocabulary = architecture.vocab_size;
    let choosing = match settings.lanes {
        0 | 1 => 0,
        lanes => (lanes - 1) * vocabulary * 8 + lanes.min(settings.threads) * vocabulary * 16,
    };
    PROGRAM + vocabulary * TOKEN + settings.threads * rows * 12 + choosing
}
