//! One token's ops kept as a graph, which the next tokens are computed by: the driver is called once for each. It has
//! copies from pinned memory, the embedding, and the chain; what is another from token to token lies in that memory and
//! is changed there: the token, the turns of its position, and what the position decides of stages that attend. A
//! token whose ops are others, or that the driver does not record, is computed as it is asked for.

use halfbyte_ops::again::{Next, check_shapes};
use halfbyte_ops::{Buffer, Result};

use crate::Cuda;
use crate::arena::bytes_of;
use crate::attend::OneQuery;
use crate::chain::{FRONT, WORDS};
use crate::driver::Graph;
use crate::launch::DevicePtr;

/// What is recorded, or will be.
#[derive(Default)]
pub(crate) struct Recorder {
    /// Whose token was asked for last, of those that were not recorded: the next like it is, for all its kernels are
    /// there by then.
    seen: Option<Like>,
    making: Option<Making>,
    kept: Option<Kept>,
    /// Tokens that are not recorded from this position on: something else belongs to them.
    unfit: Option<(Like, usize)>,
    /// The driver refused to record, and is not asked again.
    refused: bool,
}

/// Tokens whose ops are the same.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Like {
    table: Buffer,
    turns: Buffer,
    cache: Buffer,
}

/// A recording under way, and where in pinned memory what changes lies.
struct Making {
    like: Like,
    start: usize,
    turns_to: DevicePtr,
    turns: Option<usize>,
    token: Option<usize>,
    /// The chain's last list.
    list: usize,
    /// Where the words begin that a position decides.
    queries: Vec<(usize, OneQuery)>,
    /// Whether something else was asked for, which may be another for every token.
    other: bool,
}

struct Kept {
    like: Like,
    graph: Graph,
    turns: usize,
    token: usize,
    queries: Vec<(usize, OneQuery)>,
}

pub(crate) fn again(cuda: &mut Cuda, next: &Next<'_>) -> Result<bool> {
    check_shapes(next)?;
    if cuda.profile.is_some() || cuda.recorder.refused {
        return Ok(false);
    }
    let like = Like { table: next.table.buffer, turns: next.at.buffer, cache: next.cache };
    if let Some(kept) = cuda.recorder.kept.take_if(|kept| kept.like == like) {
        let done = repeat(cuda, &kept, next);
        cuda.recorder.kept = Some(kept);
        return done;
    }
    let unfit = cuda.recorder.unfit.is_some_and(|(of, from)| of == like && next.start >= from);
    if cuda.recorder.seen.replace(like) == Some(like) && !unfit {
        begin(cuda, like, next)?;
    }
    Ok(false)
}

/// False where this token's position wants other ops.
fn repeat(cuda: &mut Cuda, kept: &Kept, next: &Next<'_>) -> Result<bool> {
    let placed = |(_, query): &(usize, OneQuery)| query.placed(cuda, next.start);
    let Some(placed) = kept.queries.iter().map(placed).collect::<Option<Vec<_>>>() else {
        return Ok(false);
    };
    free(cuda)?;
    for ((at, _), words) in kept.queries.iter().zip(placed) {
        cuda.ring.change(*at, bytes_of(&words));
    }
    cuda.ring.change(kept.token, bytes_of(&[next.token]));
    cuda.ring.change(kept.turns, bytes_of(next.turns));
    // The sums of attention lie where decoded weights may.
    cuda.decoded.borrow_mut().forget(cuda.scratch);
    kept.graph.launch()?;
    Ok(true)
}

/// Waits until no copy reads what a recording has in pinned memory. From here on something is under way again, so a
/// chain that is put down is not cut in two for the device to begin early.
fn free(cuda: &mut Cuda) -> Result<()> {
    cuda.start_chain()?;
    if std::mem::replace(&mut cuda.chain.begun, true) {
        cuda.device.session.wait()?;
    }
    Ok(())
}

fn begin(cuda: &mut Cuda, like: Like, next: &Next<'_>) -> Result<()> {
    let turns_to = cuda.place("again", next.at.buffer)?;
    free(cuda)?;
    if cuda.device.session.begin_capture().is_err() {
        cuda.recorder.refused = true;
        return Ok(());
    }
    cuda.ring.record(true);
    let (turns, token, queries) = (None, None, Vec::new());
    let (start, list, other) = (next.start, 0, false);
    cuda.recorder.making = Some(Making { like, start, turns_to, turns, token, list, queries, other });
    Ok(())
}

pub(crate) fn end(cuda: &mut Cuda, whole: bool) -> Result<bool> {
    if cuda.recorder.making.is_none() {
        return Ok(whole);
    }
    let started = cuda.start_chain();
    let making = cuda.recorder.making.take();
    cuda.ring.record(false);
    let graph = cuda.device.session.end_capture();
    let (Some(making), Ok(graph), Ok(()), true) = (making, graph, started, whole) else {
        // What the caller did not ask for whole says nothing about the driver.
        cuda.recorder.refused = whole;
        return Ok(false);
    };
    if graph.launch().is_err() {
        cuda.recorder.refused = true;
        return Ok(false);
    }
    let Making { like, start, turns, token, queries, other, .. } = making;
    match (turns, token) {
        (Some(turns), Some(token)) if !other => {
            cuda.recorder.kept = Some(Kept { like, graph, turns, token, queries });
        }
        _ => cuda.recorder.unfit = Some((like, start)),
    }
    Ok(true)
}

impl Cuda {
    /// A list of an op went up.
    pub(crate) fn note_list(&mut self, op: &'static str, at: usize) {
        let Some(making) = &mut self.recorder.making else { return };
        match op {
            "embed" if making.token.is_none() => making.token = Some(at),
            "chain" => making.list = at,
            _ => making.other = true,
        }
    }

    /// The list that went up last has such stages.
    pub(crate) fn note_queries(&mut self, queries: &[(usize, OneQuery)]) {
        let Some(making) = &mut self.recorder.making else { return };
        let place = |stage: usize| making.list + (FRONT + stage * WORDS + OneQuery::PLACED) * 4;
        making.queries.extend(queries.iter().map(|(stage, query)| (place(*stage), *query)));
    }

    /// Something is written.
    pub(crate) fn note_write(&mut self, to: DevicePtr, at: usize) {
        let Some(making) = &mut self.recorder.making else { return };
        match making.turns {
            None if to == making.turns_to => making.turns = Some(at),
            _ => making.other = true,
        }
    }

    /// Something is started that is no chain.
    pub(crate) fn note_start(&mut self, name: &'static str) {
        if let Some(making) = &mut self.recorder.making {
            making.other |= name != "embed";
        }
    }
}
