//! Prints how fast products, attention and the optimizer are, against the ceilings, for one shape:
//! `cargo run --release -p halfbyte-cpu --example kernels -- [threads] [kernel set] [linear|update|learn|attend]`

use std::time::Instant;

use halfbyte_cpu::{Cpu, Isa, measure};
use halfbyte_formats::state::{Average, adamw};
use halfbyte_ops::learn::{Factors, in_parts};
use halfbyte_ops::update::{Kept, Recipe, Step};
use halfbyte_ops::{
    Backend, Buffer, Cache, CacheFormat, Matrix, Product, Rows, Sight, Weight, WeightFormat, WeightRows,
};

fn main() {
    let mut arguments = std::env::args().skip(1);
    let threads: usize = arguments.next().and_then(|n| n.parse().ok()).unwrap_or(2);
    let (name, only) = (arguments.next(), arguments.next());
    let wanted = |what: &str| only.as_deref().is_none_or(|only| only == what);
    if !["linear", "update", "learn", "attend"].into_iter().any(wanted) {
        eprintln!("{only:?} is none of linear, update, learn, attend");
        std::process::exit(2);
    }
    let isa =
        Isa::ALL.into_iter().find(|isa| Some(isa.name()) == name.as_deref()).unwrap_or_else(Isa::detect);
    let mut reader = measure::Reader::new(isa, threads, 1 << 30).expect("memory to read");
    let read = (0..4).map(|_| reader.pass().expect("reads")).fold(0.0, f64::max);
    let flops = (0..3).map(|_| measure::arithmetic(isa, threads).expect("computes")).fold(0.0, f64::max);
    println!("{isa}, {threads} threads: reads {:.1} GB/s, computes {:.2} TFLOP/s", read / 1e9, flops / 1e12);
    let mut cpu = Cpu::new(isa, threads, 1200 << 20, Buffer { offset: 1100 << 20, bytes: 100 << 20 })
        .expect("a backend");
    if wanted("linear") {
        let wide = [1, 2, 4, 8, 16, 64, 512];
        for format in [WeightFormat::Nvfp4, WeightFormat::Int8, WeightFormat::Bf16, WeightFormat::F32] {
            linear(&mut cpu, format, (1536 * 8, 4608), &wide, read, flops);
        }
        for shape in [(1536, 576), (576, 1536)] {
            linear(&mut cpu, WeightFormat::Nvfp4, shape, &[1, 32, 64, 128, 256, 512], read, flops);
        }
    }
    for format in [WeightFormat::Nvfp4, WeightFormat::Int8].into_iter().filter(|_| wanted("update")) {
        learn(&mut cpu, threads, format, Recipe::DEFAULT);
    }
    if wanted("learn") {
        for shape in [(1536, 576), (576, 1536), (576, 576), (192, 576)] {
            learn_from_factors(&mut cpu, threads, WeightFormat::Nvfp4, shape, true);
        }
        learn_from_factors(&mut cpu, threads, WeightFormat::Int8, (2048, 576), false);
    }
    if wanted("attend") {
        attend(&mut cpu);
    }
}

