//! A small training run in every recipe: a noisy quadratic, 4096 weights, 2000 steps, against f32.
//!
//! loss = mean h (w - target)^2 / 2; the gradient is taken at the NVFP4 plane (as in training) or
//! at the stored weights, with noise that outweighs it near the end.

mod common;

use common::through;
use halfbyte_formats::nvfp4::{self, Scales};
use halfbyte_formats::philox;
use halfbyte_formats::state::adamw::{Settings, Step};
use halfbyte_formats::state::draw::{Draws, Purpose};
use halfbyte_formats::state::moment::Moment;
use halfbyte_formats::state::weight::{self, Block, Remainder};
use halfbyte_formats::state::{Average, BLOCK, Push, master, second};

const LEN: usize = 4096;
const STEPS: u64 = 2000;

/// Weights of one row, and both moments.
struct Run {
    remainder: Option<Remainder>,
    moment: Moment,
    float: Vec<f32>,
    codes: Vec<[u8; 8]>,
    scales: Vec<u8>,
    remainders: Vec<u8>,
    tensor_scale: f32,
    m: Vec<f32>,
    v: Vec<f32>,
}

impl Run {
    fn new(w: &[f32], remainder: Option<Remainder>, moment: Moment) -> Self {
        let width = remainder.unwrap_or(Remainder::Byte);
        let mut run = Run {
            remainder,
            moment,
            float: w.to_vec(),
            codes: vec![[0; 8]; LEN / BLOCK],
            scales: vec![0; LEN / BLOCK],
            remainders: vec![0; width.bytes(LEN)],
            tensor_scale: weight::tensor_scale(nvfp4::amax(w), Scales::Nearest),
            m: vec![0.0; LEN],
            v: vec![0.0; LEN],
        };
        let codes = run.codes.as_flattened_mut();
        let row = weight::Row { codes, scales: &mut run.scales, remainders: &mut run.remainders };
        weight::import_row(w, run.tensor_scale, Scales::Nearest, width, row);
        run
    }

    /// The plane and the stored weights.
    fn weights(&self, plane: &mut [f32], stored: &mut [f32]) {
        let (mut codes, mut scales) = (self.codes.as_flattened().to_vec(), self.scales.clone());
        match self.remainder {
            Some(width) => {
                weight::decode_row(&codes, &scales, &self.remainders, width, self.tensor_scale, stored);
            }
            None => {
                stored.copy_from_slice(&self.float);
                nvfp4::encode_row(stored, self.tensor_scale, Scales::Nearest, &mut codes, &mut scales);
            }
        }
        nvfp4::decode_row(&codes, &scales, self.tensor_scale, plane);
    }

    fn step(&mut self, g: &[f32], stored: &[f32], step: &Step, t: u64) {
        let (mut own, mut other) = (vec![0; LEN], vec![0; LEN]);
        Draws::new(1, t, 0, Purpose::Weight).row(0).pairs(0, &mut own, &mut other);
        let luck = |words: &[u32], index| words.as_chunks::<BLOCK>().0[index];
        for index in 0..LEN / BLOCK {
            let part = index * BLOCK..(index + 1) * BLOCK;
            let block = |x: &[f32]| -> [f32; BLOCK] { x[part.clone()].try_into().expect("a block") };
            let (g, mut m, mut v) = (block(g), block(&self.m), block(&self.v));
            let roots = second::full(&mut v, &g, Average::new(0.95));
            step.first(&mut m, &g);
            let delta = step.delta(&m, &roots, &block(stored));
            self.m[part.clone()].copy_from_slice(&through(self.moment, &m, &luck(&other, index)));
            self.v[part.clone()].copy_from_slice(&v);
            self.update(index, &delta, &luck(&own, index));
        }
    }

    fn update(&mut self, index: usize, delta: &[f32; BLOCK], bits: &[u32; BLOCK]) {
        let (codes, scale) = (&mut self.codes[index], &mut self.scales[index]);
        let width = 2 * self.remainder.map_or(0, Remainder::bits) as usize;
        let remainder = &mut self.remainders[index * width..(index + 1) * width];
        let g = self.tensor_scale;
        match self.remainder {
            Some(Remainder::Byte) => {
                weight::update_block::<8>(Block { codes, scale, remainder }, g, &Push::by(delta), bits)
            }
            Some(Remainder::Nibble) => {
                weight::update_block::<4>(Block { codes, scale, remainder }, g, &Push::by(delta), bits)
            }
            None => master::update_f32(&mut self.float.as_chunks_mut().0[index], delta),
        };
    }
}

