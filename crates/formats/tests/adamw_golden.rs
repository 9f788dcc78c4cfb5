//! AdamW with everything in f32 against `torch.optim.AdamW`.
//!
//! The steps come from `scripts/golden/adamw.py`.

use halfbyte_formats::state::adamw::{Settings, Step};
use halfbyte_formats::state::{Average, BLOCK, master, second};
use serde_json::Value;

fn floats(value: &Value) -> Vec<f32> {
    let text = value.as_str().expect("a string of hexadecimal digits");
    let digit = |i: usize| u8::from_str_radix(&text[i..i + 2], 16).expect("hexadecimal");
    let bytes: Vec<u8> = (0..text.len()).step_by(2).map(digit).collect();
    bytes.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
}

fn settings(value: &Value) -> Settings {
    let number = |value: &Value| value.as_f64().expect("a number");
    Settings {
        beta1: number(&value["betas"][0]),
        beta2: number(&value["betas"][1]),
        eps: number(&value["eps"]),
        decay: number(&value["weight_decay"]),
        ..Settings::default()
    }
}

#[test]
fn twenty_steps_in_f32_are_those_of_torch() {
    let golden: Value =
        serde_json::from_str(include_str!("golden/adamw.json")).expect("golden/adamw.json is JSON");
    let mut worst = 0.0f32;
    for run in golden["runs"].as_array().expect("runs") {
        let settings = settings(&run["settings"]);
        let mut w = floats(&run["first"]);
        let (mut m, mut v) = (vec![0.0; w.len()], vec![0.0; w.len()]);
        for (index, expected) in run["steps"].as_array().expect("steps").iter().enumerate() {
            let step = Step::new(&settings, expected["lr"].as_f64().expect("a rate"), index as u64 + 1);
            let g = floats(&expected["g"]);
            let states = m.as_chunks_mut::<BLOCK>().0.iter_mut().zip(v.as_chunks_mut::<BLOCK>().0);
            let blocks = w.as_chunks_mut::<BLOCK>().0.iter_mut().zip(g.as_chunks::<BLOCK>().0);
            for ((w, g), (m, v)) in blocks.zip(states) {
                let roots = second::full(v, g, Average::new(settings.beta2));
                step.first(m, g);
                let delta = step.delta(m, &roots, w);
                master::update_f32(w, &delta);
            }
            for (w, expected) in w.iter().zip(floats(&expected["w"])) {
                let error = (w - expected).abs() / expected.abs().max(1e-2);
                worst = worst.max(error);
                // A root is inverted before it is multiplied with, which torch divides by: a rounding more each step.
                assert!(error <= 2e-6, "step {index} of {settings:?}: {w} and {expected}");
            }
        }
    }
    println!("largest relative difference {worst:.1e}");
}
