//! GGUF headers with changed bytes: any answer is fine, a panic or a hang is not.

mod gguf_toy;

use std::path::PathBuf;
use std::sync::OnceLock;

use gguf_toy::*;
use halfbyte_checkpoint::{Checkpoint, Encoding, Family};
use proptest::prelude::*;

/// A good file, taken apart.
fn toy() -> &'static Pieces {
    static TOY: OnceLock<Pieces> = OnceLock::new();
    TOY.get_or_init(|| {
        let path = scratch("mutation-origin.gguf");
        write(&path, output(architecture(Family::Llama), Encoding::F32));
        Pieces::of(&std::fs::read(path).expect("read"))
    })
}

fn place(name: &str, bytes: &[u8]) -> PathBuf {
    let path = scratch(name);
    std::fs::write(&path, bytes).expect("write");
    path
}

/// Opens, and where that succeeds reads everything: any answer is fine, a panic is not.
fn open_and_read(bytes: &[u8]) {
    let path = place(&format!("mutated-{:?}.gguf", std::thread::current().id()), bytes);
    let Ok(checkpoint) = Checkpoint::open(&path) else {
        return;
    };
    for tensor in &checkpoint.tensors {
        let mut values = vec![0.0; tensor.values()];
        let _ = checkpoint.read_f32(tensor, 0..tensor.rows(), &mut values);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_header_with_changed_bytes_never_panics(
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        let pieces = toy();
        let length = pieces.header().len();
        let mut bytes = pieces.join();
        for (index, value) in changes {
            bytes[index.index(length)] = value;
        }
        open_and_read(&bytes);
    }

    #[test]
    fn a_header_with_a_changed_word_never_panics(
        at in any::<prop::sample::Index>(),
        word in prop_oneof![
            Just(0), Just(1), Just(u64::MAX), Just(1 << 63), Just(1 << 32), Just(u64::MAX >> 1), any::<u64>()
        ],
    ) {
        let pieces = toy();
        let at = at.index(pieces.header().len() - 8);
        let mut bytes = pieces.join();
        bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
        open_and_read(&bytes);
    }

    #[test]
    fn a_file_cut_anywhere_is_refused(at in any::<prop::sample::Index>()) {
        let bytes = toy().join();
        let path = place("cut.gguf", &bytes[..at.index(bytes.len() - 32)]);
        prop_assert!(Checkpoint::open(&path).is_err());
    }
}
