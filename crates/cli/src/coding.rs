//! Values of whole rows -> stored bytes -> values again, and how far apart the two are.

use halfbyte_checkpoint::Encoding;
use halfbyte_formats::nvfp4::{self, Scales};
use halfbyte_formats::{bf16, f16, ggml};

/// Rows as they will be stored.
pub(crate) enum Encoded {
    Bytes(Vec<u8>),
    Nvfp4 { codes: Vec<u8>, block_scales: Vec<u8> },
}

/// How the values of one tensor are stored.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Coding {
    pub(crate) encoding: Encoding,
    /// The tensor scale of NVFP4; 1 for everything else.
    pub(crate) global: f32,
    pub(crate) scales: Scales,
}

impl Coding {
    /// `None` for encodings that are only ever copied.
    pub(crate) fn encode(self, values: &[f32]) -> Option<Encoded> {
        Some(match self.encoding {
            Encoding::F32 => Encoded::Bytes(to_bytes(values, |x| x.to_le_bytes())),
            Encoding::F16 => Encoded::Bytes(to_bytes(values, |x| f16::encode(x).to_le_bytes())),
            Encoding::Bf16 => Encoded::Bytes(to_bytes(values, |x| bf16::encode(x).to_le_bytes())),
            Encoding::Ggml(ggml::Type::Q8_0) => {
                let mut bytes = vec![0; self.encoding.row_bytes(values.len())?];
                ggml::encode_row_q8_0(values, &mut bytes);
                Encoded::Bytes(bytes)
            }
            Encoding::Nvfp4 => {
                let (mut codes, mut block_scales) = (vec![0; values.len() / 2], vec![0; values.len() / 16]);
                nvfp4::encode_row(values, self.global, self.scales, &mut codes, &mut block_scales);
                Encoded::Nvfp4 { codes, block_scales }
            }
            Encoding::Ggml(_) | Encoding::E2m1(_) => return None,
        })
    }

    /// What a reader will see.
    pub(crate) fn decode(self, encoded: &Encoded, values: usize) -> Vec<f32> {
        match (self.encoding, encoded) {
            (_, Encoded::Nvfp4 { codes, block_scales }) => {
                let mut out = vec![0.0; values];
                nvfp4::decode_row(codes, block_scales, self.global, &mut out);
                out
            }
            (Encoding::F16, Encoded::Bytes(bytes)) => {
                bytes.as_chunks().0.iter().map(|&x| f16::decode(u16::from_le_bytes(x))).collect()
            }
            (Encoding::Bf16, Encoded::Bytes(bytes)) => {
                bytes.as_chunks().0.iter().map(|&x| bf16::decode(u16::from_le_bytes(x))).collect()
            }
            (Encoding::Ggml(kind), Encoded::Bytes(bytes)) => {
                let mut out = vec![0.0; values];
                ggml::decode_row(kind, bytes, &mut out);
                out
            }
            (_, Encoded::Bytes(bytes)) => {
                bytes.as_chunks().0.iter().map(|&x| f32::from_le_bytes(x)).collect()
            }
        }
    }
}

fn to_bytes<const N: usize>(values: &[f32], encode: impl Fn(f32) -> [u8; N]) -> Vec<u8> {
    let mut bytes = vec![0; values.len() * N];
    for (value, out) in values.iter().zip(bytes.as_chunks_mut::<N>().0) {
        *out = encode(*value);
    }
    bytes
}

/// Sums of squares, in f64 and run by run, so that they do not depend on the threads.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Deviation {
    pub(crate) error: f64,
    pub(crate) signal: f64,
    pub(crate) largest: f64,
}

impl Deviation {
    pub(crate) fn between(intended: &[f32], got: &[f32]) -> Deviation {
        let mut sums = Deviation::default();
        for (chunk, other) in intended.chunks(256).zip(got.chunks(256)) {
            let (mut error, mut signal, mut largest) = (0.0f64, 0.0f64, 0.0f64);
            for (a, b) in chunk.iter().zip(other) {
                let (a, b) = (f64::from(*a), f64::from(*b));
                // Equal infinities differ by nothing; a NaN anywhere stays visible in the sums.
                let difference = if a == b { 0.0 } else { (a - b).abs() };
                error += difference * difference;
                signal += a * a;
                // `max` would drop a NaN.
                largest = if difference > largest || difference.is_nan() { difference } else { largest };
            }
            sums.add(Deviation { error, signal, largest });
        }
        sums
    }

    pub(crate) fn add(&mut self, other: Deviation) {
        self.error += other.error;
        self.signal += other.signal;
        if other.largest > self.largest || other.largest.is_nan() {
            self.largest = other.largest;
        }
    }

    /// Root of the mean squared error over that of the values; 0 where nothing differs.
    pub(crate) fn relative(&self) -> f64 {
        if self.error == 0.0 { 0.0 } else { (self.error / self.signal).sqrt() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_coding_gives_back_what_it_can_hold() {
        let values: Vec<f32> = (0..64).map(|i| [0.5f32, -3.0, 6.0, 0.0][i % 4]).collect();
        let encodings = [Encoding::F32, Encoding::F16, Encoding::Bf16, Encoding::Nvfp4];
        for encoding in encodings {
            let coding = Coding { encoding, global: 1.0, scales: Scales::Nearest };
            let encoded = coding.encode(&values).unwrap();
            assert_eq!(coding.decode(&encoded, values.len()), values, "{encoding}");
        }
        let coding =
            Coding { encoding: Encoding::Ggml(ggml::Type::Q8_0), global: 1.0, scales: Scales::Nearest };
        let back = coding.decode(&coding.encode(&values).unwrap(), values.len());
        assert!(Deviation::between(&values, &back).relative() < 0.01);
    }

    #[test]
    fn a_nan_is_never_hidden_and_equal_infinities_agree() {
        let infinite = Deviation::between(&[f32::INFINITY, 1.0], &[f32::INFINITY, 1.0]);
        assert_eq!(infinite.relative(), 0.0);
        let mut sums = Deviation::between(&[1.0], &[f32::NAN]);
        sums.add(Deviation::between(&[1.0], &[3.0]));
        assert!(sums.largest.is_nan() && sums.relative().is_nan());
    }
}
