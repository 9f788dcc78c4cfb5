//! One token's ops run again for the next token. From token to token a decoder asks for the same, but for the token, its
//! position, and the cosines and sines that turn its heads: a device that has kept what was asked for once need not be
//! told anew. See [`crate::Backend::again`].

use crate::error::{Result, check};
use crate::testing::{Bench, assert_same_bits, numbers};
use crate::{
    Backend, Buffer, Cache, CacheFormat, Fresh, Heads, Keep, Matrix, Norm, Product, Rows, Vector, Weight,
    WeightFormat,
};

/// A token behind those in the cache.
#[derive(Clone, Copy, Debug)]
pub struct Next<'a> {
    /// Which.
    pub token: u32,
    /// The table that it is looked up in.
    pub table: &'a Weight,
    /// Its position.
    pub start: usize,
    /// Where the first layer keeps the tokens before it: which of several conversations it belongs to.
    pub cache: Buffer,
    /// Cosines and sines of its position.
    pub turns: &'a [f32],
    /// Where its ops expect them.
    pub at: Rows,
}

/// The shapes that fit: a token of the table, turns as many as there is room for.
pub fn check_shapes(next: &Next<'_>) -> Result<()> {
    let Next { token, table, turns, at, .. } = *next;
    check((token as usize) < table.rows && turns.len() == at.columns && at.rows == 1, "again", || {
        format!("token {token} of {}, {} turns for {}x{}", table.rows, turns.len(), at.rows, at.columns)
    })
}

/// A token by what was recorded of another has the bits that it has by its own ops, each done by itself; and so has one
/// that is recorded.
pub fn contract<B: Backend>(make: impl Fn(usize) -> B) {
    repeated(make);
}

/// The same; how many of six tokens were done so: four, where a device records the second of a kind.
pub fn repeated<B: Backend>(make: impl Fn(usize) -> B) -> usize {
    // In one split of keys and in several, with a window and without.
    let starts = [0, 70, 139, 5, 64, 159];
    let all = |alone: bool| {
        let mut bench = Bench::new(&make);
        let model = Model::new(&mut bench);
        if alone {
            bench.backend.profile().unwrap();
        }
        starts.map(|start| model.token(&mut bench, start))
    };
    let (together, alone) = (all(false), all(true));
    for (((got, _), (want, _)), start) in together.iter().zip(&alone).zip(starts) {
        assert!(want.iter().all(|x| x.is_finite()));
        assert_same_bits(got, want, &format!("a token at {start}"));
    }
    assert!(!alone.iter().any(|(_, again)| *again), "kernels that are timed are started one by one");
    together.iter().filter(|(_, again)| *again).count()
}

const HIDDEN: usize = 320;
const FED: usize = 832;
const HEADS: (usize, usize, usize) = (4, 2, 64);
const LAYERS: usize = 2;
const CONTEXT: usize = 160;

struct Layer {
    q: Matrix,
    k: Matrix,
    v: Matrix,
    o: Matrix,
    gate: Matrix,
    up: Matrix,
    down: Matrix,
    cache: Cache,
    window: Option<usize>,
}

/// A few layers, and what a token needs beside them.
struct Model {
    layers: Vec<Layer>,
    table: Matrix,
    head: Matrix,
    gain: Vector,
    residual: Rows,
    normed: Rows,
    q: Rows,
    k: Rows,
    v: Rows,
    attended: Rows,
    activated: Rows,
    turns: Rows,
    logits: Rows,
}

