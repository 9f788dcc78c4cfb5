//! One token's stages, put down one after the other and walked along by one kernel. See `kernels/stage.cuh`.

use halfbyte_ops::Result;

use crate::Cuda;
use crate::attend::OneQuery;
use crate::driver::LaunchAttribute;
use crate::launch::{DevicePtr, Grid, args};

/// Threads of a block.
const THREADS: usize = 512;
/// Bytes of the warps' rings, and of the stages that a block knows.
const RINGS: usize = THREADS / 32 * 4 * (1024 + 128);
const KNOWN: usize = 8 * size_of::<[u32; WORDS]>();
/// Sums that a block's warps share out beside those of its units, see `kernels/one_token.cuh`.
pub(crate) const WARPS: usize = THREADS / 32;
/// Words of a stage: numbers, then places.
pub(crate) const WORDS: usize = NUMBERS + 2 * PLACES;
const NUMBERS: usize = 16;
const PLACES: usize = 12;
/// Words in front of the stages: blocks that arrived at the ends of stages, in a line of its own.
pub(crate) const FRONT: usize = 32;
/// Stages of the first launch after the host has waited: the device begins while the rest is still put down. And of any
/// other.
const FIRST: usize = 10;
const MOST: usize = 1024;

/// What a stage does, as the kernel numbers it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Linear,
    Gated,
    Attend,
}

/// A stage as the kernel takes it.
pub(crate) struct Stage {
    /// For a profile.
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
    /// What attends, where something does.
    pub(crate) query: Option<OneQuery>,
    /// The kernel that takes it, if not any does.
    pub(crate) kernel: Option<&'static str>,
    /// Those behind the kind.
    pub(crate) numbers: Vec<u32>,
    pub(crate) places: Vec<DevicePtr>,
    /// Bytes of shared memory that a block works with.
    pub(crate) work: usize,
}

/// Stages that were put down and not started yet.
#[derive(Default)]
pub(crate) struct Chain {
    words: Vec<u32>,
    /// Stages that attend, by their numbers.
    queries: Vec<(usize, OneQuery)>,
    last: Option<Kind>,
    kernel: Option<&'static str>,
    work: usize,
    /// Whether some were started since the host has waited.
    pub(crate) begun: bool,
}

impl Cuda {
    /// Blocks that share a stage.
    pub(crate) fn chain_blocks(&self) -> usize {
        self.device.properties.multiprocessors as usize
    }

    /// Whether a stage can be put down.
    pub(crate) fn chain_takes(&self, work: usize) -> bool {
        RINGS + KNOWN + work <= self.device.properties.shared as usize
    }

    /// Puts a stage down behind the others.
    pub(crate) fn put_down(&mut self, stage: Stage) -> Result<()> {
        // A query's older keys are read before the stage in front has ended: it may not be one that keeps keys.
        let follows = self.chain.last == Some(Kind::Attend) && stage.kind == Kind::Attend;
        let other =
            self.chain.kernel.is_some() && stage.kernel.is_some() && self.chain.kernel != stage.kernel;
        if follows || other {
            self.start_chain()?;
        }
        let chain = &mut self.chain;
        chain.kernel = chain.kernel.or(stage.kernel);
        chain.work = chain.work.max(stage.work);
        chain.last = Some(stage.kind);
        if chain.words.is_empty() {
            chain.words.resize(FRONT, 0);
        }
        let first = chain.words.len();
        chain.queries.extend(stage.query.map(|query| ((first - FRONT) / WORDS, query)));
        chain.words.push(stage.kind as u32);
        chain.words.extend(&stage.numbers);
        chain.words.resize(first + NUMBERS, 0);
        chain.words.extend(stage.places.iter().flat_map(|place| [place.0 as u32, (place.0 >> 32) as u32]));
        chain.words.resize(first + WORDS, 0);
        if self.profile.is_some() || !self.device.properties.cooperative {
            return self.timed(stage.name, Cuda::start_chain);
        }
        let most = if self.chain.begun { MOST } else { FIRST };
        if self.chain.words.len() >= FRONT + most * WORDS { self.start_chain() } else { Ok(()) }
    }

