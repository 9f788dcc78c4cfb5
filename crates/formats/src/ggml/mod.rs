//! GGUF tensor types: blocks of bytes <-> f32, bit for bit as the `gguf` package computes them.
//!
//! A row is a sequence of blocks; every block holds its own scales. Products and sums are rounded
//! one after the other in the order written here (never fused), because loaders compare bits.

mod blocks32;
mod fp4;
mod iq4;
mod k_quants;
mod plain;

pub use blocks32::encode_row_q8_0;
pub use fp4::{nvfp4_from_rows, nvfp4_to_rows};

/// A GGUF tensor type that can be decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Type {
    /// 32-bit floats.
    F32,
    /// IEEE half floats.
    F16,
    /// bfloat16.
    Bf16,
    /// 4 bits, one f16 scale per 32, centred on 8.
    Q4_0,
    /// 4 bits, f16 scale and minimum per 32.
    Q4_1,
    /// 5 bits, one f16 scale per 32, centred on 16.
    Q5_0,
    /// 5 bits, f16 scale and minimum per 32.
    Q5_1,
    /// 8 bits, one f16 scale per 32.
    Q8_0,
    /// 2 bits, 4-bit scales and minimums per 16 under f16 ones per 256.
    Q2K,
    /// 3 bits, 6-bit scales per 16 under an f16 one per 256.
    Q3K,
    /// 4 bits, 6-bit scales and minimums per 32 under f16 ones per 256.
    Q4K,
    /// 5 bits, 6-bit scales and minimums per 32 under f16 ones per 256.
    Q5K,
    /// 6 bits, 8-bit scales per 16 under an f16 one per 256.
    Q6K,
    /// 4-bit index into a fixed table, one f16 scale per 32.
    Iq4Nl,
    /// 4-bit index into a fixed table, 6-bit scales per 32 under an f16 one per 256.
    Iq4Xs,
    /// E2M1 with a power of two per 32.
    Mxfp4,
    /// E2M1 with an unsigned E4M3 scale per 16, four scales to a block.
    Nvfp4,
}

impl Type {
    /// Every type, in the order of their ids.
    pub const ALL: [Type; 17] = [
        Type::F32,
        Type::F16,
        Type::Q4_0,
        Type::Q4_1,
        Type::Q5_0,
        Type::Q5_1,
        Type::Q8_0,
        Type::Q2K,
        Type::Q3K,
        Type::Q4K,
        Type::Q5K,
        Type::Q6K,
        Type::Iq4Nl,
        Type::Iq4Xs,
        Type::Bf16,
        Type::Mxfp4,
        Type::Nvfp4,
    ];

    /// The type a GGUF file means by `id`, or `None` for one that cannot be decoded here.
    pub fn from_id(id: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|ty| ty.id() == id)
    }

    /// The number of this type in a GGUF file.
    pub fn id(self) -> u32 {
        self.row().0
    }

    /// Values in one block.
    pub fn block(self) -> usize {
        self.row().1
    }

    /// Bytes of one block.
    pub fn block_bytes(self) -> usize {
        self.row().2
    }

    /// The name people know it by.
    pub fn name(self) -> &'static str {
        self.row().3
    }

    /// Bytes of `values` values, or `None` where they do not fill whole blocks or do not fit.
    pub fn bytes(self, values: usize) -> Option<usize> {
        let whole = values.is_multiple_of(self.block());
        whole.then(|| (values / self.block()).checked_mul(self.block_bytes()))?
    }

    /// (id, values per block, bytes per block, name)
    fn row(self) -> (u32, usize, usize, &'static str) {
        match self {
            Type::F32 => (0, 1, 4, "F32"),
            Type::F16 => (1, 1, 2, "F16"),
            Type::Q4_0 => (2, 32, 18, "Q4_0"),
            Type::Q4_1 => (3, 32, 20, "Q4_1"),
            Type::Q5_0 => (6, 32, 22, "Q5_0"),
            Type::Q5_1 => (7, 32, 24, "Q5_1"),
            Type::Q8_0 => (8, 32, 34, "Q8_0"),
            Type::Q2K => (10, 256, 84, "Q2_K"),
            Type::Q3K => (11, 256, 110, "Q3_K"),
            Type::Q4K => (12, 256, 144, "Q4_K"),
            Type::Q5K => (13, 256, 176, "Q5_K"),
            Type::Q6K => (14, 256, 210, "Q6_K"),
            Type::Iq4Nl => (20, 32, 18, "IQ4_NL"),
            Type::Iq4Xs => (23, 256, 136, "IQ4_XS"),
            Type::Bf16 => (30, 1, 2, "BF16"),
            Type::Mxfp4 => (39, 32, 17, "MXFP4"),
            Type::Nvfp4 => (40, 64, 36, "NVFP4"),
        }
    }
}

/// Decodes whole blocks: `out` receives the values of `bytes` (several rows may be given at once).
///
/// # Panics
/// If `out` is not a whole number of blocks, or `bytes` is not exactly those blocks.
pub fn decode_row(ty: Type, bytes: &[u8], out: &mut [f32]) {
    let expected = ty.bytes(out.len());
    assert_eq!(expected, Some(bytes.len()), "{}: bytes for {} values", ty.name(), out.len());
    match ty {
        Type::F32 => plain::f32(bytes, out),
        Type::F16 => plain::f16(bytes, out),
        Type::Bf16 => plain::bf16(bytes, out),
        Type::Q4_0 => each_block(bytes, out, blocks32::q4_0),
        Type::Q4_1 => each_block(bytes, out, blocks32::q4_1),
        Type::Q5_0 => each_block(bytes, out, blocks32::q5_0),
        Type::Q5_1 => each_block(bytes, out, blocks32::q5_1),
        Type::Q8_0 => each_block(bytes, out, blocks32::q8_0),
        Type::Q2K => each_block(bytes, out, k_quants::q2_k),
        Type::Q3K => each_block(bytes, out, k_quants::q3_k),
        Type::Q4K => each_block(bytes, out, k_quants::q4_k),
        Type::Q5K => each_block(bytes, out, k_quants::q5_k),
        Type::Q6K => each_block(bytes, out, k_quants::q6_k),
        Type::Iq4Nl => each_block(bytes, out, iq4::iq4_nl),
        Type::Iq4Xs => each_block(bytes, out, iq4::iq4_xs),
        Type::Mxfp4 => each_block(bytes, out, fp4::mxfp4),
        Type::Nvfp4 => each_block(bytes, out, fp4::nvfp4),
    }
}

/// Sizes are known to the compiler, so the block decoders need no bounds checks and vectorise.
#[inline(always)]
fn each_block<const BYTES: usize, const VALUES: usize>(
    bytes: &[u8],
    out: &mut [f32],
    decode: impl Fn(&[u8; BYTES], &mut [f32; VALUES]),
) {
    let blocks = bytes.as_chunks::<BYTES>().0;
    for (block, values) in blocks.iter().zip(out.as_chunks_mut::<VALUES>().0) {
        decode(block, values);
    }
}

/// The f16 at `at`; every scale of these formats is one.
#[inline(always)]
fn half<const BYTES: usize>(block: &[u8; BYTES], at: usize) -> f32 {
    crate::f16::decode(u16::from_le_bytes([block[at], block[at + 1]]))
}

/// The `N` bytes at `at`, as an array whose length the compiler knows.
#[inline(always)]
fn field<const N: usize, const BYTES: usize>(block: &[u8; BYTES], at: usize) -> &[u8; N] {
    &block[at..].as_chunks::<N>().0[0]
}
