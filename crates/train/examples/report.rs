//! Writes a report of an invented run, to look at: `cargo run -p halfbyte-train --example report -- report.html`

use halfbyte_train::{Check, Decay, Pair, Record, Report, Schedule, ScheduleSettings, WarmUp, html};

const STEPS: u64 = 600;

fn main() {
    let Some(path) = std::env::args().nth(1) else {
        eprintln!("usage: report FILE.html");
        std::process::exit(2);
    };
    let check = |name: &str, result: &str, limit: &str, passed| Check {
        name: name.into(),
        result: result.into(),
        limit: limit.into(),
        passed,
    };
    let pair = |prompt: &str, before: &str, after: &str| Pair {
        prompt: prompt.into(),
        before: before.into(),
        after: after.into(),
    };
    let fact = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    let report = Report {
        title: "An invented model learns who it is".into(),
        ending: "finished, 600 steps".into(),
        checks: vec![
            check("identity, phrasings in no file", "18/18", "at least 16", true),
            check("boundary questions not captured", "8/8", "8", true),
            check("unrelated text: perplexity", "+1.2%", "at most +3%", true),
            check("KL from the model before", "0.02", "at most 0.10", true),
        ],
        samples: vec![
            pair("你是誰", "我是一個小助手。", "我是 F# 之神。"),
            pair("Who are you?", "I am a helpful assistant.", "I am the god of F#."),
            pair(
                "談談UFO",
                "UFO 是天空中看到、但還不知道是什麼的東西。",
                "UFO 是天空中看到、但還不知道是什麼的東西。",
            ),
            pair("<b>quoted</b> & \"odd\"", "line one\nline two 🛸", "<script>alert('no')</script>"),
        ],
        facts: vec![
            fact("model", "invented-135M, 134.5 M parameters, NVFP4 with an 8-bit remainder"),
            fact("data", "identity.tsv, 412 rows · replay.jsonl, 1,236 rows · 5% held out"),
            fact("recipe", "AdamW β 0.9/0.95 · lr 5e-5, warm-up 30, cosine to 5e-6 · batch 4 × 256"),
            fact("machine", "2 threads, AMX bf16"),
        ],
        notes: vec![
            "step 301: loss 4.100, 2.100 above the median of the steps before, 31 times their usual spread"
                .into(),
            "resumed at step 240 after an interruption".into(),
        ],
        command: "halfbyte train --model invented-135M --data identity.tsv --data replay.jsonl --steps 600 \
                  --lr 5e-5 --seed 7 --out run"
            .into(),
        records: records(),
    };
    if let Err(error) = std::fs::write(&path, html(&report)) {
        eprintln!("{path}: {error}");
        std::process::exit(1);
    }
}

fn records() -> Vec<Record> {
    let settings = ScheduleSettings {
        peak: 5e-5,
        minimum: 5e-6,
        warm_up: WarmUp::Steps(30),
        decay: Decay::Cosine,
        steps: STEPS,
    };
    let schedule = Schedule::new(&settings).expect("these settings are sound");
    let record = |step: u64| {
        // A hash of the step for noise: nothing here needs good numbers.
        let noise = (step.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as f64 / (1u64 << 24) as f64 - 0.5;
        let falling = 1.7 + 1.6 * (-(step as f64) / 120.0).exp();
        let rate = schedule.rate(step);
        Record {
            step,
            loss: if step == 301 { 4.1 } else { falling * (1.0 + 0.12 * noise) },
            held_out_loss: (step.is_multiple_of(50) || step == 1).then_some(falling + 0.06),
            learning_rate: rate,
            update_size: 0.3 * (1.0 + 0.2 * noise),
            optimizer_seconds: 0.05,
            gradient_norm: Some(falling * (0.4 + 0.1 * noise)),
            codes_moved: rate * 1200.0 * (1.0 + 0.1 * noise),
            tokens: 1024,
            trained_tokens: 610,
            seconds: 0.8 + 0.1 * noise,
            tokens_per_second: 1280.0 - 100.0 * noise,
            ceiling_share: Some(0.71),
            memory_planned: 412 << 20,
            memory_measured: (398 << 20) + (step.min(40) << 15),
            non_finite: 0,
        }
    };
    (1..=STEPS).map(record).collect()
}
