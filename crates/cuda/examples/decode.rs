//! Where the time of one token goes, at the sizes of a Qwen3 of 4 billion weights: each op of a layer, then whole
//! layers. `cargo run --release -p halfbyte-cuda --example decode`. Weights are those of eight layers in turn, so that
//! they come from memory and not from its cache.

use std::time::Instant;

use halfbyte_cuda::{Cuda, Device, Driver, ScratchNeed, measure};
use halfbyte_ops::best::Best;
use halfbyte_ops::{
    Backend, Buffer, Cache, CacheFormat, Fresh, Heads, Keep, Matrix, Norm, Product, Result, Rows, Vector,
    Weight, WeightFormat,
};

const HIDDEN: usize = 2560;
const FED: usize = 9728;
const HEADS: (usize, usize, usize) = (32, 8, 128);
const QUERIES: usize = HEADS.0 * HEADS.2;
const KEYS: usize = HEADS.1 * HEADS.2;
const VOCABULARY: usize = 151_936;
const CONTEXT: usize = 8192;
const LAYERS: usize = 8;
const ALL_LAYERS: usize = 36;
const ARENA: usize = 3 << 30;
const EPS: f32 = 1e-6;

struct Layer {
    q: Matrix,
    k: Matrix,
    v: Matrix,
    o: Matrix,
    gate: Matrix,
    up: Matrix,
    down: Matrix,
    cache: Cache,
}

/// What one token needs beside the layers.
struct Values {
    residual: Rows,
    normed: Rows,
    q: Rows,
    k: Rows,
    v: Rows,
    attended: Rows,
    activated: Rows,
    turns: Rows,
    gain: Vector,
    head_gain: Vector,
}

/// Buffers one after the other.
struct Place(usize);

impl Place {
    fn take(&mut self, bytes: usize) -> Buffer {
        let buffer = Buffer { offset: self.0, bytes };
        self.0 = (self.0 + bytes).next_multiple_of(256);
        assert!(self.0 <= ARENA, "the arena is too small for this");
        buffer
    }

    fn rows(&mut self, rows: usize, columns: usize) -> Rows {
        Rows::new(self.take(Rows::bytes(rows, columns)), rows, columns)
    }

    fn vector(&mut self, len: usize) -> Vector {
        Vector { buffer: self.take(len * 4), len }
    }

    fn matrix(&mut self, rows: usize, columns: usize, format: WeightFormat) -> Matrix {
        let buffer = self.take(format.bytes(rows, columns));
        Matrix { weight: Weight { buffer, rows, columns, format }, bias: None }
    }

    fn layer(&mut self) -> Layer {
        let (kv_heads, head_dim) = (HEADS.1, HEADS.2);
        let format = CacheFormat::Bf16;
        let buffer = self.take(Cache::bytes(format, kv_heads, head_dim, CONTEXT));
        let cache = Cache { buffer, format, kv_heads, head_dim, capacity: CONTEXT };
        let mut matrix = |rows, columns| self.matrix(rows, columns, WeightFormat::Nvfp4);
        Layer {
            q: matrix(QUERIES, HIDDEN),
            k: matrix(KEYS, HIDDEN),
            v: matrix(KEYS, HIDDEN),
            o: matrix(HIDDEN, QUERIES),
            gate: matrix(FED, HIDDEN),
            up: matrix(FED, HIDDEN),
            down: matrix(HIDDEN, FED),
            cache,
        }
    }

    fn values(&mut self, tokens: usize) -> Values {
        Values {
            residual: self.rows(tokens, HIDDEN),
            normed: self.rows(tokens, HIDDEN).narrow(),
            q: self.rows(tokens, QUERIES),
            k: self.rows(tokens, KEYS),
            v: self.rows(tokens, KEYS),
            attended: self.rows(tokens, QUERIES).narrow(),
            activated: self.rows(tokens, FED).narrow(),
            turns: self.rows(tokens, HEADS.2),
            gain: self.vector(HIDDEN),
            head_gain: self.vector(HEADS.2),
        }
    }
}

impl Values {
    fn heads(&self) -> [Heads; 2] {
        [self.q, self.k].map(|x| Heads { raw: x, norm: Some(self.head_gain), out: x })
    }

    fn qkv(&self, layer: &Layer) -> [Product; 3] {
        [Product::new(layer.q, self.q), Product::new(layer.k, self.k), Product::new(layer.v, self.v)]
    }

    fn added(&self, matrix: Matrix) -> [Product; 1] {
        [Product { matrix, out: self.residual, added: Some(self.residual) }]
    }

    fn norm(&self) -> Norm {
        Norm { x: self.residual, rounded: None, gain: self.gain, eps: EPS, out: self.normed }
    }

    fn attend(&self, cuda: &mut Cuda, layer: &Layer, position: usize) -> Result<()> {
        let [queries, keys] = self.heads();
        let keep = Keep { values: self.v, start: position, cache: &layer.cache };
        let fresh = Fresh { queries, keys, eps: EPS, turns: self.turns, keep };
        cuda.heads_attend(fresh, None, self.attended)
    }

    /// All of a layer, as `model::block` has it.
    fn forward(&self, cuda: &mut Cuda, layer: &Layer, position: usize) -> Result<()> {
        cuda.normed_linear(self.norm(), &self.qkv(layer))?;
        self.attend(cuda, layer, position)?;
        cuda.linear(self.attended, &self.added(layer.o))?;
        cuda.normed_gated(self.norm(), layer.gate, layer.up, None, self.activated)?;
        cuda.linear(self.activated, &self.added(layer.down))
    }
}

