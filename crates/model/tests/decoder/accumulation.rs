//! Several small batches are one large one: the same loss and the same gradients, to rounding.

use std::collections::HashMap;

use halfbyte_checkpoint::TensorName;
use halfbyte_cpu::{Cpu, Isa};
use halfbyte_model::{Batch, Learner, Result};
use halfbyte_ops::accumulate::{Share, Storage, Stored};
use halfbyte_ops::{Backend, Rows, loss};
use halfbyte_plan::{Name, Plan, stored_gradient};

use crate::common::{Toy, golden, tokens};
use crate::training::{Notes, Way, open};

/// Stores gradients on the device, in f32.
struct Store<'a> {
    plan: &'a Plan,
    toy: &'a Toy,
    number: u64,
    all: HashMap<TensorName, Stored>,
}

impl Learner<Cpu> for Store<'_> {
    fn learn(&mut self, backend: &mut Cpu, name: TensorName, first: usize, gradient: Rows) -> Result<()> {
        let of = stored_gradient(self.toy.architecture(), name, Storage::Float);
        let of = Stored { buffer: self.plan.buffer(Name::Gradient(name)).unwrap(), ..of };
        self.all.insert(name, of);
        let share = Share { seed: 0, number: self.number, tensor: 0, fresh: self.number == 1 };
        backend.accumulate(gradient, first, &of, &share)?;
        Ok(())
    }

    fn end(&mut self, backend: &mut Cpu) -> Result<()> {
        assert_eq!(backend.tallies()?.sum().refused, 0);
        Ok(())
    }
}

/// Rows of 48 tokens, cut into samples; the longer the row's prompt, the fewer tokens are trained.
fn batches(reference: &serde_json::Value) -> Vec<Batch> {
    let rows = reference["input_ids"].as_array().unwrap().iter().map(tokens);
    let cut = rows.flat_map(|row| [row[..13].to_vec(), row[13..].to_vec()]);
    let batch = |(index, tokens): (usize, Vec<u32>)| {
        let mut targets = tokens[1..].to_vec();
        targets.push(loss::UNTRAINED);
        targets[..3 * index].fill(loss::UNTRAINED);
        Batch { lengths: vec![tokens.len()], tokens, targets }
    };
    cut.enumerate().map(batch).collect()
}

#[test]
fn small_batches_have_the_gradient_of_the_large_one() {
    for kind in ["qwen3", "qwen2.5", "llama"] {
        let reference = golden(&format!("tiny-{kind}.json"));
        let toy = Toy::new(&reference["config"]);
        let parts = batches(&reference);
        let whole = Batch {
            tokens: parts.iter().flat_map(|part| part.tokens.clone()).collect(),
            targets: parts.iter().flat_map(|part| part.targets.clone()).collect(),
            lengths: parts.iter().flat_map(|part| part.lengths.clone()).collect(),
        };
        let (mut model, plan) = open(&toy, Way::exact(Isa::detect()), 96, 48);
        let mut notes = Notes::default();
        let want = model.step(&whole, &mut notes).unwrap();
        let mut store = Store { plan: &plan, toy: &toy, number: 0, all: HashMap::new() };
        let (mut mean, trained) = (0.0, whole.trained());
        for part in &parts {
            store.number += 1;
            let of_part = model.part_of_step(part, trained, &mut store).unwrap();
            mean += of_part * part.trained() as f64 / trained as f64;
        }
        assert!((mean - want).abs() < 1e-6, "{kind}: loss {mean}, at once {want}");
        for (name, of) in &store.all {
            let want = &notes.0[name];
            let columns = of.columns;
            let gradient = plan.buffer(Name::Value(halfbyte_plan::Value::Gradient)).unwrap();
            let run = gradient.bytes / 4 / columns;
            let mut got = vec![0.0; want.len()];
            for (first, got) in (0..of.rows).step_by(run).zip(got.chunks_mut(run * columns)) {
                let out = Rows::new(gradient, got.len() / columns, columns);
                model.backend.accumulated(of, first, 1.0, out).unwrap();
                model.backend.read(out, got).unwrap();
            }
            let largest = want.iter().fold(0.0f32, |largest, x| largest.max(x.abs()));
            let off = got.iter().zip(want).fold(0.0f32, |off, (got, want)| off.max((got - want).abs()));
            assert!(off <= 1e-5 * largest, "{kind}, {name}: off by {:e}", off / largest);
            let squares = model.backend.accumulated_squares(of).unwrap();
            let want: f64 = got.iter().map(|g| f64::from(*g).powi(2)).sum();
            assert!((squares - want).abs() <= 1e-12 * want, "{kind}, {name}: squares {squares}, {want}");
        }
    }
}
