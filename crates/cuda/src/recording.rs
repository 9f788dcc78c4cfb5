//! One token's ops kept as a graph, which the next tokens are computed by: their one call instead of some two hundred.
//! It has copies from pinned memory, the embedding, and the chain; what is another from token to token lies in that
//! memory and is changed there: the token, the turns of its position, and what the position decides of stages that
//! attend. A token whose ops are others is computed as asked for, always.

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
    /// Whose token was asked for last: the next like it is recorded, for all its kernels are there by then.
    seen: Option<Like>,
    making: Option<Making>,
    kept: Option<Kept>,
    /// Once something could not be recorded, nothing is tried any more.
    never: bool,
}

#[cfg(test)]
impl Recorder {
    /// Whether there is a recording.
    pub(crate) fn keeps(&self) -> bool {
        self.kept.is_some()
    }
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
    let like = Like { table: next.table.buffer, turns: next.at.buffer, cache: next.cache };
    if cuda.profile.is_some() || cuda.recorder.never {
        return Ok(false);
    }
    if let Some(kept) = cuda.recorder.kept.take_if(|kept| kept.like == like) {
        let done = repeat(cuda, &kept, next);
        cuda.recorder.kept = Some(kept);
        return done;
    }
    if cuda.recorder.seen.replace(like) != Some(like) {
        return Ok(false);
    }
    cuda.start_chain()?;
    let turns_to = cuda.place("again", next.at.buffer)?;
    // The device begins with nothing before all is put down, so that is one list.
    cuda.chain.begun = true;
    cuda.device.session.begin_capture()?;
    cuda.ring.record(true);
    let (turns, token, queries) = (None, None, Vec::new());
    cuda.recorder.making = Some(Making { like, turns_to, turns, token, list: 0, queries, other: false });
    Ok(false)
}

/// False where it cannot be done from the place of this token on.
fn repeat(cuda: &mut Cuda, kept: &Kept, next: &Next<'_>) -> Result<bool> {
    check_shapes(next)?;
    let placed = |(_, query): &(usize, OneQuery)| query.placed(cuda, next.start);
    let Some(placed) = kept.queries.iter().map(placed).collect::<Option<Vec<_>>>() else {
        return Ok(false);
    };
    cuda.start_chain()?;
    if std::mem::replace(&mut cuda.chain.begun, true) {
        // Copies of the token before may be under way.
        cuda.device.session.wait()?;
    }
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

pub(crate) fn end(cuda: &mut Cuda, whole: bool) -> Result<bool> {
    if cuda.recorder.making.is_none() {
        return Ok(whole);
    }
    let put_down = cuda.start_chain();
    let Some(making) = cuda.recorder.making.take() else { return Ok(whole) };
    cuda.ring.record(false);
    let graph = cuda.device.session.end_capture();
    put_down?;
    let Some(graph) = graph.ok().filter(|_| whole) else {
        cuda.recorder.never = true;
        return Ok(false);
    };
    graph.launch()?;
    let Making { like, turns, token, queries, other, .. } = making;
    cuda.recorder.kept = match (turns, token) {
        (Some(turns), Some(token)) if !other => Some(Kept { like, graph, turns, token, queries }),
        _ => None,
    };
    cuda.recorder.never = cuda.recorder.kept.is_none();
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
