//! Handles: what an op is given. None of them owns memory.

use crate::error::{Result, check};

/// Rows of a weight that lie together, so that one load serves 16 outputs.
pub const PANEL: usize = 16;
/// Inner positions that lie together in a panel; inner dimensions are padded to it with zeros.
pub const UNIT: usize = 64;
/// Weights that share a scale, in every blocked format.
pub const BLOCK: usize = 16;
/// Keys of a cache that lie together; capacities are rounded up to it.
pub const KEYS: usize = 32;

/// Widest head that kernels keep in registers and on the stack; wider ones are refused.
pub const WIDEST_HEAD: usize = 512;

/// A range of the device's arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Buffer {
    /// First byte, a multiple of 64.
    pub offset: usize,
    /// Length in bytes.
    pub bytes: usize,
}

/// `[rows, columns]`: f32, contiguous; or narrow, which is what a product makes of its input:
/// rounded to bf16, in the device's own layout. Ops that compute a product's input may write it
/// so; only products take it, and a weight may learn from a gradient that is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rows {
    /// Where.
    pub buffer: Buffer,
    /// Tokens, mostly.
    pub rows: usize,
    /// Channels.
    pub columns: usize,
    /// bf16 for products instead of f32.
    pub narrow: bool,
}

impl Rows {
    /// The first `rows * columns` values of a buffer.
    pub fn new(buffer: Buffer, rows: usize, columns: usize) -> Rows {
        let buffer = Buffer { offset: buffer.offset, bytes: rows * columns * 4 };
        Rows { buffer, rows, columns, narrow: false }
    }

    /// The same place for narrow rows; the plan keeps [`Rows::bytes`] there.
    pub fn narrow(self) -> Rows {
        let bytes = Rows::narrow_bytes(self.rows, self.columns);
        Rows { buffer: Buffer { offset: self.buffer.offset, bytes }, narrow: true, ..self }
    }

    /// Bytes of narrow rows: padded to 32 rows and to whole units.
    pub const fn narrow_bytes(rows: usize, columns: usize) -> usize {
        rows.next_multiple_of(2 * PANEL) * columns.next_multiple_of(UNIT) * 2
    }

    /// Bytes that hold such rows whether they are f32 or narrow.
    pub fn bytes(rows: usize, columns: usize) -> usize {
        (rows * columns * 4).max(Rows::narrow_bytes(rows, columns))
    }

    /// Rows `first..first + count` of these; of narrow rows `first` is a multiple of 16, so that no
    /// tile is shared.
    pub fn slice(self, first: usize, count: usize) -> Rows {
        if self.narrow {
            let row = self.columns.next_multiple_of(UNIT) * 2;
            let (offset, bytes) = (self.buffer.offset + first * row, count.next_multiple_of(PANEL) * row);
            return Rows { buffer: Buffer { offset, bytes }, rows: count, ..self };
        }
        let start = Buffer { offset: self.buffer.offset + first * self.columns * 4, bytes: 0 };
        Rows::new(start, count, self.columns)
    }

    /// The same values as rows of another width.
    pub fn reshape(self, columns: usize) -> Rows {
        Rows::new(self.buffer, self.rows * self.columns / columns, columns)
    }
}

/// f32 values for every row alike: a gain, a bias.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vector {
    /// Where.
    pub buffer: Buffer,
    /// How many.
    pub len: usize,
}

/// How a weight is kept. The numbers are those of `halfbyte_formats`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WeightFormat {
    /// 4 bytes; products take activations as they are.
    F32,
    /// 2 bytes.
    Bf16,
    /// 8.5 bits: int8 with a power of two for every 16.
    Int8,
    /// 4.5 bits: E2M1 with an E4M3 scale for every 16, and one f32 scale.
    Nvfp4,
}

impl WeightFormat {
    /// Bytes of one unit: 16 rows of 64 inner positions, scales included.
    pub const fn unit_bytes(self) -> usize {
        let values = PANEL * UNIT;
        match self {
            WeightFormat::F32 => values * 4,
            WeightFormat::Bf16 => values * 2,
            WeightFormat::Int8 => values + values / BLOCK,
            WeightFormat::Nvfp4 => values / 2 + values / BLOCK,
        }
    }

    /// Bytes of a whole weight on a device: 64 for its own scale, then panels of padded units,
    /// then 64 that a kernel may read but never uses.
    pub const fn bytes(self, rows: usize, columns: usize) -> usize {
        64 + rows.div_ceil(PANEL) * columns.div_ceil(UNIT) * self.unit_bytes() + 64
    }

    /// As people write it.
    pub const fn name(self) -> &'static str {
        match self {
            WeightFormat::F32 => "f32",
            WeightFormat::Bf16 => "bf16",
            WeightFormat::Int8 => "int8",
            WeightFormat::Nvfp4 => "nvfp4",
        }
    }
}

/// A matrix `[rows, columns]` = `[out, in]` in the device's own layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Weight {
    /// Where; [`WeightFormat::bytes`] long.
    pub buffer: Buffer,
    /// Outputs.
    pub rows: usize,
    /// Inputs.
    pub columns: usize,
    /// How its values are kept.
    pub format: WeightFormat,
}

