//! Work on a tensor a run of rows at a time, on every core, with memory that does not grow with the tensor.

use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use halfbyte_checkpoint::{Checkpoint, Tensor};

use crate::failure::{Failure, Result};

/// Values a thread holds at once: 4 MB of f32.
const CHUNK: usize = 1 << 20;
/// Rows of a tile of block scales, and a multiple of every common head: runs end between heads.
const TILE: usize = 128;

/// The runs a tensor is cut into; they depend on its shape alone.
pub(crate) fn runs(rows: usize, columns: usize) -> Vec<Range<usize>> {
    let most = (CHUNK / columns.max(1)).max(1);
    let count = if most > TILE { most / TILE * TILE } else { most };
    (0..rows).step_by(count).map(|first| first..rows.min(first + count)).collect()
}

/// What the threads have so far: results with the number of their run, and the first failure.
struct Done<T> {
    results: Vec<(usize, T)>,
    failure: Option<Failure>,
}

/// Does `work` for every run and gives the results in the order of the runs. The first failure wins.
pub(crate) fn each_run<T: Send>(
    runs: &[Range<usize>],
    work: impl Fn(Range<usize>) -> Result<T> + Sync,
) -> Result<Vec<T>> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = cores.min(runs.len());
    if threads < 2 {
        return runs.iter().cloned().map(work).collect();
    }
    let next = AtomicUsize::new(0);
    let done = Mutex::new(Done { results: Vec::new(), failure: None });
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| take_runs(runs, &next, &done, &work));
        }
    });
    let Done { mut results, failure } = done.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner());
    if let Some(failure) = failure {
        return Err(failure);
    }
    results.sort_by_key(|(number, _)| *number);
    Ok(results.into_iter().map(|(_, result)| result).collect())
}

fn take_runs<T>(
    runs: &[Range<usize>],
    next: &AtomicUsize,
    done: &Mutex<Done<T>>,
    work: &(impl Fn(Range<usize>) -> Result<T> + Sync),
) {
    loop {
        let number = next.fetch_add(1, Ordering::Relaxed);
        let Some(run) = runs.get(number) else {
            return;
        };
        let result = work(run.clone());
        let mut done = done.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        match result {
            Ok(result) => done.results.push((number, result)),
            Err(failure) => {
                done.failure.get_or_insert(failure);
                // Nobody needs the runs that are left.
                next.store(runs.len(), Ordering::Relaxed);
                return;
            }
        }
    }
}

/// Decoded values of a run.
pub(crate) fn read(checkpoint: &Checkpoint, tensor: &Tensor, run: Range<usize>) -> Result<Vec<f32>> {
    let mut values = vec![0.0; run.len() * tensor.columns()];
    checkpoint.read_f32(tensor, run, &mut values)?;
    Ok(values)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::Code;

    #[test]
    fn runs_cover_every_row_once_and_end_between_heads() {
        for (rows, columns) in [(1, 1), (49152, 576), (300, 4096), (7, 3 << 20), (0, 5)] {
            let runs = runs(rows, columns);
            assert_eq!(runs.iter().map(Range::len).sum::<usize>(), rows);
            assert!(runs.windows(2).all(|pair| pair[0].end == pair[1].start));
        }
        assert_eq!(runs(300, 4096)[0], 0..256);
    }

    #[test]
    fn results_come_in_order_and_a_failure_stops_the_rest() {
        let runs: Vec<_> = (0..50).map(|i| i..i + 1).collect();
        let firsts = each_run(&runs, |run| Ok(run.start)).unwrap();
        assert_eq!(firsts, (0..50).collect::<Vec<_>>());
        let failed = each_run(&runs, |run| match run.start {
            7 => Err(Failure::misuse("seven")),
            start => Ok(start),
        });
        assert_eq!(failed.unwrap_err().code, Code::Misuse);
    }
}