fn attend(cpu: &mut Cpu) {
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

/// A weight with everything it learns with, and then the place of the next thing.
fn learning(
    cpu: &mut Cpu,
    format: WeightFormat,
    recipe: Recipe,
    (rows, columns): (usize, usize),
) -> (Weight, Kept, usize) {
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
    for buffer in [remainder, moment, kept.second] {
        cpu.write_bytes(buffer, &vec![0; buffer.bytes]).expect("fits");
    }
    let (count, blocks) = (rows * columns, rows * columns / 16);
    // Every block has a largest code under which its scale stays.
    let weights = match format {
        WeightFormat::Int8 => WeightRows::Int8 { codes: &vec![100; count], scales: &vec![117; blocks] },
        _ => WeightRows::Nvfp4 { codes: &vec![0x7A; count / 2], scales: &vec![0x38; blocks], global: 0.01 },
    };
    cpu.write_weight(&of, 0, weights).expect("fits");
    (of, kept, end)
}

fn step(recipe: Recipe, number: u64) -> Step {
    let adamw = adamw::Step::new(&adamw::Settings::default(), 1e-6, number);
    Step { recipe, adamw, average: Average::new(0.95), seed: 1, step: number, tensor: 1 }
}

fn numbers(count: usize) -> Vec<f32> {
    (0..count).map(|i| ((i * 7919 % 8191) as f32 - 4095.0) * 1e-5).collect()
}

/// Times steps of the optimizer on a weight that a cache holds and on one that none does: what they take of a core, so
/// that any number of threads compares.
fn learn(cpu: &mut Cpu, threads: usize, format: WeightFormat, recipe: Recipe) {
    for (rows, columns, repeats) in [(128, 576, 3000), (49152, 576, 12)] {
        let (of, kept, offset) = learning(cpu, format, recipe, (rows, columns));
        let gradient = Rows::new(Buffer { offset, bytes: 0 }, rows, columns);
        cpu.write(gradient.buffer, &numbers(rows * columns)).expect("fits");
        let mut best = f64::MAX;
        for number in 1..=repeats {
            let step = step(recipe, number);
            let begin = Instant::now();
            cpu.update(&of, 0, gradient, &kept, &step).expect("fits");
            best = best.min(begin.elapsed().as_secs_f64());
        }
        let time = best * 1e9 * threads as f64 / (rows * columns / 16) as f64;
        println!(
            "update {:6} {rows:5}x{columns:4}: {time:6.2} ns of a core for 16 parameters",
            format.name()
        );
    }
}

/// Times matrices that learn from the factors of their gradients, of 1024 tokens: the gradient first, and row by
/// row. There are so many that no cache near a core holds them.
fn learn_from_factors(
    cpu: &mut Cpu,
    threads: usize,
    format: WeightFormat,
    (rows, columns): (usize, usize),
    narrow: bool,
) {
    let (tokens, recipe, count) = (1024, Recipe::DEFAULT, (28 << 20) / (rows * columns));
    let (of, kept, mut offset) = learning(cpu, format, recipe, (count * rows, columns));
    let mut side = |cpu: &mut Cpu, columns: usize| {
        let [wide, taken] = [(); 2].map(|()| {
            let rows = Rows::new(Buffer { offset, bytes: 0 }, tokens, columns);
            offset += Rows::bytes(tokens, columns).next_multiple_of(64);
            rows
        });
        cpu.write(wide.buffer, &numbers(tokens * columns)).expect("fits");
        cpu.copy(wide, taken.narrow()).expect("fits");
        (wide, taken.narrow())
    };
    let ((dy, narrow_dy), (_, x)) = (side(cpu, rows), side(cpu, columns));
    let dy = if narrow { narrow_dy } else { dy };
    let room = Buffer { offset, bytes: rows * columns * 4 };
    cpu.tallies().expect("counts");
    let mut best = [(f64::MAX, f64::MAX); 2];
    for number in 0..4 * count {
        let factors = Factors { first: number % count * rows, dy, x, exact: false, embedded: None };
        let step = step(recipe, 1 + (number / count) as u64);
        for (apart, best) in [true, false].into_iter().zip(&mut best) {
            let begin = Instant::now();
            match apart {
                true => in_parts(cpu, &of, &factors, &kept, &step, room),
                false => cpu.learn(&of, &factors, &kept, &step, room),
            }
            .expect("fits");
            let time = begin.elapsed().as_secs_f64();
            let update = cpu.tallies().expect("counts").time.as_secs_f64();
            *best = (best.0.min(time), best.1.min(update));
        }
    }
    let [apart, row_by_row] = best.map(|(all, update)| {
        let each = update * 1e9 * threads as f64 / (rows * columns / 16) as f64;
        format!("{:8.1} us (update {:7.1} us, {each:5.2} ns of a core for 16)", all * 1e6, update * 1e6)
    });
    println!(
        "learn {:6} {rows:5}x{columns:4}: gradient first {apart}, row by row {row_by_row}",
        format.name()
    );
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
