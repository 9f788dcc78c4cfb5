//! Prints how fast products, attention and the optimizer are, against the ceilings, for one shape:
//! `cargo run --release -p halfbyte-cpu --example kernels -- [threads] [kernel set]`

use std::time::Instant;

use halfbyte_cpu::{Cpu, Isa, measure};
use halfbyte_formats::state::{Average, adamw};
use halfbyte_ops::update::{Kept, Recipe, Step};
use halfbyte_ops::{
    Backend, Buffer, Cache, CacheFormat, Matrix, Product, Rows, Sight, Weight, WeightFormat, WeightRows,
};

fn main() {
    let mut arguments = std::env::args().skip(1);
    let threads: usize = arguments.next().and_then(|n| n.parse().ok()).unwrap_or(2);
    let name = arguments.next();
    let isa =
        Isa::ALL.into_iter().find(|isa| Some(isa.name()) == name.as_deref()).unwrap_or_else(Isa::detect);
    let mut reader = measure::Reader::new(isa, threads, 1 << 30).expect("memory to read");
    let read = (0..4).map(|_| reader.pass().expect("reads")).fold(0.0, f64::max);
    let flops = (0..3).map(|_| measure::arithmetic(isa, threads).expect("computes")).fold(0.0, f64::max);
    println!("{isa}, {threads} threads: reads {:.1} GB/s, computes {:.2} TFLOP/s", read / 1e9, flops / 1e12);
    let mut cpu = Cpu::new(isa, threads, 1200 << 20, Buffer { offset: 1100 << 20, bytes: 100 << 20 })
        .expect("a backend");
    let wide = [1, 2, 4, 8, 16, 64, 512];
    for format in [WeightFormat::Nvfp4, WeightFormat::Int8, WeightFormat::Bf16, WeightFormat::F32] {
        linear(&mut cpu, format, (1536 * 8, 4608), &wide, read, flops);
    }
    for shape in [(1536, 576), (576, 1536)] {
        linear(&mut cpu, WeightFormat::Nvfp4, shape, &[1, 32, 64, 128, 256, 512], read, flops);
    }
    for format in [WeightFormat::Nvfp4, WeightFormat::Int8] {
        learn(&mut cpu, format, Recipe::DEFAULT);
    }
    for format in [CacheFormat::Bf16, CacheFormat::Int8, CacheFormat::F32] {
        for (tokens, start) in [(1, 511), (1, 8000), (512, 0), (512, 7680)] {
            let (kv_heads, heads, head_dim, capacity) = (3, 9, 64, 8192);
            let buffer = Buffer { offset: 0, bytes: Cache::bytes(format, kv_heads, head_dim, capacity) };
            let cache = Cache { buffer, format, kv_heads, head_dim, capacity };
            let q = Rows::new(Buffer { offset: 1000 << 20, bytes: 0 }, tokens, heads * head_dim);
            let out = Rows::new(Buffer { offset: 1020 << 20, bytes: 0 }, tokens, heads * head_dim);
            let mut best = f64::MAX;
            for _ in 0..5 {
                let begin = Instant::now();
                cpu.attend(q, &cache, Sight { start, window: None }, out).expect("fits");
                best = best.min(begin.elapsed().as_secs_f64());
            }
            let pairs = (tokens * start + tokens * tokens / 2) as f64;
            let work = 4.0 * pairs * (heads * head_dim) as f64 / best;
            println!(
                "attend {:5} {tokens:4} tokens at {start:5}: {:8.1} us  {:7.1} GFLOP/s",
                format.name(),
                best * 1e6,
                work / 1e9
            );
        }
    }
}

/// Times steps of the optimizer on a weight that a cache holds and on one that none does.
fn learn(cpu: &mut Cpu, format: WeightFormat, recipe: Recipe) {
    for (rows, columns, repeats) in [(128, 576, 3000), (49152, 576, 12)] {
        let mut end = 0;
        let mut take = |bytes: usize| {
            let buffer = Buffer { offset: end, bytes };
            end += bytes.next_multiple_of(64);
            buffer
        };
        let of = Weight { buffer: take(format.bytes(rows, columns)), rows, columns, format };
        let remainder = take(recipe.remainder_bytes(format, rows, columns));
        let moment = take(recipe.moment_bytes(rows, columns));
        let kept = Kept { remainder, moment, second: take(recipe.second_bytes(rows, columns)) };
        let gradient = Rows::new(take(Rows::bytes(rows, columns)), rows, columns);
        for buffer in [remainder, moment, kept.second] {
            cpu.write_bytes(buffer, &vec![0; buffer.bytes]).expect("fits");
        }
        let (count, blocks) = (rows * columns, rows * columns / 16);
        let numbers: Vec<f32> = (0..count).map(|i| ((i * 7919 % 8191) as f32 - 4095.0) * 1e-5).collect();
        cpu.write(gradient.buffer, &numbers).expect("fits");
        // Every block has a largest code under which its scale stays.
        let weights = match format {
            WeightFormat::Int8 => WeightRows::Int8 { codes: &vec![100; count], scales: &vec![117; blocks] },
            _ => {
                WeightRows::Nvfp4 { codes: &vec![0x7A; count / 2], scales: &vec![0x38; blocks], global: 0.01 }
            }
        };
        cpu.write_weight(&of, 0, weights).expect("fits");
        let mut best = f64::MAX;
        for number in 1..=repeats {
            let adamw = adamw::Step::new(&adamw::Settings::default(), 1e-6, number);
            let step = Step { recipe, adamw, average: Average::new(0.95), seed: 1, step: number, tensor: 1 };
            let begin = Instant::now();
            cpu.update(&of, 0, gradient, &kept, &step).expect("fits");
            best = best.min(begin.elapsed().as_secs_f64());
        }
        let time = best * 1e9 / blocks as f64;
        println!("update {:6} {rows:5}x{columns:4}: {time:6.2} ns for 16 parameters", format.name());
    }
}

/// Times products with as many matrices of one shape as no cache holds.
fn linear(
    cpu: &mut Cpu,
    format: WeightFormat,
    (rows, columns): (usize, usize),
    tokens: &[usize],
    read: f64,
    flops: f64,
) {
    let bytes = format.bytes(rows, columns);
    let count = ((128 << 20) / bytes).clamp(4, (900 << 20) / bytes);
    for &tokens in tokens {
        let count = if tokens > 64 { count.min(64) } else { count };
        let x = Rows::new(Buffer { offset: 1000 << 20, bytes: 0 }, tokens, columns);
        let out = Rows::new(Buffer { offset: 1020 << 20, bytes: 0 }, tokens, rows);
        let mut times = Vec::new();
        for i in 0..5 * count {
            let buffer = Buffer { offset: i % count * bytes.next_multiple_of(64), bytes };
            let weight = Weight { buffer, rows, columns, format };
            let start = Instant::now();
            cpu.linear(x, &[Product::new(Matrix { weight, bias: None }, out)]).expect("fits");
            times.push(start.elapsed().as_secs_f64());
        }
        // The calls that nothing disturbed: a shared machine's cores are taken away for milliseconds.
        times.sort_by(f64::total_cmp);
        let time = times[times.len() / 4];
        let (bytes, work) = (bytes as f64 / time, 2.0 * (rows * columns * tokens) as f64 / time);
        println!(
            "linear {:6} {rows:5}x{columns:4}, {tokens:4} tokens: {:6.1} GB/s ({:3.0}%)  {:8.1} GFLOP/s ({:3.0}%)",
            format.name(),
            bytes / 1e9,
            100.0 * bytes / read,
            work / 1e9,
            100.0 * work / flops
        );
    }
}
