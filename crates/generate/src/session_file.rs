//! The bytes of a session file, little-endian:
//!
//! | what | bytes |
//! |---|---|
//! | magic `HBSESSN1` | 8 |
//! | lengths: binding, note, ids, layers, bytes of a layer's cache | 5 x 8 |
//! | binding (`key=value` lines) and note (JSON) | as above |
//! | ids of the tokens in the cache | 4 each |
//! | per layer a bit for every 4096-byte block that is not zero, then those blocks | |
//! | checksum of all before | 8 |
//!
//! A cache is planned for the whole context and mostly empty; its zero blocks cost a bit each.

use std::fs::File;
use std::io::{BufReader, Read, Seek, SeekFrom};
use std::path::Path;

use halfbyte_checkpoint::Error;
use halfbyte_checkpoint::atomic::AtomicFile;

const MAGIC: [u8; 8] = *b"HBSESSN1";
const BLOCK: usize = 4096;
/// Longest binding and note that are read.
const LONGEST_BINDING: u64 = 4096;
const LONGEST_NOTE: u64 = 64 << 20;
const REMEDY: &str = "the file is damaged or no session; start again without it";

/// Lengths that a file and a decoder must agree on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sizes {
    pub(crate) layers: usize,
    pub(crate) layer_bytes: usize,
    pub(crate) context: usize,
}

/// Word-wise FNV-1a with a rotation; does not depend on how the bytes are cut.
struct Checksum {
    state: u64,
    word: u64,
    filled: u32,
}

impl Checksum {
    fn new() -> Self {
        Checksum { state: 0xcbf2_9ce4_8422_2325, word: 0, filled: 0 }
    }

    fn take(&mut self, word: u64) {
        self.state = (self.state ^ word).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(29);
    }

    fn add(&mut self, mut bytes: &[u8]) {
        while self.filled > 0 || bytes.len() < 8 {
            let Some((&byte, rest)) = bytes.split_first() else {
                return;
            };
            self.word |= u64::from(byte) << (8 * self.filled);
            self.filled = (self.filled + 1) % 8;
            bytes = rest;
            if self.filled == 0 {
                let word = std::mem::take(&mut self.word);
                self.take(word);
            }
        }
        let (words, rest) = bytes.as_chunks::<8>();
        for word in words {
            self.take(u64::from_le_bytes(*word));
        }
        if !rest.is_empty() {
            self.add(rest);
        }
    }

    fn finish(mut self) -> u64 {
        let (word, filled) = (self.word, self.filled);
        self.take(word);
        self.take(u64::from(filled));
        self.state
    }
}

/// Writes a session; nothing is visible under its name before `finish`.
pub(crate) struct Writer {
    file: AtomicFile,
    at: u64,
    checksum: Checksum,
}

impl Writer {
    pub(crate) fn create(
        path: &Path,
        binding: &str,
        note: &[u8],
        ids: &[u32],
        sizes: Sizes,
    ) -> Result<Self, Error> {
        let mut writer = Writer { file: AtomicFile::create(path)?, at: 0, checksum: Checksum::new() };
        let mut head = MAGIC.to_vec();
        for length in [binding.len(), note.len(), ids.len(), sizes.layers, sizes.layer_bytes] {
            head.extend_from_slice(&(length as u64).to_le_bytes());
        }
        head.extend_from_slice(binding.as_bytes());
        head.extend_from_slice(note);
        head.extend(ids.iter().flat_map(|id| id.to_le_bytes()));
        writer.put(&head)?;
        Ok(writer)
    }

    fn put(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.file.write_at(self.at, bytes)?;
        self.checksum.add(bytes);
        self.at += bytes.len() as u64;
        Ok(())
    }

    pub(crate) fn layer(&mut self, cache: &[u8]) -> Result<(), Error> {
        let mut present = vec![0u8; cache.len().div_ceil(BLOCK).div_ceil(8)];
        let mut blocks = Vec::new();
        for (index, block) in cache.chunks(BLOCK).enumerate() {
            if block.iter().any(|&byte| byte != 0) {
                present[index / 8] |= 1 << (index % 8);
                blocks.extend_from_slice(block);
            }
        }
        self.put(&present)?;
        self.put(&blocks)
    }

    pub(crate) fn finish(self) -> Result<(), Error> {
        self.file.write_at(self.at, &self.checksum.finish().to_le_bytes())?;
        self.file.finish()
    }
}

/// Reads a session whose checksum holds.
pub(crate) struct Reader<'a> {
    path: &'a Path,
    file: BufReader<File>,
    left: u64,
    layer_bytes: usize,
    pub(crate) binding: String,
    pub(crate) note: Vec<u8>,
    pub(crate) ids: Vec<u32>,
}

impl<'a> Reader<'a> {
    /// Checks the whole file before any of it is used.
    pub(crate) fn open(path: &'a Path) -> Result<(Self, [u64; 2]), Error> {
        let io = |error| Error::io(path, "read", error);
        let file = File::open(path).map_err(|error| Error::io(path, "open", error))?;
        let length = file.metadata().map_err(io)?.len();
        let mut reader = Reader {
            path,
            file: BufReader::with_capacity(1 << 20, file),
            left: length,
            layer_bytes: 0,
            binding: String::new(),
            note: Vec::new(),
            ids: Vec::new(),
        };
        let magic: [u8; 8] = reader.array("magic")?;
        if magic != MAGIC {
            return Err(
                reader.bad("magic", format!("this is no session: it does not begin with {}", shown(&MAGIC)))
            );
        }
        reader.verify(length)?;
        let mut lengths = [0u64; 5];
        for length in &mut lengths {
            *length = u64::from_le_bytes(reader.array("lengths")?);
        }
        let [binding, note, ids, layers, layer_bytes] = lengths;
        let binding = reader.take("binding", binding, LONGEST_BINDING)?;
        reader.binding = String::from_utf8_lossy(&binding).into_owned();
        reader.note = reader.take("note", note, LONGEST_NOTE)?;
        let ids = reader.take("ids", ids.saturating_mul(4), u64::MAX)?;
        reader.ids = ids.as_chunks::<4>().0.iter().map(|id| u32::from_le_bytes(*id)).collect();
        Ok((reader, [layers, layer_bytes]))
    }