/// Seconds of one call and what of it the host takes: the best of five rounds of 200.
fn seconds(cuda: &mut Cuda, mut op: impl FnMut(&mut Cuda, usize) -> Result<()>) -> Result<(f64, f64)> {
    let mut best = (f64::INFINITY, f64::INFINITY);
    let wait = |cuda: &mut Cuda| cuda.read_bytes(Buffer { offset: 0, bytes: 4 }, &mut [0; 4]);
    for _ in 0..5 {
        wait(cuda)?;
        let start = Instant::now();
        for call in 0..200 {
            op(cuda, call)?;
        }
        let host = start.elapsed().as_secs_f64() / 200.0;
        wait(cuda)?;
        best = (best.0.min(start.elapsed().as_secs_f64() / 200.0), best.1.min(host));
    }
    Ok(best)
}

fn show(what: &str, (all, host): (f64, f64), bytes: usize) {
    let gigabytes = bytes as f64 / all / 1e9;
    println!("{what:<40} {:>8.2} us ({:>6.2} of the host) {gigabytes:>6.0} GB/s", all * 1e6, host * 1e6);
}

fn products(cuda: &mut Cuda, layers: &[Layer], head: Matrix, logits: Rows, at: &Values) -> Result<()> {
    let bytes = |matrices: &[Matrix]| matrices.iter().map(|matrix| matrix.weight.buffer.bytes).sum::<usize>();
    let tokens = at.residual.rows;
    let name = |what: &str| format!("{what}, {tokens} tokens");
    let of = |call: usize| &layers[call % LAYERS];
    let Layer { q, k, v, o, gate, up, down, .. } = layers[0];
    let time = seconds(cuda, |cuda, call| cuda.normed_linear(at.norm(), &at.qkv(of(call))))?;
    show(&name("norm, q, k, v"), time, bytes(&[q, k, v]));
    let time = seconds(cuda, |cuda, call| cuda.linear(at.attended, &at.added(of(call).o)))?;
    show(&name("o"), time, bytes(&[o]));
    let time = seconds(cuda, |cuda, call| {
        cuda.normed_gated(at.norm(), of(call).gate, of(call).up, None, at.activated)
    })?;
    show(&name("norm, gate, up"), time, bytes(&[gate, up]));
    let time = seconds(cuda, |cuda, call| cuda.linear(at.activated, &at.added(of(call).down)))?;
    show(&name("down"), time, bytes(&[down]));
    let time = seconds(cuda, |cuda, _| cuda.normed_linear(at.norm(), &[Product::new(head, logits)]))?;
    show(&name("norm, head, int8"), time, bytes(&[head]));
    Ok(())
}

fn others(cuda: &mut Cuda, layers: &[Layer], at: &Values) -> Result<()> {
    let time = seconds(cuda, |cuda, _| cuda.rms_norm(at.residual, at.gain, EPS, at.normed))?;
    show("rms_norm", time, HIDDEN * 6);
    for position in [31, 511, 4095, CONTEXT - 1] {
        let time = seconds(cuda, |cuda, call| at.attend(cuda, &layers[call % LAYERS], position))?;
        show(&format!("heads, attend at {position}"), time, (position + 1) * KEYS * 4);
        let time = seconds(cuda, |cuda, call| at.forward(cuda, &layers[call % LAYERS], position))?;
        show(&format!("layer at {position}"), time, (position + 1) * KEYS * 4 + 57_000_000);
        println!("  all {ALL_LAYERS} of them: {:.2} ms", time.0 * 1e3 * ALL_LAYERS as f64);
    }
    Ok(())
}

/// A backend whose arena is full of numbers.
fn filled(device: &Device) -> Result<Cuda> {
    let (heads, _, head_dim) = HEADS;
    let need = ScratchNeed { tokens: 8, heads, head_dim, context: CONTEXT, decodes_before: false };
    let scratch = Buffer { offset: ARENA, bytes: need.bytes() };
    let mut cuda = Cuda::new(device, ARENA + scratch.bytes, scratch)?;
    measure::fill(&mut cuda, Buffer { offset: 0, bytes: ARENA })?;
    println!("{}", cuda.describe());
    Ok(cuda)
}

fn main() -> Result<()> {
    let device = Device::open(Driver::load()?, 0)?;
    let mut cuda = filled(&device)?;
    let mut place = Place(256);
    let layers: Vec<Layer> = (0..LAYERS).map(|_| place.layer()).collect();
    let head = place.matrix(VOCABULARY, HIDDEN, WeightFormat::Int8);
    for tokens in [1, 8] {
        let (at, logits) = (place.values(tokens), place.rows(tokens, VOCABULARY));
        products(&mut cuda, &layers, head, logits, &at)?;
        if tokens == 1 {
            for count in [1, 20] {
                let mut best = vec![Best::default(); count];
                let time = seconds(&mut cuda, |cuda, _| cuda.best(logits, &mut best).map(|_| ()))?;
                show(&format!("the best {count} of the logits, read"), time, VOCABULARY * 4);
            }
            others(&mut cuda, &layers, &at)?;
        }
    }
    Ok(())
}
