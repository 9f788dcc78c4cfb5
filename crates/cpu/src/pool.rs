//! Threads that wait for chunks of work. Each begins with a range of its own, the same in every job, so that it meets in its
//! caches what it left there; one that is done helps the others from their far ends. So who computes a chunk is left to
//! chance, what it computes is not: every chunk has its own outputs, and results do not depend on the threads.

use std::cell::UnsafeCell;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle, Thread};
use std::time::Duration;

/// Turns of waiting before a thread lies down: long enough to bridge the gap between two ops,
/// short enough that an idle program takes no processor, and that a machine which gives our
/// threads less than a core each is not kept busy with waiting.
const PATIENCE: u32 = 2_000;
/// How long the caller lies down at a time when a worker does not come to its end.
const NAP: Duration = Duration::from_micros(50);

type Work<'a> = dyn Fn(usize, usize) + Sync + 'a;

/// A cache line of its own (two, because lines are fetched in pairs): a thread that waits on one
/// counter is not disturbed by another thread's writing to its neighbour.
#[repr(align(128))]
struct Alone<T>(T);

struct Shared {
    /// Odd while a job is open, even between jobs; only ever grows.
    job: Alone<AtomicUsize>,
    work: UnsafeCell<Option<*const Work<'static>>>,
    /// Of every thread, the chunks of its range that nobody has taken.
    left: Box<[Alone<Left>]>,
    /// Workers inside a job. A worker that comes late, or not at all because the machine is busy
    /// elsewhere, is not waited for.
    inside: Alone<AtomicUsize>,
    stop: AtomicBool,
    failed: AtomicBool,
}

// SAFETY: `work` is written only while no worker is inside and read only from inside.
unsafe impl Sync for Shared {}
// SAFETY: as above.
unsafe impl Send for Shared {}

/// The caller is one of the threads: `Pool::new(1)` starts none.
pub(crate) struct Pool {
    shared: Arc<Shared>,
    workers: Vec<(JoinHandle<()>, Thread)>,
}

impl Pool {
    pub(crate) fn new(threads: usize) -> std::io::Result<Pool> {
        let shared = Arc::new(Shared {
            job: Alone(AtomicUsize::new(0)),
            work: UnsafeCell::new(None),
            left: (0..threads).map(|_| Alone(Left::default())).collect(),
            inside: Alone(AtomicUsize::new(0)),
            stop: AtomicBool::new(false),
            failed: AtomicBool::new(false),
        });
        let workers = (1..threads)
            .map(|index| {
                let shared = shared.clone();
                let handle = thread::Builder::new()
                    .name(format!("halfbyte-{index}"))
                    .spawn(move || serve(&shared, index))?;
                let thread = handle.thread().clone();
                Ok((handle, thread))
            })
            .collect::<std::io::Result<_>>()?;
        Ok(Pool { shared, workers })
    }

    pub(crate) fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Calls `work(chunk, thread)` once for every chunk, on any thread, and waits for all.
    pub(crate) fn run(&mut self, chunks: usize, work: &Work<'_>) {
        if self.workers.is_empty() || chunks <= 1 {
            (0..chunks).for_each(|chunk| work(chunk, 0));
            return;
        }
        let shared = &*self.shared;
        // SAFETY: no worker is inside, so none reads; the lifetime ends before this call returns.
        unsafe {
            let work = std::mem::transmute::<*const Work<'_>, *const Work<'static>>(work);
            *shared.work.get() = Some(work);
        }
        let threads = self.threads();
        for (thread, left) in shared.left.iter().enumerate() {
            left.0.fill(thread * chunks / threads..(thread + 1) * chunks / threads);
        }
        shared.job.0.fetch_add(1, Ordering::SeqCst);
        for (_, thread) in &self.workers {
            thread.unpark();
        }
        take_chunks(shared, work, 0);
        shared.job.0.fetch_add(1, Ordering::SeqCst);
        wait(|| shared.inside.0.load(Ordering::SeqCst) == 0);
        assert!(!shared.failed.load(Ordering::Relaxed), "a worker thread failed");
    }
}

/// A range of chunks, as one word: the first, and behind it the end.
#[derive(Default)]
struct Left(AtomicU64);

impl Left {
    fn fill(&self, chunks: Range<usize>) {
        self.0.store((chunks.end as u64) << 32 | chunks.start as u64, Ordering::Relaxed);
    }