impl Weight {
    /// Rows `first..first + rows` as a weight of its own; `first` is a multiple of 16. A format
    /// with a scale for the whole tensor cannot be cut.
    pub fn slice(self, first: usize, rows: usize) -> Option<Weight> {
        let fits = first.is_multiple_of(PANEL) && first + rows <= self.rows;
        (fits && self.format != WeightFormat::Nvfp4).then(|| {
            let panels = first / PANEL * self.columns.div_ceil(UNIT) * self.format.unit_bytes();
            let bytes = self.format.bytes(rows, self.columns);
            Weight { buffer: Buffer { offset: self.buffer.offset + panels, bytes }, rows, ..self }
        })
    }
}

impl Weight {
    /// How many rows these are, if they fit from `first_row` on, in whole panels or up to the end.
    pub fn check_rows(&self, first_row: usize, rows: WeightRows<'_>) -> Result<usize> {
        let columns = self.columns;
        let (blocks, half) = (columns.div_ceil(BLOCK), columns.div_ceil(2));
        let (count, fits) = match (self.format, rows) {
            (WeightFormat::F32 | WeightFormat::Bf16, WeightRows::Values(x)) => {
                (x.len() / columns, x.len().is_multiple_of(columns))
            }
            (WeightFormat::Int8, WeightRows::Int8 { codes, scales }) => {
                let count = codes.len() / columns;
                (count, codes.len() == count * columns && scales.len() == count * blocks)
            }
            (WeightFormat::Nvfp4, WeightRows::Nvfp4 { codes, scales, .. }) => {
                let count = codes.len() / half;
                (count, codes.len() == count * half && scales.len() == count * blocks)
            }
            _ => (0, false),
        };
        let whole = first_row.is_multiple_of(PANEL)
            && (count.is_multiple_of(PANEL) || first_row + count == self.rows);
        check(fits && whole && first_row + count <= self.rows, "write_weight", || {
            format!(
                "{count} rows at {first_row} do not fit {} {}x{}",
                self.format.name(),
                self.rows,
                self.columns
            )
        })?;
        Ok(count)
    }

    /// Whether a row can be taken as so many bytes of codes and of scales, in whole blocks.
    pub fn check_row(&self, row: usize, codes: usize, scales: usize) -> Result<()> {
        let blocks = self.columns.div_ceil(BLOCK);
        let bytes = match self.format {
            WeightFormat::Nvfp4 => blocks * BLOCK / 2,
            WeightFormat::Int8 => blocks * BLOCK,
            WeightFormat::F32 | WeightFormat::Bf16 => usize::MAX,
        };
        check(row < self.rows && codes == bytes && scales == blocks, "read_row", || {
            format!("row {row} of {} {}x{}", self.format.name(), self.rows, self.columns)
        })
    }
}

/// Rows of a weight on the host, as `halfbyte_formats` writes them, row after row.
#[derive(Clone, Copy, Debug)]
pub enum WeightRows<'a> {
    /// Values; for `F32` and `Bf16` (rounded to nearest).
    Values(&'a [f32]),
    /// Codes and E8M0 scales (one for every 16, the last of a row may be short).
    Int8 {
        /// `[rows, columns]`
        codes: &'a [i8],
        /// `[rows, ceil(columns / 16)]`
        scales: &'a [u8],
    },
    /// Codes (low nibble first), E4M3 scales, and the tensor's scale.
    Nvfp4 {
        /// `[rows, ceil(columns / 2)]`
        codes: &'a [u8],
        /// `[rows, ceil(columns / 16)]`
        scales: &'a [u8],
        /// Multiplies every value.
        global: f32,
    },
}

/// How keys and values are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CacheFormat {
    /// 4 bytes; attention takes queries and probabilities as they are.
    F32,
    /// 2 bytes.
    Bf16,
    /// 8.5 bits: int8 with a power of two for every 16.
    Int8,
}

impl CacheFormat {
    /// Bytes for `values` numbers, scales included.
    pub const fn bytes(self, values: usize) -> usize {
        match self {
            CacheFormat::F32 => values * 4,
            CacheFormat::Bf16 => values * 2,
            CacheFormat::Int8 => values + values / BLOCK,
        }
    }

    /// As people write it.
    pub const fn name(self) -> &'static str {
        match self {
            CacheFormat::F32 => "f32",
            CacheFormat::Bf16 => "bf16",
            CacheFormat::Int8 => "int8",
        }
    }
}

/// Keys and values of one layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cache {
    /// Where; [`Cache::bytes`] long: all keys, then all values, head after head.
    pub buffer: Buffer,
    /// How they are kept.
    pub format: CacheFormat,
    /// Heads of keys and values.
    pub kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Positions, a multiple of [`KEYS`].
    pub capacity: usize,
}

impl Cache {
    /// Width of a head as stored: padded so that groups of 32 are whole.
    pub const fn padded_head(head_dim: usize) -> usize {
        head_dim.div_ceil(32) * 32
    }

    /// Bytes of a layer's cache for `positions`.
    pub const fn bytes(format: CacheFormat, kv_heads: usize, head_dim: usize, positions: usize) -> usize {
        let capacity = positions.div_ceil(KEYS) * KEYS;
        2 * format.bytes(kv_heads * Self::padded_head(head_dim) * capacity)
    }
}
