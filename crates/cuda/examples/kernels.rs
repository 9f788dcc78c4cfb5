//! Times of the ops that matter, on the first device, at the sizes of a Qwen3 of 4 billion weights:
//! `cargo run --release -p halfbyte-cuda --example kernels`.

use std::time::Instant;

use halfbyte_cuda::{Cuda, Device, Driver};
use halfbyte_ops::{
    Backend, Buffer, Cache, CacheFormat, Matrix, Product, Result, Rows, Sight, Vector, Weight, WeightFormat,
};

const HIDDEN: usize = 2560;
const FED: usize = 9728;
const HEADS: (usize, usize, usize) = (32, 8, 128);
const CONTEXT: usize = 8192;

/// A backend with buffers handed out in order.
struct Bench {
    cuda: Cuda,
    next: usize,
}

impl Bench {
    fn buffer(&mut self, bytes: usize) -> Buffer {
        let buffer = Buffer { offset: self.next, bytes };
        self.next = (self.next + bytes).next_multiple_of(256);
        buffer
    }

    fn rows(&mut self, rows: usize, columns: usize) -> Rows {
        Rows::new(self.buffer(Rows::bytes(rows, columns)), rows, columns)
    }

    fn matrix(&mut self, rows: usize, columns: usize, format: WeightFormat) -> Matrix {
        let buffer = self.buffer(format.bytes(rows, columns));
        Matrix { weight: Weight { buffer, rows, columns, format }, bias: None }
    }

    /// Seconds of one call: the best of five rounds of ten.
    fn seconds(&mut self, mut op: impl FnMut(&mut Cuda) -> Result<()>) -> Result<f64> {
        let mut best = f64::INFINITY;
        for _ in 0..5 {
            self.wait()?;
            let start = Instant::now();
            for _ in 0..10 {
                op(&mut self.cuda)?;
            }
            self.wait()?;
            best = best.min(start.elapsed().as_secs_f64() / 10.0);
        }
        Ok(best)
    }

    fn wait(&mut self) -> Result<()> {
        self.cuda.read_bytes(Buffer { offset: 0, bytes: 4 }, &mut [0; 4])
    }
}

fn report(what: &str, seconds: f64, operations: f64, bytes: f64) {
    let (teraflops, gigabytes) = (operations / seconds / 1e12, bytes / seconds / 1e9);
    println!("{what:<44} {:>9.1} us {teraflops:>8.1} TFLOP/s {gigabytes:>8.0} GB/s", seconds * 1e6);
}

fn products(bench: &mut Bench) -> Result<()> {
    for format in [WeightFormat::Nvfp4, WeightFormat::Int8, WeightFormat::Bf16] {
        let start = bench.next;
        let (gate, up) = (bench.matrix(FED, HIDDEN, format), bench.matrix(FED, HIDDEN, format));
        let down = bench.matrix(HIDDEN, FED, format);
        let bytes = format.bytes(FED, HIDDEN) as f64;
        for tokens in [1, 8, 32, 128, 1024, 8192] {
            let here = bench.next;
            let (x, y) = (bench.rows(tokens, HIDDEN).narrow(), bench.rows(tokens, HIDDEN));
            let mid = bench.rows(tokens, FED).narrow();
            let operations = (2 * tokens * FED * HIDDEN) as f64;
            let seconds = bench.seconds(|cuda| cuda.gated(x, gate, up, None, mid))?;
            report(
                &format!("gated, {}, {tokens} tokens", format.name()),
                seconds,
                2.0 * operations,
                2.0 * bytes,
            );
            let seconds = bench.seconds(|cuda| cuda.linear(mid, &[Product::new(down, y)]))?;
            report(&format!("down, {}, {tokens} tokens", format.name()), seconds, operations, bytes);
            bench.next = here;
        }
        bench.next = start;
    }
    Ok(())
}

fn attention(bench: &mut Bench) -> Result<()> {
    let (heads, kv_heads, head_dim) = HEADS;
    for format in [CacheFormat::Bf16, CacheFormat::Int8] {
        let start = bench.next;
        let buffer = bench.buffer(Cache::bytes(format, kv_heads, head_dim, CONTEXT));
        let cache = Cache { buffer, format, kv_heads, head_dim, capacity: CONTEXT };
        for (queries, first) in [(1, 511), (1, CONTEXT - 1), (1024, 0), (CONTEXT, 0)] {
            let here = bench.next;
            let [q, out] = [(); 2].map(|()| bench.rows(queries, heads * head_dim));
            let seen = queries * first + queries * (queries + 1) / 2;
            let operations = (4 * seen * heads * head_dim) as f64;
            let bytes = (buffer.bytes * (first + queries) / CONTEXT) as f64;
            let sight = Sight { start: first, window: None };
            let seconds = bench.seconds(|cuda| cuda.attend(q, &cache, sight, out))?;
            let what = format!("attend, {}, {queries} queries at {first}", format.name());
            report(&what, seconds, operations, bytes);
            bench.next = here;
        }
        bench.next = start;
    }
    Ok(())
}

fn rows(bench: &mut Bench) -> Result<()> {
    for tokens in [1, 8192] {
        let (x, out) = (bench.rows(tokens, HIDDEN), bench.rows(tokens, HIDDEN).narrow());
        let gain = Vector { buffer: bench.buffer(HIDDEN * 4), len: HIDDEN };
        let seconds = bench.seconds(|cuda| cuda.rms_norm(x, gain, 1e-6, out))?;
        report(&format!("rms_norm, {tokens} tokens"), seconds, 0.0, (tokens * HIDDEN * 6) as f64);
        let seconds = bench.seconds(|cuda| cuda.add(x, x))?;
        report(&format!("add, {tokens} tokens"), seconds, 0.0, (tokens * HIDDEN * 12) as f64);
    }
    Ok(())
}

fn main() -> Result<()> {
    let device = Device::open(Driver::load()?, 0)?;
    let scratch = Buffer { offset: 2 << 30, bytes: 64 << 20 };
    let start = Instant::now();
    let cuda = Cuda::new(&device, scratch.offset + scratch.bytes, scratch)?;
    println!("{}: opened in {:.0} ms", cuda.describe(), start.elapsed().as_secs_f64() * 1e3);
    let mut bench = Bench { cuda, next: 256 };
    rows(&mut bench)?;
    products(&mut bench)?;
    attention(&mut bench)?;
    println!("all of it, translation of the kernels included: {:.1} s", start.elapsed().as_secs_f64());
    Ok(())
}
