//! Where it is computed. Flags (`wanted`) -> a device that is there (`gpus`), with kernels as they were asked for
//! (`kernels`) -> [`Place`]. Only this folder names a backend.

mod gpus;
mod kernels;
mod wanted;

use halfbyte_checkpoint::{Architecture, Checkpoint, LayerTensor, TensorName};
use halfbyte_cpu::{Cpu, Isa, measure};
use halfbyte_cuda::{Cuda, Device};
use halfbyte_ops::{Backend, Buffer};
use halfbyte_plan::memory::{self, Memory};
use halfbyte_plan::{Name, Plan, Settings};

use crate::failure::Result;

pub(crate) use gpus::{Gpu, Gpus};
pub(crate) use kernels::{Kernels, cpu_kernels};
pub(crate) use wanted::{InBits, PlaceArgs, Unified, Wanted};

/// What computes.
#[derive(Clone)]
pub(crate) enum Place {
    Cpu {
        isa: Isa,
        threads: usize,
    },
    /// `unified`: its memory is the machine's, and counts as such.
    Cuda {
        device: Device,
        unified: bool,
    },
}

impl Place {
    /// For people.
    pub(crate) fn describe(&self) -> String {
        match self {
            Place::Cpu { isa, threads } => format!("{threads} threads · {isa}"),
            Place::Cuda { device, .. } => {
                let few_bits = device.few_bits().map(|bits| format!(" · {}", bits.name()));
                format!("{}{}", device.properties().name, few_bits.unwrap_or_default())
            }
        }
    }

    /// Threads of the host that compute.
    pub(crate) fn threads(&self) -> usize {
        match self {
            Place::Cpu { threads, .. } => *threads,
            Place::Cuda { .. } => 1,
        }
    }

    /// Has a file read so that it does not take the memory of this place twice.
    pub(crate) fn prepare(&self, checkpoint: &mut Checkpoint) -> Result<()> {
        match self {
            Place::Cuda { unified: true, .. } => Ok(checkpoint.read_directly()?),
            _ => Ok(()),
        }
    }

    /// Tokens of a prompt that are computed together: enough to keep all of it busy.
    pub(crate) fn chunk(&self) -> usize {
        match self {
            Place::Cpu { .. } => 512,
            Place::Cuda { .. } => 4096,
        }
    }

    /// Words of the vocabulary whose logits exist at a time, in a step of so many tokens. A GPU is not kept busy by
    /// few of either; and as many words as gate and up have outputs take no more than those, which no longer live then.
    pub(crate) fn words(&self, a: &Architecture, tokens: usize) -> usize {
        let free = a.intermediate_size / 1024 * 1024;
        match self {
            Place::Cpu { .. } => 2048,
            Place::Cuda { .. } => (4096 / tokens.max(1) * 2048).max(free).clamp(2048, 8192),
        }
    }

    /// As its backend answers.
    pub(crate) fn rounds_residual(&self) -> bool {
        matches!(self, Place::Cuda { .. })
    }

    /// Tokens from which on its backend takes heads of this width narrow.
    pub(crate) fn narrow_heads_from(&self, head_dim: usize) -> Option<usize> {
        match self {
            Place::Cpu { .. } => None,
            Place::Cuda { device, .. } => device.narrow_heads_from(head_dim),
        }
    }

    /// An empty arena for a plan.
    pub(crate) fn backend(&self, plan: &Plan) -> Result<Box<dyn Backend>> {
        let scratch: Buffer = plan.buffer(Name::Scratch).unwrap_or_default();
        Ok(match self {
            Place::Cpu { isa, threads } => Box::new(Cpu::new(*isa, *threads, plan.arena_bytes, scratch)?),
            Place::Cuda { device, .. } => Box::new(Cuda::new(device, plan.arena_bytes, scratch)?),
        })
    }

    /// Bytes of scratch that a conversation needs.
    pub(crate) fn scratch(&self, a: &Architecture, settings: &Settings) -> usize {
        let tokens = settings.chunk.max(settings.logit_rows);
        let (context, head_dim) = (settings.context, a.head_dim);
        match self {
            Place::Cpu { threads, .. } => {
                let columns = |tensor| a.shape(TensorName::Layer(0, tensor))[1];
                let inputs = [LayerTensor::Q, LayerTensor::O, LayerTensor::Down].map(columns);
                let columns = inputs.into_iter().max().unwrap_or(0);
                halfbyte_cpu::ScratchNeed { tokens, columns, context, head_dim, threads: *threads }.bytes()
            }
            Place::Cuda { device, .. } => {
                let (heads, decodes_before) = (a.heads, device.decodes_before());
                halfbyte_cuda::ScratchNeed { tokens, heads, head_dim, context, decodes_before }.bytes()
            }
        }
    }

