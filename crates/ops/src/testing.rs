//! What the contracts share: numbers from a formula, buffers handed out in order, bitwise comparison.

use crate::{Backend, Buffer, Rows, Vector, Weight, WeightFormat, WeightRows};
use halfbyte_formats::{bf16, int8_block, nvfp4};

/// What f32 sums in another order may be off by, as a part of the largest: a small multiple of
/// 2^-24 for each of up to a few hundred terms.
pub const SUMMED: f32 = 1.0 / 131_072.0;
/// The same where a value is rounded to bf16 on the way, and may come out as its neighbour: 2^-8 of it.
pub const NARROWED: f32 = 1.0 / 128.0;

/// Bytes of a bench's arena.
const ARENA: usize = 96 << 20;

/// A backend under test with a bump allocator over its arena.
pub struct Bench<B: Backend> {
    /// The backend.
    pub backend: B,
    next: usize,
}

impl<B: Backend> Bench<B> {
    /// `make` gives a backend with an arena of so many bytes.
    pub fn new(make: &impl Fn(usize) -> B) -> Self {
        Bench { backend: make(ARENA), next: 0 }
    }

    /// The next free buffer.
    pub fn buffer(&mut self, bytes: usize) -> Buffer {
        let buffer = Buffer { offset: self.next, bytes };
        self.next = (self.next + bytes).next_multiple_of(64);
        assert!(self.next <= ARENA, "the case is too large: behind the arena lies the backend's scratch");
        buffer
    }

    /// Rows with these values.
    pub fn rows(&mut self, rows: usize, columns: usize, values: &[f32]) -> Rows {
        let rows = Rows::new(self.buffer(Rows::bytes(rows, columns)), rows, columns);
        self.backend.write(rows.buffer, values).unwrap();
        rows
    }

    /// A vector with these values.
    pub fn vector(&mut self, values: &[f32]) -> Vector {
        let rows = self.rows(1, values.len(), values);
        Vector { buffer: rows.buffer, len: values.len() }
    }

    /// Rows full of a value no op should leave behind.
    pub fn output(&mut self, rows: usize, columns: usize) -> Rows {
        self.rows(rows, columns, &vec![f32::NAN; rows * columns])
    }

    /// The same rows, narrow.
    pub fn narrow(&mut self, rows: Rows) -> Rows {
        let out = self.output(rows.rows, rows.columns).narrow();
        self.backend.copy(rows, out).unwrap();
        out
    }

    /// The values of rows.
    pub fn read(&mut self, rows: Rows) -> Vec<f32> {
        let mut values = vec![0.0; rows.rows * rows.columns];
        self.backend.read(rows, &mut values).unwrap();
        values
    }

    /// Fails where rows are not what products must give: these bits or, of a backend that sums in an
    /// order of its own, values off by no more than `allowed` of the largest.
    pub fn assert_products(&mut self, rows: Rows, want: &[f32], allowed: f32, what: &str) {
        let got = self.read(rows);
        if self.backend.exact_products() {
            return assert_same_bits(&got, want, what);
        }
        let allowed = if rows.narrow { NARROWED.max(allowed) } else { allowed };
        let largest = want.iter().fold(f32::MIN_POSITIVE, |largest, x| largest.max(x.abs()));
        assert_eq!(got.len(), want.len(), "{what}: length");
        for (i, (got, want)) in got.iter().zip(want).enumerate() {
            let off = (got - want).abs() / largest;
            assert!(off <= allowed, "{what}: element {i} is {got:e}, expected {want:e}: off by {off:.1e}");
        }
    }

    /// A weight of these values in a format, and the values it then holds (without an NVFP4
    /// tensor's own scale, which is given apart).
    pub fn weight(
        &mut self,
        format: WeightFormat,
        rows: usize,
        columns: usize,
        values: &[f32],
    ) -> (Weight, Vec<f32>, f32) {
        let weight = Weight { buffer: self.buffer(format.bytes(rows, columns)), rows, columns, format };
        let blocks = columns.div_ceil(16);
        let mut held = values.to_vec();
        let mut scale = 1.0;
        match format {
            WeightFormat::F32 | WeightFormat::Bf16 => {
                if format == WeightFormat::Bf16 {
                    held.iter_mut().for_each(|x| *x = bf16::round(*x));
                }
                self.write_weight(&weight, WeightRows::Values(values));
            }
            WeightFormat::Int8 => {
                let (mut codes, mut scales) = (vec![0; rows * columns], vec![0; rows * blocks]);
                for row in 0..rows {
                    let codes = &mut codes[row * columns..][..columns];
                    let scales = &mut scales[row * blocks..][..blocks];
                    let range = row * columns..(row + 1) * columns;
                    int8_block::encode_row(&values[range.clone()], codes, scales);
                    int8_block::decode_row(codes, scales, &mut held[range]);
                }
                self.write_weight(&weight, WeightRows::Int8 { codes: &codes, scales: &scales });
            }
            WeightFormat::Nvfp4 => {
                let amax = values.iter().fold(0.0f32, |a, x| a.max(x.abs()));
                scale = nvfp4::tensor_scale(amax, nvfp4::Scales::Nearest);
                let half = columns.div_ceil(2);
                let (mut codes, mut scales) = (vec![0; rows * half], vec![0; rows * blocks]);
                for row in 0..rows {
                    let codes = &mut codes[row * half..][..half];
                    let scales = &mut scales[row * blocks..][..blocks];
                    let range = row * columns..(row + 1) * columns;
                    let nearest = nvfp4::Scales::Nearest;
                    nvfp4::encode_row(&values[range.clone()], scale, nearest, codes, scales);
                    nvfp4::decode_row(codes, scales, 1.0, &mut held[range]);
                }
                self.write_weight(
                    &weight,
                    WeightRows::Nvfp4 { codes: &codes, scales: &scales, global: scale },
                );
            }
        }
        (weight, held, scale)
    }

    fn write_weight(&mut self, weight: &Weight, rows: WeightRows<'_>) {
        self.backend.write_weight(weight, 0, rows).unwrap();
    }
}

/// Numbers in -1..1 that differ by seed, without any pattern a kernel could hide behind.
pub fn numbers(seed: u32, count: usize) -> Vec<f32> {
    (0..count as u32)
        .map(|i| {
            let mut u = i.wrapping_mul(2_654_435_761).wrapping_add(seed.wrapping_mul(40_503) ^ 0x9e37_79b9);
            u ^= u >> 16;
            u = u.wrapping_mul(2_246_822_519);
            u ^= u >> 13;
            (u >> 8) as f32 / 8_388_608.0 - 1.0
        })
        .collect()
}

/// The values as narrow rows hold them.
pub fn rounded_rows(values: &[f32]) -> Vec<f32> {
    values.iter().map(|x| bf16::round(*x)).collect()
}

/// Fails at the first value whose bits differ.
pub fn assert_same_bits(got: &[f32], want: &[f32], what: &str) {
    assert_eq!(got.len(), want.len(), "{what}: length");
    for (i, (g, w)) in got.iter().zip(want).enumerate() {
        assert!(
            g.to_bits() == w.to_bits(),
            "{what}: element {i} is {g:e} ({:08x}), expected {w:e} ({:08x})",
            g.to_bits(),
            w.to_bits()
        );
    }
}
