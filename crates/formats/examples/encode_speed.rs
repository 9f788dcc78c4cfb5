//! Prints nanoseconds per element for every way of quantising and decoding, on one thread.

use std::hint::black_box;
use std::time::Instant;

use halfbyte_formats::nvfp4::{self, Scales};
use halfbyte_formats::state::draw::{Draws, Purpose};
use halfbyte_formats::{bf16, f16, int8_block, philox};

const ROWS: usize = 256;
const COLUMNS: usize = 4096;

fn report(name: &str, mut pass: impl FnMut()) {
    pass();
    let mut best = f64::INFINITY;
    for _ in 0..5 {
        let start = Instant::now();
        pass();
        best = best.min(start.elapsed().as_secs_f64());
    }
    println!("{name:<24} {:7.3} ns/element", best * 1e9 / (ROWS * COLUMNS) as f64);
}

fn main() {
    let (stream, draws) = (philox::Stream::new(1, 2, 3), Draws::new(1, 2, 3, Purpose::Results));
    // The sum of four uniforms is near enough to a Gaussian for speed.
    let sample = |i: u64| stream.quad(i).iter().map(|b| *b as f32 / 4.3e9 - 0.5).sum::<f32>();
    let x: Vec<f32> = (0..(ROWS * COLUMNS) as u64).map(sample).collect();
    let mut codes = vec![0u8; COLUMNS / 2];
    let mut scales = vec![0u8; COLUMNS / 16];
    let mut out = vec![0f32; COLUMNS];

    report("amax", || {
        black_box(nvfp4::amax(black_box(&x)));
    });
    let amax = nvfp4::amax(&x);
    for mode in [Scales::Nearest, Scales::FourOverSix, Scales::Search] {
        let scale = nvfp4::tensor_scale(amax, mode);
        report(&format!("nvfp4 {mode:?}"), || {
            for row in x.chunks(COLUMNS) {
                nvfp4::encode_row(black_box(row), scale, mode, &mut codes, &mut scales);
            }
        });
    }
    report("nvfp4 stochastic", || {
        for (row, first) in x.chunks(COLUMNS).zip((0..).step_by(COLUMNS)) {
            nvfp4::encode_row_stochastic(
                black_box(row),
                amax / 2688.0,
                &draws,
                first,
                &mut codes,
                &mut scales,
            );
        }
    });
    report("nvfp4 decode", || {
        for _ in 0..ROWS {
            nvfp4::decode_row(black_box(&codes), &scales, 0.1, &mut out);
        }
    });
    let mut bytes = vec![0i8; COLUMNS];
    report("int8_block encode", || {
        for row in x.chunks(COLUMNS) {
            int8_block::encode_row(black_box(row), &mut bytes, &mut scales);
        }
    });
    report("int8_block decode", || {
        for _ in 0..ROWS {
            int8_block::decode_row(black_box(&bytes), &scales, &mut out);
        }
    });
    halves("bf16", &x, bf16::encode, bf16::decode);
    halves("f16", &x, f16::encode, f16::decode);
}

fn halves(name: &str, x: &[f32], encode: impl Fn(f32) -> u16, decode: impl Fn(u16) -> f32) {
    let mut bits = vec![0u16; COLUMNS];
    let mut out = vec![0f32; COLUMNS];
    report(&format!("{name} encode"), || {
        for row in x.chunks(COLUMNS) {
            bits.iter_mut().zip(black_box(row)).for_each(|(b, x)| *b = encode(*x));
        }
    });
    report(&format!("{name} decode"), || {
        for _ in 0..ROWS {
            out.iter_mut().zip(black_box(&bits)).for_each(|(x, b)| *x = decode(*b));
            black_box(&mut out);
        }
    });
}
