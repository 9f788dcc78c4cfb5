//! A weight learns from the factors of its gradient. With tiles, a thread makes as many rows of the gradient as
//! stay in its second-level cache, turned as the optimizer takes them, and lets them learn before it makes the next ones.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use halfbyte_ops::learn::Factors;
use halfbyte_ops::update::{self, Kept, Step};
use halfbyte_ops::{Result, Rows, Tally, Weight, embed, linear};

use crate::arena::Place;
use crate::linear::GradientRows;
use crate::square::SQUARE;
use crate::update::{Gradient, Task, scratch as update_scratch};
use crate::{Cpu, Isa, row_gradients};

const OP: &str = "learn";

/// Bytes of rows, with the columns of dy they are made from, that a thread works on.
const ROOM: usize = 1280 << 10;
/// Squares of rows below which x would be read too often.
const FEWEST: usize = 3;

/// Rows that a thread makes at a time, in squares; none where they would be too few.
fn most(tokens: usize, columns: usize) -> Option<usize> {
    let square = Rows::narrow_bytes(SQUARE, tokens) + SQUARE * columns * 4;
    Some(ROOM / square).filter(|most| *most >= FEWEST)
}

/// Bytes of scratch that weights with sides of at most `widest` need, for all and for each thread.
pub(crate) fn scratch(tokens: usize, widest: usize) -> (usize, usize) {
    let all = Places::new(tokens, widest, widest, widest.next_multiple_of(SQUARE));
    (all.shared, ROOM.min(all.row) + all.each - all.row)
}

/// Where parts of scratch begin: for all x, then what the rows share; for each thread dy, then the gradient, then what its
/// update needs.
struct Places {
    task: usize,
    shared: usize,
    gradient: usize,
    row: usize,
    each: usize,
}

impl Places {
    fn new(tokens: usize, rows: usize, columns: usize, together: usize) -> Places {
        let (task, gradient) = GradientRows::scratch(tokens, columns, together);
        let (sums, of_row) = update_scratch(rows, columns);
        let row = gradient + together * columns * 4;
        Places { task, shared: task + sums, gradient, row, each: row + of_row }
    }
}

/// Whether a weight learns here.
pub(crate) fn fits(cpu: &Cpu, from: &Factors<'_>) -> bool {
    cpu.isa == Isa::Amx && !from.exact && most(from.x.rows, from.x.columns).is_some()
}

/// Gives what was done, and the time that learning took: of all threads, divided by their number.
pub(crate) fn weight(
    cpu: &mut Cpu,
    of: &Weight,
    from: &Factors<'_>,
    kept: &Kept,
    step: &Step,
) -> Result<(Tally, Duration)> {
    let (tokens, rows, columns, threads) = (from.x.rows, from.dy.columns, from.x.columns, cpu.pool.threads());
    // The gradient that never is.
    let gradient = Rows { rows, columns, narrow: false, ..from.x };
    update::check_shapes(of, from.first, gradient, kept, &step.recipe)?;
    linear::check_weight_gradient(from.dy, from.x, from.exact, 0, gradient)?;
    let embedded = match from.embedded {
        Some((words, dy)) => {
            embed::check_gradient(words, dy, gradient)?;
            Some((words, cpu.arena.rows(OP, dy)?))
        }
        None => None,
    };
    let squares = rows.div_ceil(SQUARE);
    let most = most(tokens, columns).unwrap_or(1).min(squares.max(1));
    let rounds = squares.div_ceil(threads * most);
    // Of about the same length, so that no thread is left with the longest.
    let chunks = squares.min(threads * rounds);
    let at = Places::new(tokens, rows, columns, most * SQUARE);
    let scratch = cpu.scratch((at.shared, at.each), OP)?;
    let product = GradientRows::new(cpu, from.dy, from.x, scratch.shared)?;
    let start = Instant::now();
    // SAFETY: `Places` counts it.
    let shared = Place(unsafe { scratch.shared.pointer().add(at.task) });
    let task = Task::new(cpu, (of, from.first, rows), kept, step, shared)?;
    let (begun, nanoseconds) = (start.elapsed(), AtomicU64::new(0));
    cpu.pool.run(chunks, &|chunk, thread| {
        let [first, end] = [chunk, chunk + 1].map(|chunk| chunk * squares / chunks * SQUARE);
        let rows = first..end.min(rows);
        let dy = scratch.of_thread(thread);
        // SAFETY: `Places` counts them; they are this thread's, as the rows are, which are taken in order.
        unsafe {
            let gradient = Place(dy.pointer().add(at.gradient)).cast::<f32>();
            product.make(rows.clone(), dy, gradient);
            if let Some((words, de)) = embedded {
                let first = from.first + rows.start;
                row_gradients::add_embedded(words, first, de, (rows.len(), columns), gradient);
            }
            let start = Instant::now();
            task.learn(rows, Gradient::Turned(gradient), Place(dy.pointer().add(at.row)));
            nanoseconds.fetch_add(start.elapsed().as_nanos() as u64, Ordering::Relaxed);
        }
    });
    let start = Instant::now();
    let tally = task.end(cpu);
    let each = Duration::from_nanos(nanoseconds.into_inner() / threads as u64);
    Ok((tally, begun + each + start.elapsed()))
}
