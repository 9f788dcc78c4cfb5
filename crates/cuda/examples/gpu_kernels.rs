//! Times of the ops that matter, on the first device, at the sizes of a Qwen3 of 4 billion weights:
//! `cargo run --release -p halfbyte-cuda --example gpu_kernels [PATH OF libcublasLt.so]...`. Products are made by our own
//! kernels and, where it is found, by cuBLASLt.

use std::path::PathBuf;
use std::time::Instant;

use halfbyte_cuda::{Cuda, Device, Driver, ScratchNeed, measure, usual_places};
use halfbyte_formats::state::{Average, adamw};
use halfbyte_ops::update::{Kept, Recipe, Step};
use halfbyte_ops::{
    Backend, Buffer, Cache, CacheFormat, Matrix, Product, Result, Rows, Sight, Vector, Weight, WeightFormat,
};

const HIDDEN: usize = 2560;
const FED: usize = 9728;
const HEADS: (usize, usize, usize) = (32, 8, 128);
const QUERIES: usize = HEADS.0 * HEADS.2;
const KEYS: usize = HEADS.1 * HEADS.2;
const CONTEXT: usize = 8192;
const ARENA: usize = 2 << 30;

/// Backends with buffers handed out in order, the same in each: with our own products, and with the library's.
struct Bench {
    cudas: Vec<Cuda>,
    next: usize,
}

impl Bench {
    /// A backend whose arena is full of numbers.
    fn add(&mut self, device: &Device) -> Result<()> {
        let need = ScratchNeed {
            tokens: CONTEXT,
            heads: HEADS.0,
            head_dim: HEADS.2,
            context: CONTEXT,
            decodes_before: true,
        };
        let scratch = Buffer { offset: ARENA, bytes: need.bytes().max(64 << 20) };
        let mut cuda = Cuda::new(device, ARENA + scratch.bytes, scratch)?;
        measure::fill(&mut cuda, Buffer { offset: 0, bytes: ARENA })?;
        println!("{}", cuda.describe());
        self.cudas.push(cuda);
        Ok(())
    }

