//! Toy models whose every value is a formula of name, row and column, so that Python can repeat it.
#![allow(dead_code)] // each test binary uses its own part

use std::path::{Path, PathBuf};

use halfbyte_checkpoint::{
    Architecture, Checkpoint, Encoding, Family, Format, GgufArray, GgufMetadata, GgufValue, Output,
    OutputTensor, Rope, RopeScaling, TensorName, TextFiles, create,
};
use halfbyte_formats::ggml;

/// A file path that no other test uses.
pub(crate) fn scratch(name: &str) -> PathBuf {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(env!("CARGO_CRATE_NAME"));
    std::fs::create_dir_all(&directory).expect("temporary directory");
    directory.join(name)
}

/// Two layers, grouped heads, heads wider than hidden / heads for Qwen3.
pub(crate) fn architecture(family: Family) -> Architecture {
    Architecture {
        family,
        vocab_size: 40,
        hidden_size: 64,
        intermediate_size: 128,
        layers: 2,
        heads: 4,
        kv_heads: 2,
        head_dim: if family == Family::Qwen3 { 32 } else { 16 },
        norm_eps: 1e-5,
        rope: Rope { theta: 50000.0, scaling: RopeScaling::None },
        qk_norm: family == Family::Qwen3,
        qkv_bias: family == Family::Qwen2,
        output_bias: false,
        mlp_bias: false,
        tied: family == Family::Llama,
        max_context: 512,
        sliding_window: vec![None; 2],
        bos: Some(1),
        eos: vec![2, 3],
    }
}

/// A vocabulary of 38 tokens, two fewer than the embedding has rows.
pub(crate) fn vocabulary() -> GgufMetadata {
    let tokens = (0..38).map(|id| format!("t{id}")).collect();
    let mut metadata = GgufMetadata::default();
    metadata.set("general.name", GgufValue::String("toy".into()));
    metadata.set("general.file_type", GgufValue::U32(99));
    metadata.set("split.count", GgufValue::U16(1));
    metadata.set("llama.block_count", GgufValue::U32(99));
    metadata.set("tokenizer.ggml.model", GgufValue::String("gpt2".into()));
    metadata.set("tokenizer.ggml.tokens", GgufValue::Array(GgufArray::String(tokens)));
    metadata.set("tokenizer.ggml.token_type", GgufValue::Array(GgufArray::I32(vec![1; 38])));
    let merges = vec!["t 0".to_string()];
    metadata.set("tokenizer.ggml.merges", GgufValue::Array(GgufArray::String(merges)));
    metadata
}

/// Everything to be written, matrices of layers in `matrices`, the rest in F16.
pub(crate) fn output(architecture: Architecture, matrices: Encoding) -> Output {
    let names = architecture.tensor_names().into_iter();
    let tensors = names.map(|name| OutputTensor {
        name,
        shape: architecture.shape(name),
        encoding: match name {
            TensorName::Layer(..) if name.is_matrix() => matrices,
            _ => Encoding::F16,
        },
    });
    Output {
        tensors: tensors.collect(),
        text: TextFiles {
            gguf: Some(vocabulary()),
            chat_template: Some("{{ messages }}".into()),
            ..TextFiles::default()
        },
        architecture,
        dat: None,
    }
}

fn seed(name: TensorName) -> usize {
    name.to_string().bytes().map(usize::from).sum()
}

/// The value of a tensor stored as F32, F16, BF16 or Q8_0; exact in the first three.
pub(crate) fn value(name: TensorName, row: usize, column: usize) -> f32 {
    let mixed = (row * 31 + column * 7 + seed(name) * 13) % 255;
    (mixed as f32 - 127.0) / 64.0
}

pub(crate) fn rows(name: TensorName, range: std::ops::Range<usize>, columns: usize) -> Vec<f32> {
    range.flat_map(|row| (0..columns).map(move |column| value(name, row, column))).collect()
}

