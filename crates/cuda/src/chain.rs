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
        let queries = std::mem::take(&mut self.chain.queries);
        let kernel = self.chain.kernel.take().unwrap_or("chain_bf16");
        let shared = RINGS + KNOWN + std::mem::take(&mut self.chain.work);
        let stages = (words.len() - FRONT) / WORDS;
        let list = self.upload("chain", &words)?;
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