    fn buffer(&mut self, bytes: usize) -> Buffer {
        let buffer = Buffer { offset: self.next, bytes };
        self.next = (self.next + bytes).next_multiple_of(256);
        assert!(self.next <= ARENA, "the arena is too small for this");
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
    fn seconds(cuda: &mut Cuda, op: &mut impl FnMut(&mut Cuda) -> Result<()>) -> Result<f64> {
        let mut best = f64::INFINITY;
        let wait = |cuda: &mut Cuda| cuda.read_bytes(Buffer { offset: 0, bytes: 4 }, &mut [0; 4]);
        for _ in 0..5 {
            wait(cuda)?;
            let start = Instant::now();
            for _ in 0..10 {
                op(cuda)?;
            }
            wait(cuda)?;
            best = best.min(start.elapsed().as_secs_f64() / 10.0);
        }
        Ok(best)
    }

    /// One line: an op that is the same with either products.
    fn time(
        &mut self,
        what: &str,
        operations: usize,
        bytes: usize,
        mut op: impl FnMut(&mut Cuda) -> Result<()>,
    ) -> Result<()> {
        let seconds = Bench::seconds(&mut self.cudas[0], &mut op)?;
        println!("{what:<44} {}", figures(seconds, operations, bytes));
        Ok(())
    }

    /// One line: our own products, then the library's.
    fn compare(
        &mut self,
        what: &str,
        operations: usize,
        bytes: usize,
        mut op: impl FnMut(&mut Cuda) -> Result<()>,
    ) -> Result<()> {
        let each = self.cudas.iter_mut().map(|cuda| Bench::seconds(cuda, &mut op));
        let each = each.collect::<Result<Vec<f64>>>()?;
        let columns: Vec<String> = each.iter().map(|seconds| figures(*seconds, operations, bytes)).collect();
        println!("{what:<44} {}", columns.join("  | "));
        Ok(())
    }
}

fn figures(seconds: f64, operations: usize, bytes: usize) -> String {
    let (teraflops, gigabytes) = (operations as f64 / seconds / 1e12, bytes as f64 / seconds / 1e9);
    format!("{:>9.1} us {teraflops:>6.1} TFLOP/s {gigabytes:>5.0} GB/s", seconds * 1e6)
}

fn fed(bench: &mut Bench) -> Result<()> {
    for format in [WeightFormat::Nvfp4, WeightFormat::Int8, WeightFormat::Bf16] {
        let start = bench.next;
        let (gate, up) = (bench.matrix(FED, HIDDEN, format), bench.matrix(FED, HIDDEN, format));
        let down = bench.matrix(HIDDEN, FED, format);
        let bytes = format.bytes(FED, HIDDEN);
        for tokens in [1, 8, 32, 64, 128, 256, 512, 1024, 2048, 8192] {
            let here = bench.next;
            let (x, y) = (bench.rows(tokens, HIDDEN).narrow(), bench.rows(tokens, HIDDEN));
            let mid = bench.rows(tokens, FED).narrow();
            let (operations, name) = (2 * tokens * FED * HIDDEN, format.name());
            let what = format!("gated, {name}, {tokens} tokens");
            bench.compare(&what, 2 * operations, 2 * bytes, |cuda| cuda.gated(x, gate, up, None, mid))?;
            let what = format!("down, {name}, {tokens} tokens");
            bench.compare(&what, operations, bytes, |cuda| cuda.linear(mid, &[Product::new(down, y)]))?;
            bench.next = here;
        }
        bench.next = start;
    }
    Ok(())
}

/// Forward and both gradients of the matrices of a layer, as training has them.
fn trained(bench: &mut Bench) -> Result<()> {
    let start = bench.next;
    let format = WeightFormat::Nvfp4;
    for tokens in [1024, 8192] {
        for (name, outputs, inputs) in [
            ("q", QUERIES, HIDDEN),
            ("k", KEYS, HIDDEN),
            ("o", HIDDEN, QUERIES),
            ("gate", FED, HIDDEN),
            ("down", HIDDEN, FED),
        ] {
            let matrix = bench.matrix(outputs, inputs, format);
            let (x, dy) = (bench.rows(tokens, inputs).narrow(), bench.rows(tokens, outputs).narrow());
            let (y, dx) = (bench.rows(tokens, outputs), bench.rows(tokens, inputs));
            let dw = bench.rows(outputs, inputs);
            let (operations, bytes) = (2 * tokens * outputs * inputs, format.bytes(outputs, inputs));
            let what = |of: &str| format!("{of} of {name}, {tokens} tokens");
            bench
                .compare(&what("y"), operations, bytes, |cuda| cuda.linear(x, &[Product::new(matrix, y)]))?;
            bench.compare(&what("dx"), operations, bytes, |cuda| {
                cuda.linear_input_gradient(dy, &matrix.weight, dx, false)
            })?;
            bench.compare(&what("dw"), operations, 4 * outputs * inputs, |cuda| {
                cuda.linear_weight_gradient(dy, x, false, 0, dw)
            })?;
            bench.next = start;
        }
        let down = bench.matrix(HIDDEN, FED, format);
        let dy = bench.rows(tokens, HIDDEN).narrow();
        let [gate, up, dgate, dup] = [(); 4].map(|()| bench.rows(tokens, FED));
        let (operations, bytes) = (2 * tokens * FED * HIDDEN, format.bytes(HIDDEN, FED));
        bench.compare(&format!("gated_gradient, {tokens} tokens"), operations, bytes, |cuda| {
            cuda.gated_gradient(dy, &down.weight, (gate, up), dgate.narrow(), dup.narrow())
        })?;
        bench.next = start;
    }
    Ok(())
}

/// The optimizer's part of a step: matrices of a layer and a chunk of the table, in the default state. Bytes are those
/// of two passes over the gradient and of the state there and back.
fn learnt(bench: &mut Bench) -> Result<()> {
    let recipe = Recipe::DEFAULT;
    let settings = adamw::Settings::default();
    let (adamw, average) = (adamw::Step::new(&settings, 1e-4, 9), Average::new(settings.beta2));
    let step = Step { recipe, adamw, average, seed: 1, step: 9, tensor: 1 };
    for (name, format, rows, columns) in [
        ("q", WeightFormat::Nvfp4, QUERIES, HIDDEN),
        ("k", WeightFormat::Nvfp4, KEYS, HIDDEN),
        ("o", WeightFormat::Nvfp4, HIDDEN, QUERIES),
        ("gate", WeightFormat::Nvfp4, FED, HIDDEN),
        ("down", WeightFormat::Nvfp4, HIDDEN, FED),
        ("2048 words", WeightFormat::Int8, 2048, HIDDEN),
    ] {
        let start = bench.next;
        let (of, gradient) = (bench.matrix(rows, columns, format).weight, bench.rows(rows, columns));
        let kept = Kept {
            remainder: bench.buffer(recipe.remainder_bytes(format, rows, columns)),
            moment: bench.buffer(recipe.moment_bytes(rows, columns)),
            second: bench.buffer(recipe.second_bytes(rows, columns)),
        };
        let state = of.buffer.bytes + kept.remainder.bytes + kept.moment.bytes;
        let bytes = 2 * (gradient.buffer.bytes + state);
        let what = format!("update of {name}, {rows} x {columns}");
        bench.time(&what, 0, bytes, |cuda| cuda.update(&of, 0, gradient, &kept, &step))?;
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
            let bytes = buffer.bytes * (first + queries) / CONTEXT;
            let sight = Sight { start: first, window: None };
            let what = format!("attend, {}, {queries} queries at {first}", format.name());
            bench
                .time(&what, 4 * seen * heads * head_dim, bytes, |cuda| cuda.attend(q, &cache, sight, out))?;
            bench.next = here;
        }
        bench.next = start;
    }
    Ok(())
}