    /// Starts what was put down.
    pub(crate) fn start_chain(&mut self) -> Result<()> {
        if self.chain.words.is_empty() {
            return Ok(());
        }
        let words = std::mem::take(&mut self.chain.words);
        let kernel = self.chain.kernel.take().unwrap_or("chain_bf16");
        let shared = RINGS + KNOWN + std::mem::take(&mut self.chain.work);
        let stages = (words.len() - FRONT) / WORDS;
        let list = self.upload("chain", &words)?;
        let queries = std::mem::take(&mut self.chain.queries);
        self.note_queries(&queries);
        let arguments = args![list, stages];
        let grid = Grid { shared: shared as u32, ..Grid::line(self.chain_blocks(), THREADS as u32) };
        let together = (stages > 1).then_some(LaunchAttribute::TOGETHER);
        self.device.start(kernel, grid, arguments, together)?;
        self.chain.last = None;
        self.chain.begun = true;
        (self.chain.words, self.chain.queries) = (words, queries);
        self.chain.words.clear();
        self.chain.queries.clear();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use halfbyte_ops::testing::{Bench, numbers};
    use halfbyte_ops::{
        Backend, Cache, CacheFormat, Fresh, Heads, Keep, Matrix, Next, Norm, Product, Rows, Vector,
        WeightFormat,
    };

    use super::*;
    use crate::tests::{device, on};

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
        fn new(bench: &mut Bench<Cuda>) -> Model {
            let (heads, kv_heads, head_dim) = HEADS;
            let mut seed = 0;
            let mut matrix = |bench: &mut Bench<Cuda>, rows: usize, columns: usize, format| {
                seed += 1;
                let (weight, ..) = bench.weight(format, rows, columns, &numbers(seed, rows * columns));
                Matrix { weight, bias: None }
            };
            let (queries, keys) = (heads * head_dim, kv_heads * head_dim);
            let layers = (0..LAYERS).map(|_| {
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

        /// The logits of a token behind `start` others, by its ops or as they were recorded.
        fn token(&self, bench: &mut Bench<Cuda>, start: usize) -> Vec<u32> {
            let turns = numbers(91 + start as u32, self.turns.columns);
            let token = (start * 7 % 300) as u32;
            let (table, cache) = (&self.table.weight, self.layers[0].cache.buffer);
            let next = Next { token, table, start, cache, turns: &turns, at: self.turns };
            if !bench.backend.again(&next).unwrap() {
                self.ops(&mut bench.backend, &next);
                assert!(bench.backend.recorded(true).unwrap());
            }
            let logits = bench.read(self.logits);
            assert!(logits.iter().all(|x| x.is_finite()));
            logits.into_iter().map(f32::to_bits).collect()
        }

        fn ops(&self, cuda: &mut Cuda, next: &Next<'_>) {
            let start = next.start;
            let norm = Norm { x: self.residual, rounded: None, gain: self.gain, eps: 1e-6, out: self.normed };
            cuda.write(self.turns.buffer, next.turns).unwrap();
            cuda.embed(&[next.token], &self.table.weight, self.residual).unwrap();
            for layer in &self.layers {
                let added = |matrix| [Product { matrix, out: self.residual, added: Some(self.residual) }];
                let qkv = [(layer.q, self.q), (layer.k, self.k), (layer.v, self.v)];
                cuda.normed_linear(norm, &qkv.map(|(matrix, out)| Product::new(matrix, out))).unwrap();
                let [queries, keys] = [self.q, self.k].map(|x| Heads { raw: x, norm: None, out: x });
                let keep = Keep { values: self.v, start, cache: &layer.cache };
                let fresh = Fresh { queries, keys, eps: 1e-6, turns: self.turns, keep };
                cuda.heads_attend(fresh, None, self.attended).unwrap();
                cuda.linear(self.attended, &added(layer.o)).unwrap();
                cuda.normed_gated(norm, layer.gate, layer.up, None, self.activated).unwrap();
                cuda.linear(self.activated, &added(layer.down)).unwrap();
            }
            cuda.normed_linear(norm, &[Product::new(self.head, self.logits)]).unwrap();
        }
    }

    #[test]
    fn stages_in_one_launch_and_tokens_by_a_recording_have_the_bits_of_stages_by_themselves() {
        let Some(device) = device() else { return };
        let all = |alone: bool| {
            let tokens = std::cell::RefCell::new(Vec::new());
            on(&device, 8 << 20, |make| {
                let mut bench = Bench::new(&make);
                let model = Model::new(&mut bench);
                if alone {
                    bench.backend.profile().unwrap();
                }
                // The second is recorded, those behind it are run from there: in more splits, in fewer.
                let starts = [0, 70, 139, 5, 64, 159];
                tokens.replace(starts.into_iter().map(|start| model.token(&mut bench, start)).collect());
                assert!(alone || bench.backend.recorder.keeps());
            });
            tokens.into_inner()
        };
        assert!(all(false) == all(true));
    }
}
