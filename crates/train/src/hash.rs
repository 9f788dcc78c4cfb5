//! A 64-bit checksum of our own: FNV-1a over words with a rotation.
//!
//! Each word passes through a bijection of the state, so a change within one word is always seen.
//! How the bytes are cut into calls does not matter; their number does.

const START: u64 = 0xcbf2_9ce4_8422_2325;
const PRIME: u64 = 0x0000_0100_0000_01b3;

/// Takes bytes, gives a number.
#[derive(Clone, Debug)]
pub struct Hash {
    state: u64,
    bytes: u64,
    /// The bytes of a word that is not full yet.
    word: [u8; 8],
}

impl Default for Hash {
    fn default() -> Self {
        Hash { state: START, bytes: 0, word: [0; 8] }
    }
}

impl Hash {
    /// The checksum of some bytes.
    pub fn of(bytes: &[u8]) -> u64 {
        let mut hash = Hash::default();
        hash.add(bytes);
        hash.finish()
    }

    /// Takes more bytes.
    pub fn add(&mut self, mut bytes: &[u8]) {
        let filled = (self.bytes % 8) as usize;
        self.bytes += bytes.len() as u64;
        if filled > 0 {
            let (now, later) = bytes.split_at(bytes.len().min(8 - filled));
            self.word[filled..filled + now.len()].copy_from_slice(now);
            bytes = later;
            if filled + now.len() < 8 {
                return;
            }
            self.take(self.word);
        }
        let (words, rest) = bytes.as_chunks::<8>();
        words.iter().for_each(|word| self.take(*word));
        self.word = [0; 8];
        self.word[..rest.len()].copy_from_slice(rest);
    }

    fn take(&mut self, word: [u8; 8]) {
        self.state = (self.state ^ u64::from_le_bytes(word)).wrapping_mul(PRIME).rotate_left(29);
    }

    /// Bytes so far.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The checksum of all bytes so far.
    pub fn finish(&self) -> u64 {
        let mut last = self.clone();
        last.take(match self.bytes % 8 {
            0 => [0; 8],
            _ => self.word,
        });
        last.take(self.bytes.to_le_bytes());
        last.state ^ (last.state >> 31)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn known_answers_stay() {
        // From the definition above in another language; checkpoints on disk depend on them.
        assert_eq!(Hash::of(b""), 0x5c19_ea85_c451_77ee);
        assert_eq!(Hash::of(b"halfbyte, half a byte"), 0xff05_9d2f_3527_670c);
    }

    proptest! {
        #[test]
        fn cuts_do_not_matter(bytes: Vec<u8>, cuts in prop::collection::vec(0usize..40, 0..20)) {
            let mut hash = Hash::default();
            let mut rest = &bytes[..];
            for cut in cuts {
                let (now, later) = rest.split_at(cut.min(rest.len()));
                hash.add(now);
                rest = later;
            }
            hash.add(rest);
            prop_assert_eq!(hash.finish(), Hash::of(&bytes));
        }

        #[test]
        fn a_changed_byte_and_a_changed_length_are_seen(
            bytes in prop::collection::vec(any::<u8>(), 1..100), at: prop::sample::Index, flip in 1u8..,
        ) {
            let mut changed = bytes.clone();
            changed[at.index(bytes.len())] ^= flip;
            prop_assert_ne!(Hash::of(&changed), Hash::of(&bytes));
            prop_assert_ne!(Hash::of(&bytes[1..]), Hash::of(&bytes));
            changed.clone_from(&bytes);
            changed.push(0);
            prop_assert_ne!(Hash::of(&changed), Hash::of(&bytes));
        }
    }
}