    /// Refuses a file made for a cache of other sizes.
    pub(crate) fn expect(&mut self, found: [u64; 2], sizes: Sizes) -> Result<(), Error> {
        let wanted = [sizes.layers as u64, sizes.layer_bytes as u64];
        if found != wanted {
            let [[layers, bytes], [own_layers, own_bytes]] = [found, wanted];
            let problem = format!(
                "holds {layers} layers of {bytes} bytes, this model's cache is {own_layers} of {own_bytes}"
            );
            return Err(self.bad("lengths", problem));
        }
        if self.ids.len() > sizes.context {
            let problem = format!("{} tokens, the context holds {}", self.ids.len(), sizes.context);
            return Err(self.bad("ids", problem));
        }
        self.layer_bytes = sizes.layer_bytes;
        Ok(())
    }

    /// One layer's cache, all of it.
    pub(crate) fn layer(&mut self, index: usize, cache: &mut [u8]) -> Result<(), Error> {
        let place = format!("cache of layer {index}");
        let bits = (self.layer_bytes.div_ceil(BLOCK).div_ceil(8)) as u64;
        let present = self.take(&place, bits, u64::MAX)?;
        for (block, bytes) in cache.chunks_mut(BLOCK).enumerate() {
            match present[block / 8] >> (block % 8) & 1 {
                0 => bytes.fill(0),
                _ => self.fill(&place, bytes)?,
            }
        }
        Ok(())
    }

    /// After the last layer only the checksum is left.
    pub(crate) fn finish(&self) -> Result<(), Error> {
        match self.left {
            8 => Ok(()),
            left => Err(self.bad("end", format!("{left} bytes are left where 8 should be"))),
        }
    }

    pub(crate) fn bad(&self, place: impl Into<String>, problem: impl Into<String>) -> Error {
        Error::input(self.path, place, problem, REMEDY)
    }

    /// Reads on to the end, compares the checksum, comes back.
    fn verify(&mut self, length: u64) -> Result<(), Error> {
        let io = |error| Error::io(self.path, "read", error);
        let here = self.file.stream_position().map_err(io)?;
        self.file.seek(SeekFrom::Start(0)).map_err(io)?;
        let mut checksum = Checksum::new();
        let mut buffer = vec![0; 1 << 20];
        let mut left = length.saturating_sub(8);
        while left > 0 {
            let part = &mut buffer[..left.min(1 << 20) as usize];
            self.file.read_exact(part).map_err(io)?;
            checksum.add(part);
            left -= part.len() as u64;
        }
        let mut stored = [0; 8];
        let complete = length >= 16 && self.file.read_exact(&mut stored).is_ok();
        if !complete || u64::from_le_bytes(stored) != checksum.finish() {
            let problem =
                format!("does not fit the {length} bytes of the file: it is cut short or was changed");
            return Err(self.bad("checksum", problem));
        }
        self.file.seek(SeekFrom::Start(here)).map_err(io)?;
        Ok(())
    }

    fn fill(&mut self, place: &str, bytes: &mut [u8]) -> Result<(), Error> {
        let count = bytes.len() as u64;
        if count > self.left {
            let problem = format!("needs {count} bytes, {} are left in the file", self.left);
            return Err(self.bad(place, problem));
        }
        self.file.read_exact(bytes).map_err(|error| Error::io(self.path, "read", error))?;
        self.left -= count;
        Ok(())
    }

    fn array<const N: usize>(&mut self, place: &str) -> Result<[u8; N], Error> {
        let mut bytes = [0; N];
        self.fill(place, &mut bytes)?;
        Ok(bytes)
    }

    /// `count` bytes, if the file has them and they are not too many.
    fn take(&mut self, place: &str, count: u64, most: u64) -> Result<Vec<u8>, Error> {
        if count > most.min(self.left) {
            let problem = format!("says {count} bytes, {} are left in the file", self.left);
            return Err(self.bad(place, problem));
        }
        let mut bytes = vec![0; count as usize];
        self.fill(place, &mut bytes)?;
        Ok(bytes)
    }
}

fn shown(magic: &[u8]) -> String {
    String::from_utf8_lossy(magic).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_does_not_depend_on_how_the_bytes_are_cut() {
        let bytes: Vec<u8> = (0..1000u32).map(|i| (i * 31 % 251) as u8).collect();
        let sum = |size: usize| {
            let mut checksum = Checksum::new();
            bytes.chunks(size).for_each(|part| checksum.add(part));
            checksum.finish()
        };
        let whole = sum(1000);
        for size in [1, 3, 7, 8, 9, 64, 999] {
            assert_eq!(sum(size), whole, "pieces of {size}");
        }
    }

    #[test]
    fn the_checksum_sees_every_bit_and_the_length() {
        let sum = |bytes: &[u8]| {
            let mut checksum = Checksum::new();
            checksum.add(bytes);
            checksum.finish()
        };
        let bytes = [0u8; 21];
        for bit in 0..bytes.len() * 8 {
            let mut changed = bytes;
            changed[bit / 8] ^= 1 << (bit % 8);
            assert_ne!(sum(&changed), sum(&bytes), "bit {bit}");
        }
        assert_ne!(sum(&bytes), sum(&bytes[..20]));
    }
}
