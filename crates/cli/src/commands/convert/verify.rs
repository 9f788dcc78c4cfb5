//! Reads the written model back: rows must decode to what was intended, text to the same ids.

use halfbyte_checkpoint::{Architecture, Checkpoint};

use super::stream::{Job, Written};
use crate::failure::{Code, Failure, Result};
use crate::{language, rows};

/// Tensors looked at, spread over the model.
const TENSORS: usize = 16;
/// Spaces, digits, scripts, an emoji, a combining mark and line ends: what tokenizers trip over.
const SAMPLE: &str = "Hello,  world! 12345 it's\n\n\tpaïn 日本語 тест 😀 e\u{301} <|im_end|> a_b = c[0];\r\n";

/// What was looked at.
pub(super) struct Checked {
    pub(super) tensors: usize,
    pub(super) tokenizer: bool,
}

/// Fails when anything looked at differs from what was meant.
pub(super) fn verify(
    source: &Checkpoint,
    written: &Checkpoint,
    jobs: &[Job<'_>],
    results: &[Written],
) -> Result<Checked> {
    if let Some(difference) = difference(&source.architecture, &written.architecture) {
        return Err(wrong(written, &format!("config: {difference}")));
    }
    let step = jobs.len().div_ceil(TENSORS).max(1);
    // The last tensor is the head or the last norm: worth a look whatever the step.
    let last = jobs.len().saturating_sub(1);
    let mut tensors = 0;
    for number in (0..last).step_by(step).chain([last]) {
        check_tensor(source, written, &jobs[number], &results[number])?;
        tensors += 1;
    }
    Ok(Checked { tensors, tokenizer: check_tokenizer(source, written)? })
}

fn wrong(written: &Checkpoint, what: &str) -> Failure {
    Failure::new(
        Code::Failed,
        format!(
            "{}: {what}\nthe written model does not read back as intended\nthis is a mistake in halfbyte: please report it, and do not use this file",
            written.path.display()
        ),
    )
}

/// First, middle and last row.
fn check_tensor(source: &Checkpoint, written: &Checkpoint, job: &Job<'_>, result: &Written) -> Result<()> {
    let name = job.declared.name;
    let Some(tensor) = written.find(name) else {
        return Err(wrong(written, &format!("tensor {name} is missing")));
    };
    let rows = tensor.rows();
    for row in [0, rows / 2, rows - 1] {
        let mut intended = rows::read(source, job.source, row..row + 1)?;
        if let Some(coding) = result.coding
            && let Some(encoded) = coding.encode(&intended)
        {
            intended = coding.decode(&encoded, intended.len());
        }
        let got = rows::read(written, tensor, row..row + 1)?;
        let same = |(a, b): (&f32, &f32)| a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan()) || a == b;
        if intended.len() != got.len() || !intended.iter().zip(&got).all(same) {
            return Err(wrong(written, &format!("tensor {name}, row {row}")));
        }
    }
    Ok(())
}

/// Names what differs between two architectures in a way that changes what is computed.
fn difference(a: &Architecture, b: &Architecture) -> Option<&'static str> {
    let shape = |a: &Architecture| {
        (a.vocab_size, a.hidden_size, a.intermediate_size, a.layers, a.heads, a.kv_heads, a.head_dim)
    };
    let switches = |a: &Architecture| (a.qk_norm, a.qkv_bias, a.output_bias, a.mlp_bias);
    let rope = |a: &Architecture| a.rope.inverse_frequencies(a.head_dim);
    let ((a_pairs, a_factor), (b_pairs, b_factor)) = (rope(a), rope(b));
    // GGUF keeps rope settings as f32.
    let near = |a: f64, b: f64| (a - b).abs() <= 1e-5 * a.abs().max(b.abs());
    let same_rope = a_pairs.len() == b_pairs.len()
        && a_pairs.iter().zip(&b_pairs).all(|(a, b)| near(*a, *b))
        && near(a_factor.into(), b_factor.into());
    match () {
        _ if shape(a) != shape(b) => Some("the sizes differ"),
        _ if switches(a) != switches(b) => Some("norms or biases differ"),
        _ if a.norm_eps != b.norm_eps => Some("the epsilon of the norms differs"),
        _ if a.sliding_window != b.sliding_window => Some("the attention windows differ"),
        _ if !same_rope => Some("the rotary frequencies differ"),
        _ => None,
    }
}

/// Whether a checkpoint brings a tokenizer.
pub(crate) fn has_tokenizer(checkpoint: &Checkpoint) -> bool {
    let tokens =
        |metadata: &halfbyte_checkpoint::GgufMetadata| metadata.get("tokenizer.ggml.tokens").is_some();
    checkpoint.text.tokenizer_json.is_some() || checkpoint.text.gguf.as_ref().is_some_and(tokens)
}

fn check_tokenizer(source: &Checkpoint, written: &Checkpoint) -> Result<bool> {
    if !has_tokenizer(source) {
        return Ok(false);
    }
    let intended = language::tokenizer(source)?.encode(SAMPLE)?;
    match language::tokenizer(written)?.encode(SAMPLE)? == intended {
        true => Ok(true),
        false => Err(wrong(written, "tokenizer: a sample text gives other ids")),
    }
}