/// Code bytes and block scales of rows of an NVFP4 tensor.
pub(crate) fn nvfp4_rows(
    name: TensorName,
    range: std::ops::Range<usize>,
    columns: usize,
) -> (Vec<u8>, Vec<u8>) {
    let code = |row: usize, column: usize| ((row * 5 + column * 3 + seed(name)) % 16) as u8;
    let bytes = |row| (0..columns / 2).map(move |at| code(row, 2 * at) | code(row, 2 * at + 1) << 4);
    let scales = |row| (0..columns / 16).map(move |at| 0x30 + ((row + at + seed(name)) % 16) as u8);
    (range.clone().flat_map(bytes).collect(), range.flat_map(scales).collect())
}

/// The tensor scale of an NVFP4 tensor.
pub(crate) fn global(name: TensorName) -> f32 {
    (seed(name) % 7 + 1) as f32 / 16.0
}

/// Writes the model, last rows first, in chunks that are not whole heads.
pub(crate) fn write(path: &Path, output: Output) {
    let tensors = output.tensors.clone();
    let mut sink = create(path, Format::Gguf, output).expect("create");
    for (index, tensor) in tensors.iter().enumerate().rev() {
        let (count, columns) = (tensor.rows(), tensor.columns());
        let starts: Vec<_> = (0..count).step_by(5).collect();
        for &start in starts.iter().rev() {
            let range = start..count.min(start + 5);
            if tensor.encoding == Encoding::Nvfp4 {
                let (codes, scales) = nvfp4_rows(tensor.name, range, columns);
                sink.write_nvfp4(index, start, &codes, &scales).expect("write");
            } else {
                sink.write_rows(index, start, &rows(tensor.name, range, columns)).expect("write");
            }
        }
        if tensor.encoding == Encoding::Nvfp4 {
            sink.set_global(index, global(tensor.name)).expect("global");
        }
    }
    sink.finish().expect("finish");
}

/// All values of a tensor, read in chunks of seven rows.
pub(crate) fn read(checkpoint: &Checkpoint, name: TensorName) -> Vec<f32> {
    let tensor = checkpoint.find(name).expect("tensor");
    let mut values = vec![0.0; tensor.values()];
    for start in (0..tensor.rows()).step_by(7) {
        let range = start..tensor.rows().min(start + 7);
        let columns = tensor.columns();
        let out = &mut values[range.start * columns..range.end * columns];
        checkpoint.read_f32(tensor, range, out).expect("read");
    }
    values
}

pub(crate) const Q8_0: Encoding = Encoding::Ggml(ggml::Type::Q8_0);

/// A GGUF file taken apart, to be put together wrongly.
#[derive(Clone)]
pub(crate) struct Pieces {
    pub(crate) magic: [u8; 4],
    pub(crate) version: u32,
    pub(crate) tensor_count: u64,
    pub(crate) entry_count: u64,
    /// Key and everything after it.
    pub(crate) entries: Vec<(String, Vec<u8>)>,
    pub(crate) tensors: Vec<Piece>,
    pub(crate) data: Vec<u8>,
}

/// One entry of the tensor directory.
#[derive(Clone, Debug)]
pub(crate) struct Piece {
    pub(crate) name: String,
    pub(crate) dimensions: Vec<u64>,
    pub(crate) kind: u32,
    pub(crate) offset: u64,
}

/// A string as GGUF stores it.
pub(crate) fn string(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat()
}

/// A metadata value of type `kind`.
pub(crate) fn typed(kind: u32, bytes: &[u8]) -> Vec<u8> {
    [&kind.to_le_bytes(), bytes].concat()
}

