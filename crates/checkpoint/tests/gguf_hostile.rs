//! GGUF files that must be refused, by file and place: rows 11 to 22 of the hostile set.

mod gguf_toy;

use std::path::PathBuf;
use std::sync::OnceLock;

use gguf_toy::*;
use halfbyte_checkpoint::{Checkpoint, Encoding, Family, Format, create};

/// A good file, taken apart.
fn toy() -> Pieces {
    static TOY: OnceLock<Pieces> = OnceLock::new();
    let toy = TOY.get_or_init(|| {
        let path = scratch("hostile-origin.gguf");
        write(&path, output(architecture(Family::Llama), Encoding::F32));
        Pieces::of(&std::fs::read(path).expect("read"))
    });
    toy.clone()
}

fn place(name: &str, bytes: &[u8]) -> PathBuf {
    let path = scratch(name);
    std::fs::write(&path, bytes).expect("write");
    path
}

/// The message for a bad file; it must name the file and every one of `words`.
fn refused(name: &str, bytes: &[u8], words: &[&str]) {
    let path = place(name, bytes);
    let error = Checkpoint::open(&path).expect_err(name).to_string();
    for word in words.iter().chain(&[name]) {
        assert!(error.contains(word), "{name}: no \"{word}\" in: {error}");
    }
}

/// Changes the toy and expects a refusal.
fn changed(name: &str, words: &[&str], change: impl FnOnce(&mut Pieces)) {
    let mut pieces = toy();
    change(&mut pieces);
    refused(name, &pieces.join(), words);
}

fn array(kind: u32, count: u64, items: &[u8]) -> Vec<u8> {
    typed(9, &[&kind.to_le_bytes()[..], &count.to_le_bytes(), items].concat())
}

#[test]
fn the_unchanged_toy_opens() {
    let path = place("unchanged.gguf", &toy().join());
    Checkpoint::open(&path).expect("open");
}

#[test]
fn row_11_magic_version_and_byte_order() {
    changed("magic.gguf", &["GGJT", "GGUF"], |pieces| pieces.magic = *b"GGJT");
    changed("version-1.gguf", &["version 1", "again"], |pieces| pieces.version = 1);
    changed("version-4.gguf", &["version 4"], |pieces| pieces.version = 4);
    changed("big-endian.gguf", &["big-endian"], |pieces| pieces.version = 3u32.swap_bytes());
    refused("empty.gguf", b"", &["header"]);
    refused("short.gguf", b"GGUF\x03\0\0", &["header", "offset"]);
}

#[test]
fn row_12_counts_of_2_to_the_63() {
    for count in [1 << 63, u64::MAX, 1 << 40] {
        changed("tensors.gguf", &["header", "tensors"], |pieces| pieces.tensor_count = count);
        changed("entries.gguf", &["header", "metadata entries"], |pieces| {
            pieces.entry_count = count;
        });
    }
    changed("one-more.gguf", &["offset"], |pieces| pieces.tensor_count += 1);
}

#[test]
fn row_13_strings_longer_than_the_file() {
    for length in [u64::MAX, 1 << 62, 1 << 30] {
        changed("value.gguf", &["metadata general.name", "bytes"], |pieces| {
            pieces.set("general.name", typed(8, &length.to_le_bytes()));
        });
        let mut bytes = toy().join();
        bytes[24..32].copy_from_slice(&length.to_le_bytes());
        refused("key.gguf", &bytes, &["metadata entry 0", "bytes"]);
    }
    changed("not-text.gguf", &["metadata general.name", "UTF-8"], |pieces| {
        pieces.set("general.name", typed(8, &[1, 0, 0, 0, 0, 0, 0, 0, 0xFF]));
    });
}

#[test]
fn row_14_arrays_longer_than_the_file() {
    for kind in [0, 6, 7, 8, 12] {
        for count in [u64::MAX, 1 << 61, 1 << 32] {
            changed("array.gguf", &["metadata general.tags", "bytes follow"], |pieces| {
                pieces.set("general.tags", array(kind, count, &[]));
            });
        }
    }
}