fn gaussian(seed: u64, step: u64, len: usize) -> Vec<f32> {
    let draw = |i: u64| {
        let uniform = |e| (f64::from(philox::random_bits(seed, step, 9, e)) + 0.5) / 4_294_967_296.0;
        ((-2.0 * uniform(2 * i).ln()).sqrt() * (std::f64::consts::TAU * uniform(2 * i + 1)).cos()) as f32
    };
    (0..len as u64).map(draw).collect()
}

/// Noise of variance one, the same for every recipe.
fn noise(seed: u64, step: u64) -> Vec<f32> {
    let draws = Draws::new(seed, step, 1, Purpose::Gradient);
    let root_of_three = 3f32.sqrt();
    let blocks = (0..LEN as u64).step_by(BLOCK).flat_map(|first| draws.block(first));
    blocks.map(|bits| (bits as i32) as f32 / 2_147_483_648.0 * root_of_three).collect()
}

/// Losses of the plane and of the stored weights over the last tenth of the run, in units of the first.
fn train(remainder: Option<Remainder>, moment: Moment, at_plane: bool, seed: u64) -> [f64; 2] {
    let w: Vec<f32> = gaussian(seed, 0, LEN).iter().map(|x| 0.02 * x).collect();
    let target: Vec<f32> = w.iter().zip(gaussian(seed, 1, LEN)).map(|(w, x)| w + 0.01 * x).collect();
    let curvature: Vec<f32> = gaussian(seed, 2, LEN).iter().map(|x| x.exp()).collect();
    let loss = |w: &[f32]| {
        let terms = w.iter().zip(&target).zip(&curvature);
        terms.map(|((w, t), h)| f64::from(h * (w - t) * (w - t))).sum::<f64>() / 2.0 / LEN as f64
    };
    let first = loss(&w);
    let mut run = Run::new(&w, remainder, moment);
    let (mut plane, mut stored) = (vec![0.0; LEN], vec![0.0; LEN]);
    let mut ends = [0.0; 2];
    for t in 1..=STEPS {
        run.weights(&mut plane, &mut stored);
        if t > STEPS - STEPS / 10 {
            ends[0] += loss(&plane) / first / (STEPS / 10) as f64;
            ends[1] += loss(&stored) / first / (STEPS / 10) as f64;
        }
        let at = if at_plane { &plane } else { &stored };
        let noise = noise(seed, t);
        let g: Vec<f32> = (0..LEN).map(|i| curvature[i] * (at[i] - target[i]) + 0.01 * noise[i]).collect();
        let rate = 5e-5 * (1.0 - (t - 1) as f64 / STEPS as f64);
        run.step(&g, &stored, &Step::new(&Settings::default(), rate, t), t);
    }
    ends
}

/// Mean over seeds, printed beside f32 with its spread.
fn compare(seeds: std::ops::Range<u64>) -> Vec<f64> {
    let recipes = [
        (None, Moment::Float),
        (None, Moment::Four),
        (Some(Remainder::Byte), Moment::Float),
        (Some(Remainder::Byte), Moment::Four),
        (Some(Remainder::Nibble), Moment::Four),
    ];
    let count = seeds.clone().count() as f64;
    let mut excess = vec![];
    for at_plane in [true, false] {
        let mut wide = [0.0; 2];
        println!("gradient at the {}", if at_plane { "plane" } else { "stored weights" });
        for (remainder, moment) in recipes {
            let mut mean = [0.0; 2];
            for seed in seeds.clone() {
                let ends = train(remainder, moment, at_plane, seed);
                mean = [mean[0] + ends[0] / count, mean[1] + ends[1] / count];
            }
            if remainder.is_none() && moment == Moment::Float {
                wide = mean;
            }
            let [plane, stored] = [mean[0] - wide[0], mean[1] - wide[1]];
            println!(
                "  {remainder:?} {moment:?}: {mean:.4?}, against f32 {plane:+.4} {stored:+.4} of the first loss"
            );
            excess.push(if at_plane { plane } else { stored });
        }
    }
    excess
}

/// Of the first loss; measured with three seeds (`compare(1..4)`): 0, -0.0007, 0.0140, 0.0116, 0.0289 with the gradient at
/// the plane, 0, 0.0001, 0.0003, 0.0004, 0.0070 with the gradient at the stored weights.
const ALLOWED: [f64; 10] = [0.0, 0.005, 0.025, 0.025, 0.04, 0.0, 0.001, 0.001, 0.001, 0.01];

#[test]
fn narrow_recipes_end_where_f32_ends() {
    for (excess, allowed) in compare(1..2).into_iter().zip(ALLOWED) {
        assert!(excess <= allowed, "{excess}, allowed {allowed}");
    }
}