fn rows(bench: &mut Bench) -> Result<()> {
    let start = bench.next;
    for tokens in [1, 8192] {
        let (x, out) = (bench.rows(tokens, HIDDEN), bench.rows(tokens, HIDDEN).narrow());
        let gain = Vector { buffer: bench.buffer(HIDDEN * 4), len: HIDDEN };
        let what = format!("rms_norm, {tokens} tokens");
        bench.time(&what, 0, tokens * HIDDEN * 6, |cuda| cuda.rms_norm(x, gain, 1e-6, out))?;
        bench.time(&format!("add, {tokens} tokens"), 0, tokens * HIDDEN * 12, |cuda| cuda.add(x, x))?;
    }
    bench.next = start;
    Ok(())
}

fn main() -> Result<()> {
    let start = Instant::now();
    let mut device = Device::open(Driver::load()?, 0)?;
    let mut bench = Bench { cudas: Vec::new(), next: 256 };
    bench.add(&device)?;
    let mut places: Vec<PathBuf> = std::env::args().skip(1).map(Into::into).collect();
    places.extend(usual_places(&[]));
    let free = |device: &Device| device.memory().map(|(free, _)| free >> 20);
    let closed = free(&device)?;
    match device.use_library(&places, 1) {
        Ok(()) => {
            println!("cuBLASLt takes {} MiB of the device", closed.saturating_sub(free(&device)?));
            bench.add(&device)?;
        }
        Err(error) => println!("own products only: {error}"),
    }
    let unused = free(&device)?;
    rows(&mut bench)?;
    fed(&mut bench)?;
    trained(&mut bench)?;
    learnt(&mut bench)?;
    attention(&mut bench)?;
    println!("all kernels take {} MiB of the device", unused.saturating_sub(free(&device)?));
    println!("all of it, translation of the kernels included: {:.1} s", start.elapsed().as_secs_f64());
    Ok(())
}