#[test]
fn row_15_nested_arrays_and_unknown_types() {
    changed("nested.gguf", &["metadata general.tags", "arrays inside arrays"], |pieces| {
        pieces.set("general.tags", array(9, 1, &array(0, 1, &[7])));
    });
    changed("unknown.gguf", &["metadata general.tags", "type 13"], |pieces| {
        pieces.set("general.tags", typed(13, &[0; 8]));
    });
    changed("boolean.gguf", &["metadata general.tags", "not 2"], |pieces| {
        pieces.set("general.tags", typed(7, &[2]));
    });
}

#[test]
fn row_16_alignments() {
    for alignment in [0u32, 3, 48, 1 << 31] {
        changed("alignment.gguf", &["metadata general.alignment", "power of two"], |pieces| {
            pieces.set("general.alignment", typed(4, &alignment.to_le_bytes()));
        });
    }
    changed("alignment-text.gguf", &["metadata general.alignment"], |pieces| {
        pieces.set("general.alignment", typed(8, &string("32")));
    });
}

#[test]
fn row_17_zero_dimensions() {
    changed("zero.gguf", &["tensor token_embd.weight", "zero"], |pieces| {
        pieces.tensors[0].dimensions[1] = 0;
    });
    changed("none.gguf", &["tensor token_embd.weight", "0 dimensions"], |pieces| {
        pieces.tensors[0].dimensions.clear();
    });
    changed("five.gguf", &["tensor token_embd.weight", "5 dimensions"], |pieces| {
        pieces.tensors[0].dimensions = vec![1; 5];
    });
}

#[test]
fn row_18_sizes_that_overflow() {
    for dimensions in [[u64::MAX, 2], [1 << 32, 1 << 32], [1 << 62, 1], [1 << 60, 16]] {
        changed("overflow.gguf", &["tensor token_embd.weight", "multiply"], |pieces| {
            pieces.tensors[0].dimensions = dimensions.to_vec();
        });
    }
    changed("blocks.gguf", &["tensor token_embd.weight", "Q4_K", "256"], |pieces| {
        pieces.tensors[0].kind = 12;
    });
}

#[test]
fn row_19_unknown_tensor_types() {
    for (kind, words) in [(16, "IQ2_XXS"), (5, "type 5"), (24, "I8"), (u32::MAX, "type 4294967295")] {
        changed("type.gguf", &["tensor token_embd.weight", words], |pieces| {
            pieces.tensors[0].kind = kind;
        });
    }
}

#[test]
fn row_20_offsets_outside_misaligned_or_shared() {
    for offset in [1 << 20, 1 << 63, u64::MAX - 31] {
        changed("outside.gguf", &["tensor blk.0.attn_q.weight", "bytes"], |pieces| {
            pieces.tensors[2].offset = offset;
        });
    }
    changed("misaligned.gguf", &["tensor blk.0.attn_q.weight", "multiple of 32"], |pieces| {
        pieces.tensors[2].offset += 1;
    });
    changed("aliased.gguf", &["tensor blk.0.attn_q.weight", "over the bytes"], |pieces| {
        pieces.tensors[2].offset = pieces.tensors[0].offset + 32;
    });
    changed("truncated.gguf", &["output_norm.weight", "incomplete"], |pieces| {
        pieces.data.truncate(pieces.data.len() - 4);
    });
}

#[test]
fn row_21_vocabulary_lists_of_the_wrong_type_or_length() {
    changed("scores.gguf", &["metadata tokenizer.ggml.scores", "F32"], |pieces| {
        pieces.set("tokenizer.ggml.scores", array(0, 40, &[0; 40]));
    });
    changed("few.gguf", &["metadata tokenizer.ggml.scores", "1 entries for 40"], |pieces| {
        pieces.set("tokenizer.ggml.scores", array(6, 1, &[0; 4]));
    });
    changed("tokens.gguf", &["metadata tokenizer.ggml.tokens", "strings"], |pieces| {
        pieces.set("tokenizer.ggml.tokens", typed(4, &[0; 4]));
    });
    changed("id.gguf", &["eos_token_id", "4096"], |pieces| {
        pieces.set("tokenizer.ggml.eos_token_id", typed(4, &4096u32.to_le_bytes()));
    });
}

