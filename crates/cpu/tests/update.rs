//! `update` on tensors large enough for whole panels: the same bytes on every kernel set, whatever bytes
//! it begins with.

use halfbyte_cpu::{Cpu, Isa};
use halfbyte_formats::philox;
use halfbyte_formats::state::Average;
use halfbyte_formats::state::adamw::{self, Settings};
use halfbyte_ops::testing::{Bench, numbers};
use halfbyte_ops::update::{Kept, Recipe, Step};
use halfbyte_ops::{Backend, Buffer, Rows, Tally, Weight, WeightFormat};

const CASES: [(WeightFormat, Recipe); 4] = [
    (WeightFormat::Nvfp4, Recipe::DEFAULT),
    (WeightFormat::Nvfp4, Recipe::LEAN),
    (WeightFormat::Int8, Recipe::DEFAULT),
    (WeightFormat::Int8, Recipe::LEAN),
];

/// A tensor that learns on one kernel set.
struct Learning {
    bench: Bench<Cpu>,
    of: Weight,
    kept: Kept,
    gradient: Rows,
    recipe: Recipe,
}

impl Learning {
    /// Of `rows` x `columns`, rows of such sizes.
    fn new(
        isa: Isa,
        threads: usize,
        case: (WeightFormat, Recipe),
        (rows, columns): (usize, usize),
        size: impl Fn(usize) -> f32,
    ) -> Learning {
        let (format, recipe) = case;
        let mut bench = Bench::new(&|bytes| {
            let scratch = Buffer { offset: bytes, bytes: 8 << 20 };
            Cpu::new(isa, threads, bytes + scratch.bytes, scratch).unwrap()
        });
        let mut values = numbers(3, rows * columns);
        for (row, values) in values.chunks_mut(columns).enumerate() {
            values.iter_mut().for_each(|x| *x *= size(row));
        }
        let (of, _, _) = bench.weight(format, rows, columns, &values);
        let kept = Kept {
            remainder: bench.buffer(recipe.remainder_bytes(format, rows, columns)),
            moment: bench.buffer(recipe.moment_bytes(rows, columns)),
            second: bench.buffer(recipe.second_bytes(rows, columns)),
        };
        let gradient = bench.rows(rows, columns, &vec![0.0; rows * columns]);
        Learning { bench, of, kept, gradient, recipe }
    }

    fn bytes(&mut self, of: Buffer) -> Vec<u8> {
        let mut bytes = vec![0; of.bytes];
        self.bench.backend.read_bytes(of, &mut bytes).unwrap();
        bytes
    }

    /// Any remainders, any moments, and here and there any code or scale.
    fn scatter(&mut self) {
        let random = |tensor, i: usize| philox::random_bits(1, 0, tensor, i as u64);
        for (tensor, buffer) in [self.kept.remainder, self.kept.moment].into_iter().enumerate() {
            let bytes: Vec<u8> = (0..buffer.bytes).map(|i| random(tensor as u64, i) as u8).collect();
            self.bench.backend.write_bytes(buffer, &bytes).unwrap();
        }
        let mut bytes = self.bytes(self.of.buffer);
        for (i, byte) in bytes.iter_mut().enumerate().skip(64) {
            if random(2, i) % 300 == 0 {
                *byte = random(3, i) as u8;
            }
        }
        self.bench.backend.write_bytes(self.of.buffer, &bytes).unwrap();
    }

    fn step(&mut self, number: u64, rate: f64, settings: &Settings) -> Tally {
        let step = Step {
            recipe: self.recipe,
            adamw: adamw::Step::new(settings, rate, number),
            average: Average::new(settings.beta2),
            seed: 5,
            step: number,
            tensor: 9,
        };
        self.bench.backend.update(&self.of, 0, self.gradient, &self.kept, &step).unwrap();
        self.bench.backend.tallies().unwrap().sum()
    }

    fn set_gradient(&mut self, g: &[f32]) {
        self.bench.backend.write(self.gradient.buffer, g).unwrap();
    }
}

#[test]
fn large_tensors_learn_the_same_bytes_on_every_set() {
    let (rows, columns) = (160, 448);
    for case in CASES {
        let mut sets: Vec<(Isa, Learning)> = Vec::new();
        for isa in Isa::ALL.into_iter().filter(|isa| isa.available()) {
            // Rows of all sizes, and one of zeros.
            let size = |row| if row == 7 { 0.0 } else { 2f32.powi(-(row as i32 % 12)) };
            let mut learning = Learning::new(isa, 2, case, (rows, columns), size);
            learning.scatter();
            sets.push((isa, learning));
        }
        let mut sum = Tally::default();
        for (number, rate) in (1..).zip([1e-4, 1e-2, 1e-5, 0.1, 1e-3, 1e-3, 1e-7]) {
            let clip = if number == 5 { 0.7 } else { f64::INFINITY };
            let settings = Settings { decay: 0.01, clip, ..Settings::default() };
            let mut g = numbers(number as u32, rows * columns);
            for (i, x) in g.iter_mut().enumerate() {
                *x *= 2f32.powi(-(philox::random_bits(2, number, 0, i as u64) as i32 & 15));
            }
            if number == 6 {
                (g[5], g[20 * columns + 3], g[40 * columns]) = (f32::NAN, f32::INFINITY, 3e38);
            }
            let mut first: Option<(Tally, [Vec<u8>; 3])> = None;
            for (isa, learning) in &mut sets {
                learning.set_gradient(&g);
                let tally = learning.step(number, rate, &settings);
                let buffers = [learning.of.buffer, learning.kept.remainder, learning.kept.moment];
                let bytes = buffers.map(|buffer| learning.bytes(buffer));
                match &first {
                    None => first = Some((tally, bytes)),
                    Some((wanted, others)) => {
                        assert_eq!(tally, *wanted, "{case:?}, step {number}: {isa}");
                        assert!(bytes == *others, "{case:?}, step {number}: {isa} writes other bytes");
                    }
                }
                sum.add(tally);
            }
        }
        // Every way was taken.
        assert!(sum.changed > 0 && sum.rescaled > 0 && sum.refused > 0 && sum.squares > 0, "{sum:?}");
    }
}