impl Pieces {
    /// Takes apart what our writer wrote; offsets of entries come from its metadata.
    pub(crate) fn of(bytes: &[u8]) -> Pieces {
        let mut at = 24;
        let u32_at = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("u32"));
        let u64_at = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("u64"));
        let string_at = |at: &mut usize| {
            let length = u64_at(*at) as usize;
            let text = String::from_utf8(bytes[*at + 8..*at + 8 + length].to_vec()).expect("text");
            *at += 8 + length;
            text
        };
        let mut entries = Vec::new();
        for _ in 0..u64_at(16) {
            let key = string_at(&mut at);
            let start = at;
            at += 4;
            match u32_at(start) {
                8 => drop(string_at(&mut at)),
                9 => {
                    let (kind, count) = (u32_at(at), u64_at(at + 4));
                    at += 12;
                    for _ in 0..count {
                        match kind {
                            8 => drop(string_at(&mut at)),
                            7 => at += 1,
                            _ => at += 4,
                        }
                    }
                }
                7 => at += 1,
                _ => at += 4,
            }
            entries.push((key, bytes[start..at].to_vec()));
        }
        let mut tensors = Vec::new();
        for _ in 0..u64_at(8) {
            let name = string_at(&mut at);
            let count = u32_at(at) as usize;
            let dimensions = (0..count).map(|number| u64_at(at + 4 + 8 * number)).collect();
            at += 4 + 8 * count;
            let (kind, offset) = (u32_at(at), u64_at(at + 4));
            tensors.push(Piece { name, dimensions, kind, offset });
            at += 12;
        }
        Pieces {
            magic: *b"GGUF",
            version: u32_at(4),
            tensor_count: u64_at(8),
            entry_count: u64_at(16),
            entries,
            tensors,
            data: bytes[at.next_multiple_of(32)..].to_vec(),
        }
    }

    /// Adds or replaces a metadata entry, and counts it.
    pub(crate) fn set(&mut self, key: &str, value: Vec<u8>) {
        match self.entries.iter_mut().find(|(name, _)| name == key) {
            Some(entry) => entry.1 = value,
            None => self.entries.push((key.to_string(), value)),
        }
        self.entry_count = self.entries.len() as u64;
    }

    /// The header without padding.
    pub(crate) fn header(&self) -> Vec<u8> {
        let mut bytes = self.magic.to_vec();
        bytes.extend(self.version.to_le_bytes());
        bytes.extend(self.tensor_count.to_le_bytes());
        bytes.extend(self.entry_count.to_le_bytes());
        for (key, value) in &self.entries {
            bytes.extend(string(key));
            bytes.extend(value);
        }
        for tensor in &self.tensors {
            bytes.extend(string(&tensor.name));
            bytes.extend((tensor.dimensions.len() as u32).to_le_bytes());
            tensor.dimensions.iter().for_each(|n| bytes.extend(n.to_le_bytes()));
            bytes.extend(tensor.kind.to_le_bytes());
            bytes.extend(tensor.offset.to_le_bytes());
        }
        bytes
    }

    /// The file.
    pub(crate) fn join(&self) -> Vec<u8> {
        let mut bytes = self.header();
        bytes.resize(bytes.len().next_multiple_of(32), 0);
        bytes.extend(&self.data);
        bytes
    }
}

/// A file in two parts, the first with `first` tensors and all metadata.
pub(crate) fn split(bytes: &[u8], first: usize) -> [Vec<u8>; 2] {
    let whole = Pieces::of(bytes);
    let cut = whole.tensors[first].offset;
    let part = |number: u16, tensors: &[Piece], from: u64, data: &[u8]| {
        let mut pieces = whole.clone();
        if number > 0 {
            pieces.entries.clear();
        }
        pieces.set("split.no", typed(2, &number.to_le_bytes()));
        pieces.set("split.count", typed(2, &2u16.to_le_bytes()));
        let count = whole.tensors.len() as i32;
        pieces.set("split.tensors.count", typed(5, &count.to_le_bytes()));
        pieces.tensors = tensors.to_vec();
        pieces.tensors.iter_mut().for_each(|tensor| tensor.offset -= from);
        pieces.tensor_count = tensors.len() as u64;
        pieces.data = data.to_vec();
        pieces.join()
    };
    [
        part(0, &whole.tensors[..first], 0, &whole.data[..cut as usize]),
        part(1, &whole.tensors[first..], cut, &whole.data[cut as usize..]),
    ]
}