#[test]
fn row_22_duplicates() {
    changed("tensor-twice.gguf", &["tensor token_embd.weight", "twice"], |pieces| {
        pieces.tensors[1] = pieces.tensors[0].clone();
    });
    changed("key-twice.gguf", &["metadata general.architecture", "twice"], |pieces| {
        let again = pieces.entries[0].clone();
        pieces.entries.push(again);
        pieces.entry_count += 1;
    });
}

#[test]
fn models_that_are_not_ours_are_named() {
    changed("mamba.gguf", &["metadata general.architecture", "mamba", "qwen3"], |pieces| {
        pieces.set("general.architecture", typed(8, &string("mamba")));
    });
    changed("experts.gguf", &["tensor blk.0.ffn_gate_inp.weight", "dense"], |pieces| {
        pieces.tensors[2].name = "blk.0.ffn_gate_inp.weight".into();
    });
    changed("long-name.gguf", &["64"], |pieces| pieces.tensors[2].name = "x".repeat(64));
    changed("no-layers.gguf", &["metadata llama.block_count", "missing"], |pieces| {
        pieces.entries.retain(|(key, _)| key != "llama.block_count");
        pieces.entry_count -= 1;
    });
    for (key, value) in [("llama.block_count", 1u32 << 31), ("llama.attention.head_count", 0)] {
        changed("size.gguf", &[], |pieces| pieces.set(key, typed(4, &value.to_le_bytes())));
    }
    for number in [f32::NAN, f32::INFINITY, -1.0] {
        for key in ["llama.rope.freq_base", "llama.attention.layer_norm_rms_epsilon"] {
            changed("number.gguf", &[], |pieces| pieces.set(key, typed(6, &number.to_le_bytes())));
        }
    }
    changed("longrope.gguf", &["llama.rope.scaling.type", "longrope"], |pieces| {
        pieces.set("llama.rope.scaling.type", typed(8, &string("longrope")));
    });
    changed("vocabulary-only.gguf", &["token_embd.weight", "missing"], |pieces| {
        pieces.tensors.clear();
        pieces.tensor_count = 0;
    });
}

#[test]
fn tensor_scales_that_are_no_scales_are_refused() {
    let path = scratch("scale-origin.gguf");
    write(&path, output(architecture(Family::Qwen2), Encoding::Nvfp4));
    let pieces = Pieces::of(&std::fs::read(&path).expect("read"));
    let scale = pieces.tensors.iter().find(|tensor| tensor.name == "blk.0.attn_q.scale");
    let at = scale.expect("scale").offset as usize;
    for bad in [0.0, -1.0, f32::NAN, f32::INFINITY] {
        let mut pieces = pieces.clone();
        pieces.data[at..at + 4].copy_from_slice(&bad.to_le_bytes());
        refused("scale.gguf", &pieces.join(), &["blk.0.attn_q.scale", "positive"]);
    }
    let mut output = output(architecture(Family::Qwen2), Encoding::Nvfp4);
    output.tensors.truncate(40);
    let index = output.tensors.iter().position(|tensor| tensor.encoding == Encoding::Nvfp4);
    let mut sink = create(&path, Format::Gguf, output).expect("create");
    let index = index.expect("an NVFP4 tensor");
    assert!(sink.set_global(index, f32::NAN).is_err());
    assert!(sink.write_nvfp4(index, 0, &[0; 32], &[0x7F; 4]).is_err());
    assert!(sink.write_nvfp4(index, 0, &[0; 32], &[0x38; 3]).is_err());
    assert!(sink.write_rows(index, 0, &[0.0; 64]).is_err());
    assert!(sink.write_rows(usize::MAX, 0, &[0.0; 64]).is_err());
    assert!(sink.write_rows(0, usize::MAX, &[0.0; 64]).is_err());
}
