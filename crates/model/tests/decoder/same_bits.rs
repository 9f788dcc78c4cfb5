//! One arithmetic: the logits' bits depend on the model, the formats and the tokens, and on
//! nothing else: not on kernels, threads, chunks, or how the cache came to be.

use crate::common::{Run, Toy, all_logits, kernel_sets};
use halfbyte_cpu::{Cpu, Isa};
use halfbyte_model::Decoder;
use halfbyte_ops::CacheFormat;
use halfbyte_ops::testing::assert_same_bits;
use halfbyte_plan::WeightChoice;
use serde_json::{Value, json};

/// Two whole tiles of keys and a part.
const TOKENS: usize = 70;
/// Where a turn ends: inside a tile, inside a chunk.
const TURN: usize = 29;

const WEIGHTS: [WeightChoice; 4] =
    [WeightChoice::F32, WeightChoice::Bf16, WeightChoice::Int8, WeightChoice::Nvfp4];
const CACHES: [CacheFormat; 3] = [CacheFormat::F32, CacheFormat::Bf16, CacheFormat::Int8];

#[test]
fn qwen3_has_the_same_bits_in_every_format() {
    let config = json!({
        "model_type": "qwen3", "vocab_size": 61, "hidden_size": 48, "intermediate_size": 68,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 24,
        "tie_word_embeddings": true, "rope_theta": 10000.0,
        "use_sliding_window": true, "sliding_window": 20, "max_window_layers": 1,
    });
    let (toy, sets) = (Toy::new(&config), kernel_sets());
    for weights in WEIGHTS {
        for cache in CACHES {
            check(&toy, &sets, weights, cache);
        }
    }
}

#[test]
fn qwen2_has_the_same_bits() {
    let config = json!({
        "model_type": "qwen2", "vocab_size": 64, "hidden_size": 48, "intermediate_size": 36,
        "num_hidden_layers": 3, "num_attention_heads": 3, "num_key_value_heads": 3,
        "rope_theta": 1000000.0,
    });
    check_pairs(&config);
}

#[test]
fn llama_has_the_same_bits() {
    let config = json!({
        "model_type": "llama", "vocab_size": 70, "hidden_size": 72, "intermediate_size": 100,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 40,
        "attention_bias": true, "mlp_bias": true,
        "rope_parameters": { "rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0 },
    });
    check_pairs(&config);
}

/// Each weight format and each cache format at least once.
fn check_pairs(config: &Value) {
    let (toy, sets) = (Toy::new(config), kernel_sets());
    for (weights, cache) in WEIGHTS.into_iter().zip(CACHES.into_iter().cycle()) {
        check(&toy, &sets, weights, cache);
    }
}

fn check(toy: &Toy, sets: &[Isa], weights: WeightChoice, cache: CacheFormat) {
    let tokens = tokens(toy, 0);
    let exact = Run::exact(Isa::Scalar, TOKENS);
    let plain = Run { threads: 1, weights, cache, ..exact };
    let want = all_logits(&mut toy.open(plain), &tokens);
    for &isa in sets {
        for (threads, chunk) in [(1, TOKENS), (1, 7), (1, 1), (3, TOKENS), (3, 7), (3, 1)] {
            let run = Run { isa, threads, chunk, logit_rows: chunk.min(3), ..plain };
            let what = format!("{} weights, {} cache, {run:?}", weights.name(), cache.name());
            let mut decoder = toy.open(run);
            same(&all_logits(&mut decoder, &tokens), &want, &what);
            if chunk == 7 {
                check_kept(&mut decoder, toy, &tokens, &want, &what);
                check_restored(decoder, &mut toy.open(run), &tokens, &want, &what);
            }
        }
    }
}

/// A reply taken back, another in its place; then everything from the start on the used cache.
fn check_kept(decoder: &mut Decoder<Cpu>, toy: &Toy, tokens: &[u32], want: &[Vec<f32>], what: &str) {
    decoder.keep(TURN);
    all_logits(decoder, &self::tokens(toy, 1)[..TURN]);
    decoder.keep(TURN);
    same(&all_logits(decoder, &tokens[TURN..]), &want[TURN..], &format!("kept: {what}"));
    decoder.keep(0);
    same(&all_logits(decoder, tokens), want, &format!("rebuilt: {what}"));
}

/// A cache saved and put into a fresh decoder.
fn check_restored(
    mut from: Decoder<Cpu>,
    to: &mut Decoder<Cpu>,
    tokens: &[u32],
    want: &[Vec<f32>],
    what: &str,
) {
    let mut bytes = vec![0; from.cache_bytes()];
    for layer in 0..from.architecture().layers {
        from.read_cache(layer, &mut bytes).unwrap();
        to.write_cache(layer, &bytes).unwrap();
    }
    to.restore_tokens(&tokens[..TURN]).unwrap();
    same(&all_logits(to, &tokens[TURN..]), &want[TURN..], &format!("restored: {what}"));
}

fn same(got: &[Vec<f32>], want: &[Vec<f32>], what: &str) {
    assert_eq!(got.len(), want.len(), "{what}: rows");
    for (position, (got, want)) in got.iter().zip(want).enumerate() {
        assert!(want.iter().all(|x| x.is_finite()), "{what}: row {position} is not finite");
        assert_same_bits(got, want, &format!("{what}, row {position}"));
    }
}

fn tokens(toy: &Toy, seed: usize) -> Vec<u32> {
    let vocabulary = toy.architecture().vocab_size;
    (0..TOKENS).map(|i| ((i * i + 7 * i + 31 * seed) % vocabulary) as u32).collect()
}

/// The narrow formats lose what their steps lose, not more: a bound for gross mistakes that the
/// comparison of bits, all of one arithmetic, cannot see.
#[test]
fn narrow_formats_stay_near_f32() {
    let config = json!({
        "model_type": "llama", "vocab_size": 97, "hidden_size": 128, "intermediate_size": 256,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    });
    let toy = Toy::new(&config);
    let tokens = tokens(&toy, 0);
    let exact = Run::exact(Isa::detect(), TOKENS);
    let want = all_logits(&mut toy.open(exact), &tokens).concat();
    let bounds = [(WeightChoice::Bf16, 0.015), (WeightChoice::Int8, 0.05), (WeightChoice::Nvfp4, 0.4)];
    let error = |run: Run| relative(&all_logits(&mut toy.open(run), &tokens).concat(), &want);
    for (weights, bound) in bounds {
        let error = error(Run { weights, ..exact });
        eprintln!("{} weights: relative error {error:.1e}", weights.name());
        assert!(error < bound, "{} weights: relative error {error}", weights.name());
    }
    for (cache, bound) in [(CacheFormat::Bf16, 0.005), (CacheFormat::Int8, 0.02)] {
        let error = error(Run { cache, ..exact });
        eprintln!("{} cache: relative error {error:.1e}", cache.name());
        assert!(error < bound, "{} cache: relative error {error}", cache.name());
    }
}

fn relative(got: &[f32], want: &[f32]) -> f64 {
    let square = |x: f32| f64::from(x) * f64::from(x);
    let difference: f64 = got.iter().zip(want).map(|(g, w)| square(g - w)).sum();
    (difference / want.iter().map(|&w| square(w)).sum::<f64>()).sqrt()
}
