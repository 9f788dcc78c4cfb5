//! What a decoder says when the weights are damaged or the input does not fit.

use crate::common::{Run, Toy, all_logits};
use halfbyte_checkpoint::{LayerTensor, TensorName};
use halfbyte_cpu::Isa;
use halfbyte_model::Error;
use halfbyte_plan::{Stage, WeightChoice};
use serde_json::{Value, json};

const CONTEXT: usize = 20;

fn config() -> Value {
    json!({
        "model_type": "qwen3", "vocab_size": 50, "hidden_size": 48, "intermediate_size": 36,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
        "attention_bias": true, "tie_word_embeddings": false,
    })
}

fn run() -> Run {
    Run { chunk: 6, logit_rows: 4, ..Run::exact(Isa::detect(), CONTEXT) }
}

/// Twelve different tokens.
fn tokens() -> Vec<u32> {
    (0..12).map(|i| i * 4 + 1).collect()
}

/// What `first_bad` says of a model with NaN at `index` of a tensor.
fn found(tensor: TensorName, index: usize, weights: WeightChoice) -> Error {
    let toy = Toy::with(&config(), &|name, values| {
        if name == tensor {
            values[index] = f32::NAN;
        }
    });
    let mut decoder = toy.open(Run { weights, ..run() });
    let logits = all_logits(&mut decoder, &tokens());
    assert!(logits.last().unwrap().iter().any(|x| x.is_nan()), "{tensor}: the NaN does not reach the logits");
    decoder.first_bad().unwrap()
}

#[test]
fn a_nan_weight_is_reported_by_its_layer_and_stage() {
    use LayerTensor as T;
    let layer = |tensor| TensorName::Layer(1, tensor);
    let expected = [
        (layer(T::InputNorm), Some(1), Stage::InputNorm),
        (layer(T::Q), Some(1), Stage::Q),
        (layer(T::QBias), Some(1), Stage::Q),
        (layer(T::K), Some(1), Stage::K),
        (layer(T::V), Some(1), Stage::V),
        (layer(T::QNorm), Some(1), Stage::QkNorm),
        (layer(T::O), Some(1), Stage::O),
        (layer(T::OBias), Some(1), Stage::O),
        (layer(T::PostNorm), Some(1), Stage::PostNorm),
        (layer(T::Gate), Some(1), Stage::Gate),
        (layer(T::Up), Some(1), Stage::Up),
        (layer(T::Down), Some(1), Stage::Down),
        (TensorName::FinalNorm, None, Stage::FinalNorm),
        (TensorName::Head, None, Stage::Head),
    ];
    for (tensor, layer, stage) in expected {
        for weights in [WeightChoice::F32, WeightChoice::Bf16] {
            let error = found(tensor, 5, weights);
            let Error::NotFinite { layer: got_layer, stage: got_stage, position } = error else {
                panic!("{tensor}: {error}");
            };
            assert_eq!((got_layer, got_stage, position), (layer, stage, 0), "{tensor}, {weights} weights");
        }
    }
}

#[test]
fn a_nan_in_one_tokens_embedding_is_reported_at_its_position() {
    // Position 8 holds token 33; it lies in the second chunk, in the tile of the first.
    let error = found(TensorName::Embedding, 33 * 48 + 7, WeightChoice::F32);
    assert!(matches!(error, Error::NotFinite { layer: None, stage: Stage::Embed, position: 8 }), "{error}");
}

#[test]
fn a_reported_nan_leaves_no_trace() {
    let toy = Toy::with(&config(), &|name, values| {
        if name == TensorName::Embedding {
            values[33 * 48] = f32::NAN;
        }
    });
    let mut decoder = toy.open(run());
    all_logits(&mut decoder, &tokens());
    decoder.first_bad().unwrap();
    let clean = decoder.last_logits(&tokens()[..8]).unwrap();
    assert_eq!(clean, toy.open(run()).last_logits(&tokens()[..8]).unwrap());
}

#[test]
fn the_report_names_layer_stage_position_and_a_remedy() {
    let error = found(TensorName::Layer(1, LayerTensor::Up), 0, WeightChoice::F32).to_string();
    for part in ["layer 1, stage up, position 0", "halfbyte inspect --stats"] {
        assert!(error.contains(part), "{error}");
    }
}

#[test]
fn too_long_input_is_refused_with_the_numbers_and_changes_nothing() {
    let toy = Toy::new(&config());
    let mut decoder = toy.open(run());
    all_logits(&mut decoder, &tokens());
    let error = decoder.last_logits(&[1; 9]).unwrap_err();
    assert!(matches!(error, Error::TooLong { have: 12, new: 9, context: 20 }), "{error}");
    let text = error.to_string();
    for part in ["12 tokens", "9 more", "holds 20", "--context"] {
        assert!(text.contains(part), "{text}");
    }
    assert_eq!(decoder.tokens(), tokens());
    let after = decoder.last_logits(&[1; 8]).unwrap(); // just fits
    let whole = toy.open(run()).last_logits(&[tokens(), vec![1; 8]].concat()).unwrap();
    assert_eq!(after, whole);
}

#[test]
fn a_token_outside_the_vocabulary_is_refused_by_number() {
    let mut decoder = Toy::new(&config()).open(run());
    let error = decoder.last_logits(&[3, 50]).unwrap_err().to_string();
    assert!(error.contains("50"), "{error}");
    assert!(decoder.tokens().is_empty());
}
