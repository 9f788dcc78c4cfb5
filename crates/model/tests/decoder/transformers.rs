//! Logits and loss against transformers in f32, on every kernel set of the machine.
//! The numbers come from scripts/golden/decoder.py.

use crate::common::{
    Run, Toy, all_logits, covers_every_switch, golden, has, kernel_sets, numbers, tokens, worst,
};
use halfbyte_checkpoint::{Architecture, RopeScaling};
use halfbyte_cpu::Isa;
use serde_json::Value;

/// Of the range of the logits.
const BOUND: f64 = 1e-4;

#[test]
fn formula_models_give_the_reference_logits_and_loss() {
    let sets = kernel_sets();
    for kind in ["qwen3", "qwen2.5", "llama"] {
        let reference = golden(&format!("tiny-{kind}.json"));
        let toy = Toy::new(&reference["config"]);
        for &isa in &sets {
            let (logits, loss) = formula_model(&toy, &reference, isa);
            eprintln!("{kind}, {isa}: logits off by {logits:.1e} of their range, loss by {loss:.1e}");
            assert!(logits <= BOUND, "{kind}, {isa}: logits off by {logits:e} of their range");
            assert!(loss <= 1e-5, "{kind}, {isa}: loss off by {loss:e}");
        }
    }
}

/// Errors of logits and loss.
fn formula_model(toy: &Toy, reference: &Value, isa: Isa) -> (f64, f64) {
    let rows: Vec<Vec<u32>> = reference["input_ids"].as_array().unwrap().iter().map(tokens).collect();
    let computed: Vec<Vec<Vec<f32>>> =
        rows.iter().map(|row| all_logits(&mut toy.open(Run::exact(isa, row.len())), row)).collect();
    let last = numbers(&reference["logits_last_position_of_row_0"]);
    let tenth = numbers(&reference["logits_position_10_of_row_1_first_32"]);
    let logits = worst(&computed[0][rows[0].len() - 1], &last).max(worst(&computed[1][10], &tenth));
    let losses = rows.iter().zip(&computed).flat_map(|(row, logits)| {
        row[1..].iter().zip(logits).map(|(&next, logits)| negative_log_likelihood(logits, next))
    });
    let losses: Vec<f64> = losses.collect();
    assert_eq!(losses.len(), 94);
    let loss = losses.iter().sum::<f64>() / 94.0;
    (logits, (loss - reference["loss_mean_over_94_predictions"].as_f64().unwrap()).abs())
}

fn negative_log_likelihood(logits: &[f32], next: u32) -> f64 {
    let sum: f64 = logits.iter().map(|&x| f64::from(x).exp()).sum();
    sum.ln() - f64::from(logits[next as usize])
}

#[test]
fn every_switch_gives_the_logits_of_transformers() {
    let sets = kernel_sets();
    for (index, case) in cases().iter().enumerate() {
        let toy = Toy::new(&case["config"]);
        let family = toy.architecture().family.name();
        for &isa in &sets {
            let error = case_error(&toy, toy.architecture(), case, isa);
            eprintln!("case {index}, {family}, {isa}: off by {error:.1e} of the range");
            assert!(error <= BOUND, "case {index}, {}, {isa}: off by {error:e}", case["config"]);
        }
    }
}

#[test]
fn the_cases_cover_every_switch() {
    let cases: Vec<Toy> = cases().iter().map(|case| Toy::new(&case["config"])).collect();
    covers_every_switch(&cases);
    has(&cases, "hidden / heads as head_dim", &|a| a.head_dim * a.heads == a.hidden_size);
    has(&cases, "windows on some layers only", &|a| {
        a.sliding_window.contains(&None) && a.sliding_window.iter().any(Option::is_some)
    });
    has(&cases, "plain rope", &|a| a.rope.scaling == RopeScaling::None);
    has(&cases, "linear", &|a| matches!(a.rope.scaling, RopeScaling::Linear { .. }));
    has(&cases, "llama3", &|a| matches!(a.rope.scaling, RopeScaling::Llama3 { .. }));
    for cut in [true, false] {
        has(
            &cases,
            "yarn",
            &|a| matches!(a.rope.scaling, RopeScaling::Yarn { truncate, .. } if truncate == cut),
        );
    }
}

/// A case that a wrong reading also passes would prove nothing.
#[test]
fn a_switch_read_wrongly_shows_in_the_logits() {
    for (index, case) in cases().iter().enumerate() {
        let toy = Toy::new(&case["config"]);
        for (what, wrong) in wrong_readings(toy.architecture()) {
            let error = case_error(&toy, &wrong, case, Isa::detect());
            assert!(error > 10.0 * BOUND, "case {index} without {what} is off by {error:e} only");
        }
    }
}

fn wrong_readings(right: &Architecture) -> Vec<(&'static str, Architecture)> {
    let mut readings = Vec::new();
    let mut add = |what, change: &dyn Fn(&mut Architecture)| {
        let mut wrong = right.clone();
        change(&mut wrong);
        if wrong != *right {
            readings.push((what, wrong));
        }
    };
    add("its rope scaling", &|a| a.rope.scaling = RopeScaling::None);
    add("its window", &|a| a.sliding_window.fill(None));
    add("one key of its window", &|a| a.sliding_window.iter_mut().flatten().for_each(|w| *w -= 1));
    add("its q/k norm", &|a| a.qk_norm = false);
    add("its q/k/v bias", &|a| a.qkv_bias = false);
    add("its o bias", &|a| a.output_bias = false);
    add("its mlp bias", &|a| a.mlp_bias = false);
    readings
}

fn cases() -> Vec<Value> {
    golden("decoder.json").as_array().unwrap().clone()
}

/// The worst of the case's rows.
fn case_error(toy: &Toy, architecture: &Architecture, case: &Value, isa: Isa) -> f64 {
    let ids = tokens(&case["input_ids"]);
    let computed = all_logits(&mut toy.open_as(architecture, Run::exact(isa, ids.len())), &ids);
    let rows = case["logits"].as_object().unwrap().iter();
    rows.map(|(position, want)| worst(&computed[position.parse::<usize>().unwrap()], &numbers(want)))
        .fold(0.0, f64::max)
}