    /// Bytes of scratch that a training step needs, with `words` of the vocabulary at a time.
    pub(crate) fn training_scratch(&self, a: &Architecture, settings: &Settings, words: usize) -> usize {
        let sides = [LayerTensor::Q, LayerTensor::O, LayerTensor::Down, LayerTensor::Gate]
            .into_iter()
            .flat_map(|tensor| a.shape(TensorName::Layer(0, tensor)));
        let widest = sides.max().unwrap_or(0).max(words.min(a.vocab_size));
        let (tokens, longest, head_dim) = (settings.chunk, settings.context, a.head_dim);
        match self {
            Place::Cpu { threads, .. } => {
                halfbyte_cpu::TrainingNeed { tokens, longest, widest, head_dim, threads: *threads }.bytes()
            }
            Place::Cuda { device, .. } => {
                let (heads, kv_heads, layer) = (a.heads, a.kv_heads, layer_values(a));
                let decodes_before = device.decodes_before();
                let need = halfbyte_cuda::TrainingNeed {
                    tokens,
                    heads,
                    kv_heads,
                    head_dim,
                    widest,
                    layer,
                    decodes_before,
                };
                need.bytes().max(self.scratch(a, settings))
            }
        }
    }

    /// A GPU with memory of its own. One that shares the machine's must leave it alive: the system's meters count.
    fn apart(&self) -> Option<&Device> {
        match self {
            Place::Cuda { device, unified: false } => Some(device),
            _ => None,
        }
    }

    /// The memory that a plan must fit into; `None` where there is no meter.
    pub(crate) fn memory(&self) -> Option<Memory> {
        let Some(device) = self.apart() else { return memory::read() };
        let (_, total) = device.memory().ok()?;
        // What others hold is part of the plan, see `complete`.
        Some(Memory { total: total as u64, available: total as u64 })
    }

    /// A plan with what is held beside its arena, in the memory that it must fit into.
    pub(crate) fn complete(&self, mut plan: Plan) -> Plan {
        if let Some(device) = self.apart() {
            plan.beside_bytes = device.beside();
        }
        plan
    }

    /// By whom what lies beside the arena is held, and what it is.
    pub(crate) fn beside(&self) -> (&'static str, &'static str) {
        match self.apart() {
            Some(_) => ("driver", "its own memory, libraries, other programs on this GPU"),
            None => ("program", "tokenizer, rows on their way from the file"),
        }
    }

    /// The most memory that was held: by this process, or on the GPU by all.
    pub(crate) fn held(&self) -> Option<u64> {
        let Some(device) = self.apart() else { return memory::peak_resident() };
        let (free, total) = device.memory().ok()?;
        Some((total - free) as u64)
    }

    /// Operations a second of the unit that makes products, where it can be measured.
    pub(crate) fn arithmetic(&self) -> Option<f64> {
        match self {
            Place::Cpu { isa, threads } => measure::arithmetic(*isa, *threads).ok(),
            Place::Cuda { device, .. } => halfbyte_cuda::measure::arithmetic(device).ok(),
        }
    }

    /// Measures the speed of reading memory, again and again.
    pub(crate) fn reader(&self, bytes: usize) -> Result<Reader> {
        Ok(match self {
            Place::Cpu { isa, threads } => Reader::Cpu(measure::Reader::new(*isa, *threads, bytes)?),
            Place::Cuda { device, .. } => {
                Reader::Cuda(Box::new(halfbyte_cuda::measure::Reader::new(device, bytes)?))
            }
        })
    }
}

/// Values of a layer's matrices, with their columns in blocks of 64 as devices have them.
fn layer_values(a: &Architecture) -> usize {
    let tensors = LayerTensor::ALL.into_iter().filter(|tensor| a.has(*tensor));
    let values = tensors.map(|tensor| match a.shape(TensorName::Layer(0, tensor))[..] {
        [rows, columns] => rows * columns.next_multiple_of(64),
        _ => 0,
    });
    values.sum()
}

/// See [`Place::reader`].
pub(crate) enum Reader {
    Cpu(measure::Reader),
    Cuda(Box<halfbyte_cuda::measure::Reader>),
}

impl Reader {
    /// Bytes a second.
    pub(crate) fn pass(&mut self) -> Result<f64> {
        Ok(match self {
            Reader::Cpu(reader) => reader.pass()?,
            Reader::Cuda(reader) => reader.pass()?,
        })
    }
}