impl Model {
    fn new<B: Backend>(bench: &mut Bench<B>) -> Model {
        let (heads, kv_heads, head_dim) = HEADS;
        let mut seed = 0;
        let mut matrix = |bench: &mut Bench<B>, rows: usize, columns: usize, format| {
            seed += 1;
            let (weight, ..) = bench.weight(format, rows, columns, &numbers(seed, rows * columns));
            Matrix { weight, bias: None }
        };
        let (queries, keys) = (heads * head_dim, kv_heads * head_dim);
        let layers = (0..LAYERS).map(|layer| {
            let bytes = Cache::bytes(CacheFormat::Bf16, kv_heads, head_dim, CONTEXT);
            let buffer = bench.buffer(bytes);
            bench.backend.write_bytes(buffer, &vec![0; bytes]).unwrap();
            let mut nvfp4 = |rows, columns| matrix(bench, rows, columns, WeightFormat::Nvfp4);
            Layer {
                q: nvfp4(queries, HIDDEN),
                k: nvfp4(keys, HIDDEN),
                v: nvfp4(keys, HIDDEN),
                o: nvfp4(HIDDEN, queries),
                gate: nvfp4(FED, HIDDEN),
                up: nvfp4(FED, HIDDEN),
                down: nvfp4(HIDDEN, FED),
                cache: Cache { buffer, format: CacheFormat::Bf16, kv_heads, head_dim, capacity: CONTEXT },
                window: (layer == 1).then_some(80),
            }
        });
        let layers = layers.collect();
        Model {
            layers,
            table: matrix(bench, 300, HIDDEN, WeightFormat::Int8),
            head: matrix(bench, 1000, HIDDEN, WeightFormat::Int8),
            gain: bench.vector(&numbers(90, HIDDEN)),
            residual: bench.output(1, HIDDEN),
            normed: bench.output(1, HIDDEN).narrow(),
            q: bench.output(1, queries),
            k: bench.output(1, keys),
            v: bench.output(1, keys),
            attended: bench.output(1, queries).narrow(),
            activated: bench.output(1, FED).narrow(),
            turns: bench.output(1, head_dim),
            logits: bench.output(1, 1000),
        }
    }

    /// The logits of a token behind `start` others, by its ops or as they were recorded, and which.
    fn token<B: Backend>(&self, bench: &mut Bench<B>, start: usize) -> (Vec<f32>, bool) {
        let turns = numbers(91 + start as u32, self.turns.columns);
        let (table, cache, token) =
            (&self.table.weight, self.layers[0].cache.buffer, (start * 7 % self.table.weight.rows) as u32);
        let next = Next { token, table, start, cache, turns: &turns, at: self.turns };
        let again = bench.backend.again(&next).unwrap();
        if !again {
            self.ops(&mut bench.backend, &next);
            assert!(bench.backend.recorded(true).unwrap());
        }
        (bench.read(self.logits), again)
    }

    fn ops<B: Backend>(&self, backend: &mut B, next: &Next<'_>) {
        let start = next.start;
        let norm = Norm { x: self.residual, rounded: None, gain: self.gain, eps: 1e-6, out: self.normed };
        backend.write(self.turns.buffer, next.turns).unwrap();
        backend.embed(&[next.token], &self.table.weight, self.residual).unwrap();
        for layer in &self.layers {
            let added = |matrix| [Product { matrix, out: self.residual, added: Some(self.residual) }];
            let qkv = [(layer.q, self.q), (layer.k, self.k), (layer.v, self.v)];
            backend.normed_linear(norm, &qkv.map(|(matrix, out)| Product::new(matrix, out))).unwrap();
            let [queries, keys] = [self.q, self.k].map(|x| Heads { raw: x, norm: None, out: x });
            let keep = Keep { values: self.v, start, cache: &layer.cache };
            let fresh = Fresh { queries, keys, eps: 1e-6, turns: self.turns, keep };
            backend.heads_attend(fresh, layer.window, self.attended).unwrap();
            backend.linear(self.attended, &added(layer.o)).unwrap();
            backend.normed_gated(norm, layer.gate, layer.up, None, self.activated).unwrap();
            backend.linear(self.activated, &added(layer.down)).unwrap();
        }
        backend.normed_linear(norm, &[Product::new(self.head, self.logits)]).unwrap();
    }
}
