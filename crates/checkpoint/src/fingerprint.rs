//! A cheap number that tells models apart: shapes, lengths, and samples of every file.

use crate::architecture::Architecture;
use crate::error::Error;
use crate::file::SourceFile;
use crate::tensor::Tensor;

/// Samples per file: enough that two fine-tunes of one model do not collide.
pub(crate) const SAMPLES: u64 = 64;

pub(crate) fn fingerprint(
    architecture: &Architecture,
    tensors: &[Tensor],
    files: &[SourceFile],
) -> Result<u64, Error> {
    let mut hash = Fnv::new();
    hash.text(&format!("{architecture:?}"));
    for tensor in tensors {
        let parts = (&tensor.disk_name, &tensor.shape, tensor.encoding, tensor.bytes);
        hash.text(&format!("{parts:?}"));
    }
    for file in files {
        hash.text(&file.len().to_string());
        sample(file, &mut hash)?;
    }
    Ok(hash.0)
}

fn sample(file: &SourceFile, hash: &mut Fnv) -> Result<(), Error> {
    let mut bytes = [0; 4096];
    for index in 0..SAMPLES {
        let offset = file.len() / SAMPLES * index;
        let wanted = (file.len() - offset).min(bytes.len() as u64) as usize;
        file.read_at(offset, &mut bytes[..wanted])?;
        hash.bytes(&bytes[..wanted]);
    }
    Ok(())
}

/// FNV-1a: stable over versions and machines, which the standard library's hasher does not promise.
struct Fnv(u64);

impl Fnv {
    fn new() -> Self {
        Fnv(0xcbf2_9ce4_8422_2325)
    }

    fn bytes(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }

    fn text(&mut self, text: &str) {
        self.bytes(text.as_bytes());
        self.bytes(&[0xff]);
    }
}
