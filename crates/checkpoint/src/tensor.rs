//! A named tensor with an encoding, and the `Checkpoint` that reads it.

use std::fmt;

use halfbyte_formats::ggml;

use crate::names::TensorName;

/// How a tensor's values are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Encoding {
    /// 32-bit floats.
    F32,
    /// IEEE half precision.
    F16,
    /// bfloat16.
    Bf16,
    /// A GGML block type other than the three above.
    Ggml(ggml::Type),
    /// E2M1 codes (low nibble first), one E4M3 scale per 16, one f32 scale per tensor. The
    /// origin's single-level form is this with a tensor scale of 1.
    Nvfp4,
    /// E2M1 codes with f16 or f32 block scales: the origin's fallback quantiser. Read as values or raw.
    E2m1(WideScale),
}

/// The type of block scales wider than E4M3.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs)] // the names are the meaning
pub enum WideScale {
    F16,
    F32,
}

impl WideScale {
    /// Bytes of one scale.
    pub fn bytes(self) -> usize {
        match self {
            WideScale::F16 => 2,
            WideScale::F32 => 4,
        }
    }
}

impl Encoding {
    /// Bytes of one stored row of `columns` values, scales of blocks included (the tensor scale is
    /// not). `None` when the row cannot be stored so, or the number overflows.
    pub fn row_bytes(self, columns: usize) -> Option<usize> {
        let blocks = |block: usize, bytes: usize| match columns.is_multiple_of(block) {
            true => (columns / block).checked_mul(bytes),
            false => None,
        };
        match self {
            Encoding::F32 => columns.checked_mul(4),
            Encoding::F16 | Encoding::Bf16 => columns.checked_mul(2),
            Encoding::Ggml(kind) => blocks(kind.block(), kind.block_bytes()),
            Encoding::Nvfp4 => blocks(16, 9),
            Encoding::E2m1(scale) => blocks(16, 8 + scale.bytes()),
        }
    }

    /// Whether `read_nvfp4` gives this tensor without decoding it.
    pub fn is_nvfp4(self) -> bool {
        matches!(self, Encoding::Nvfp4 | Encoding::Ggml(ggml::Type::Nvfp4))
    }
}

impl fmt::Display for Encoding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Encoding::F32 => "F32",
            Encoding::F16 => "F16",
            Encoding::Bf16 => "BF16",
            Encoding::Ggml(kind) => kind.name(),
            Encoding::Nvfp4 => "NVFP4",
            Encoding::E2m1(WideScale::F16) => "E2M1 with F16 scales",
            Encoding::E2m1(WideScale::F32) => "E2M1 with F32 scales",
        })
    }
}

/// One tensor of a checkpoint.
#[derive(Debug, Clone)]
pub struct Tensor {
    /// What it is.
    pub name: TensorName,
    /// What the file calls it.
    pub disk_name: String,
    /// `[out, in]` or `[n]`; values, not stored bytes.
    pub shape: Vec<usize>,
    /// How it is stored.
    pub encoding: Encoding,
    /// Bytes on disk, scales included.
    pub bytes: u64,
    /// The reader's own number for it.
    pub(crate) slot: usize,
}

impl Tensor {
    /// Rows of a matrix; a vector is one row.
    pub fn rows(&self) -> usize {
        match self.shape[..] {
            [rows, _] => rows,
            _ => 1,
        }
    }

    /// Values in a row.
    pub fn columns(&self) -> usize {
        self.shape.last().copied().unwrap_or(0)
    }

    /// Number of values.
    pub fn values(&self) -> usize {
        self.rows() * self.columns()
    }
}