    /// Takes the first of them, or the last.
    fn take(&self, last: bool) -> Option<usize> {
        let shorter = |word: u64| {
            let (first, end) = (word & u64::from(u32::MAX), word >> 32);
            match last {
                _ if first >= end => None,
                true => Some((end - 1) << 32 | first),
                false => Some(word + 1),
            }
        };
        let word = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, shorter).ok()?;
        Some(if last { (word >> 32) - 1 } else { word & u64::from(u32::MAX) } as usize)
    }
}

fn take_chunks(shared: &Shared, work: &Work<'_>, thread: usize) {
    let (before, from) = shared.left.split_at(thread);
    for (i, left) in from.iter().chain(before).enumerate() {
        while let Some(chunk) = left.0.take(i > 0) {
            work(chunk, thread);
        }
    }
}

fn serve(shared: &Shared, index: usize) {
    let mut seen = 0;
    while let Some(job) = next_job(shared, seen) {
        seen = job;
        shared.inside.0.fetch_add(1, Ordering::SeqCst);
        // Closed in the meantime: the caller may not have seen us, so the work is not ours to touch.
        if shared.job.0.load(Ordering::SeqCst) == job {
            // SAFETY: the job is open and we are inside, so the caller waits for us.
            let work = unsafe { &*(*shared.work.get()).expect("an open job has work") };
            let result = catch_unwind(AssertUnwindSafe(|| take_chunks(shared, work, index)));
            if result.is_err() {
                shared.failed.store(true, Ordering::Relaxed);
            }
        }
        shared.inside.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Waits for an open job other than `seen`; `None` when the pool ends.
fn next_job(shared: &Shared, seen: usize) -> Option<usize> {
    let mut turns = 0;
    loop {
        let job = shared.job.0.load(Ordering::SeqCst);
        if job % 2 == 1 && job != seen {
            return Some(job);
        }
        if shared.stop.load(Ordering::Relaxed) {
            return None;
        }
        turns += 1;
        if turns < PATIENCE {
            std::hint::spin_loop();
        } else {
            thread::park();
        }
    }
}

/// Returns when another thread has done what is waited for.
fn wait(done: impl Fn() -> bool) {
    let mut turns = 0u32;
    while !done() {
        turns += 1;
        if turns < PATIENCE {
            std::hint::spin_loop();
        } else {
            thread::park_timeout(NAP);
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        for (handle, thread) in self.workers.drain(..) {
            thread.unpark();
            // A worker that failed has said so in `run`.
            let _ = handle.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_chunk_is_done_once_by_any_number_of_threads() {
        for threads in [1, 2, 5] {
            let mut pool = Pool::new(threads).unwrap();
            for chunks in [0, 1, 3, 1000] {
                let counts: Vec<AtomicUsize> = (0..chunks).map(|_| AtomicUsize::new(0)).collect();
                pool.run(chunks, &|chunk, thread| {
                    assert!(thread < threads);
                    counts[chunk].fetch_add(1, Ordering::Relaxed);
                });
                assert!(counts.iter().all(|c| c.load(Ordering::Relaxed) == 1));
            }
        }
    }

    #[test]
    fn a_thread_that_is_held_up_leaves_its_chunks_to_others() {
        let (mut pool, chunks) = (Pool::new(2).unwrap(), 20);
        let (done, held_up) = (AtomicUsize::new(0), AtomicUsize::new(0));
        pool.run(chunks, &|_, _| {
            let first = done.fetch_add(1, Ordering::Relaxed) == 0;
            let begin = std::time::Instant::now();
            while first && done.load(Ordering::Relaxed) < chunks && begin.elapsed().as_secs() < 60 {
                thread::yield_now();
            }
            held_up
                .fetch_add(usize::from(first && done.load(Ordering::Relaxed) == chunks), Ordering::Relaxed);
        });
        assert_eq!(held_up.load(Ordering::Relaxed), 1, "all others were done while one was held up");
    }

    #[test]
    fn threads_that_lay_down_come_back() {
        let mut pool = Pool::new(3).unwrap();
        for _ in 0..3 {
            thread::sleep(std::time::Duration::from_millis(30));
            let sum = AtomicUsize::new(0);
            pool.run(100, &|chunk, _| {
                sum.fetch_add(chunk, Ordering::Relaxed);
            });
            assert_eq!(sum.load(Ordering::Relaxed), 4950);
        }
    }
}
