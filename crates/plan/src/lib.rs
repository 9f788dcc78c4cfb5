//! Bytes before they are allocated: every buffer of a run has a name, a size and a lifetime.
//!
//! Architecture + Settings -> buffers -> offsets in one arena -> `Plan`; a run uses exactly that.
//! `memory` alone asks the operating system; everything else here is arithmetic.
#![forbid(unsafe_code)]

pub mod arrange;
pub mod fit;
pub mod memory;
mod need;
pub mod settings;
mod training;

use std::collections::HashMap;

use halfbyte_checkpoint::TensorName;
use halfbyte_ops::Buffer;
use serde::Serialize;

pub use fit::{Change, Fit};
pub use need::plan;
pub use settings::{Settings, WeightChoice};
pub use training::{Recompute, TrainingSettings, plan_training, stored_gradient};

/// Values that each loading thread holds at a time, at least 16 rows.
pub const LOADING_VALUES: usize = 1 << 20;

/// Tokens at a time of a pass that someone watches: he sees products that are otherwise never
/// stored, and there is room for so many.
pub const WATCHED: usize = 16;

/// The stages of a forward pass, in order. Lifetimes are spans of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)] // the names are the meaning
pub enum Stage {
    Embed,
    InputNorm,
    Q,
    K,
    V,
    QkNorm,
    Rope,
    Attend,
    O,
    AttnResidual,
    PostNorm,
    Gate,
    Up,
    MlpMix,
    Down,
    MlpResidual,
    FinalNorm,
    Head,
}

impl Stage {
    /// As written in reports.
    pub fn name(self) -> &'static str {
        use Stage::*;
        match self {
            Embed => "embed",
            InputNorm => "input_norm",
            Q => "q",
            K => "k",
            V => "v",
            QkNorm => "qk_norm",
            Rope => "rope",
            Attend => "attend",
            O => "o",
            AttnResidual => "attn_residual",
            PostNorm => "post_norm",
            Gate => "gate",
            Up => "up",
            MlpMix => "mlp_mix",
            Down => "down",
            MlpResidual => "mlp_residual",
            FinalNorm => "final_norm",
            Head => "head",
        }
    }
}

/// What a buffer is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Name {
    /// A tensor of the model.
    Tensor(TensorName),
    /// Keys and values of a layer.
    Cache(usize),
    /// What a tensor that learns keeps beside its codes.
    Remainder(TensorName),
    /// Its first moments.
    Moment(TensorName),
    /// Its second moments.
    Second(TensorName),
    /// Its gradient, where a step stores it.
    Gradient(TensorName),
    /// The value that a stage writes.
    Value(Value),
    /// The same of one layer, kept for the way back.
    Kept(usize, Value),
    /// Working memory of the kernels.
    Scratch,
}

/// Values that ops hand to each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)] // the names are the meaning
pub enum Value {
    Residual,
    Normed,
    Turns,
    Q,
    K,
    V,
    Attended,
    Gate,
    Up,
    Activated,
    Part,
    Logits,
    DLogits,
    QRaw,
    KRaw,
    Entered,
    Middle,
    PostNormed,
    FinalNormed,
    DResidual,
    DRounded,
    DNormed,
    DAttended,
    DQ,
    DK,
    DV,
    DRaw,
    LossState,
    Gradient,
}

impl std::fmt::Display for Name {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Name::Tensor(name) => write!(f, "{name}"),
            Name::Cache(layer) => write!(f, "cache of layer {layer}"),
            Name::Remainder(name) => write!(f, "remainder of {name}"),
            Name::Moment(name) => write!(f, "first moments of {name}"),
            Name::Second(name) => write!(f, "second moments of {name}"),
            Name::Gradient(name) => write!(f, "gradient of {name}"),
            Name::Value(value) => write!(f, "{}", format!("{value:?}").to_lowercase()),
            Name::Kept(layer, value) => write!(f, "{} of layer {layer}", Name::Value(*value)),
            Name::Scratch => f.write_str("scratch"),
        }
    }
}

/// The groups that a table shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)] // the names are the meaning
pub enum Group {
    Weights,
    State,
    Cache,
    Activations,
    Scratch,
    Logits,
}

/// One buffer.
#[derive(Clone, Debug)]
pub struct Planned {
    /// What it is for.
    pub name: Name,
    /// Which line of the table it belongs to.
    pub group: Group,
    /// First and last stage that uses it; `None` lives through the whole run.
    pub lifetime: Option<(Stage, Stage)>,
    /// Where it lies.
    pub buffer: Buffer,
}

/// All buffers of a run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// What it was made for.
    pub settings: Settings,
    /// In the order of the forward pass.
    pub buffers: Vec<Planned>,
    /// Bytes of the arena.
    pub arena_bytes: usize,
    /// Bytes outside it: program, tokenizer, rows on their way from the file.
    pub beside_bytes: usize,
    by_name: HashMap<Name, usize>,
}

impl Plan {
    /// A buffer by name.
    pub fn buffer(&self, name: Name) -> Option<Buffer> {
        self.by_name.get(&name).map(|&i| self.buffers[i].buffer)
    }

    /// Everything the process will hold at its largest.
    pub fn peak_bytes(&self) -> usize {
        self.arena_bytes + self.beside_bytes
    }

    /// Bytes of a group; values whose lifetimes do not meet may share them.
    pub fn group_bytes(&self, group: Group) -> usize {
        let of_group = self.buffers.iter().filter(|b| b.group == group);
        of_group.map(|b| b.buffer.bytes).sum()
    }
}
