//! A file of lines that only grows: one JSON object per step, readable while the run is going.
//!
//! Every line is one write at a known place. A write that fails (a full disk) or is cut (a kill)
//! leaves at most a torn end, which the next write or the next start removes; the lines before are
//! never touched. A resumed run cuts its journal to the step of its checkpoint, so no step is
//! written down twice.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Read};
use std::marker::PhantomData;
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::disk::Disk;
use crate::error::{Error, Result};

/// Longest line that is read; a longer one is not ours.
const LONGEST_LINE: u64 = 4 << 20;

/// What a line holds.
pub trait Entry: Serialize + DeserializeOwned {
    /// The step it belongs to.
    fn step(&self) -> u64;
}

/// An open journal.
#[derive(Debug)]
pub struct Journal<T> {
    path: PathBuf,
    file: File,
    /// End of the last whole line; what lies beyond is torn.
    length: u64,
    disk: Disk,
    entries: PhantomData<T>,
}

/// What was cut off a journal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tail {
    /// Whole lines of steps that the checkpoint does not have.
    pub lines: usize,
    /// Bytes behind the last whole line.
    pub torn_bytes: u64,
}

impl<T: Entry> Journal<T> {
    /// Starts a journal; one that has lines already is refused.
    pub fn create(path: &Path) -> Result<Self> {
        Self::create_on(path, Disk::system())
    }

    pub(crate) fn create_on(path: &Path, disk: Disk) -> Result<Self> {
        let journal = Self::open(path, disk)?;
        let bytes = journal.file.metadata().map_err(|error| Error::io(path, "read", error))?.len();
        if bytes > 0 {
            let problem = format!("it already has {bytes} bytes of another run");
            let remedy = "go on with that run by --resume, or choose another --out folder";
            return Err(Error::request(path, "", problem, remedy));
        }
        Ok(journal)
    }

    /// Opens a journal, cuts it after the last whole line of `step` or before, and gives the
    /// entries that stay. A journal that is not there is begun.
    pub fn resume(path: &Path, step: u64) -> Result<(Self, Vec<T>, Tail)> {
        let mut journal = Self::open(path, Disk::system())?;
        let scan = Scan::of(path, &journal.file)?;
        let kept = scan.entries.partition_point(|(entry, _)| T::step(entry) <= step);
        journal.length = kept.checked_sub(1).map_or(0, |last| scan.entries[last].1);
        journal.cut()?;
        journal.sync()?;
        let tail = Tail { lines: scan.entries.len() - kept, torn_bytes: scan.bytes - scan.whole };
        let entries = scan.entries.into_iter().take(kept).map(|(entry, _)| entry).collect();
        Ok((journal, entries, tail))
    }

    fn open(path: &Path, disk: Disk) -> Result<Self> {
        let mut options = OpenOptions::new();
        let options = options.read(true).write(true).create(true).truncate(false);
        let file = options.open(path).map_err(|error| Error::io(path, "open", error))?;
        Ok(Journal { path: path.to_path_buf(), file, length: 0, disk, entries: PhantomData })
    }

    /// Writes one line. If that fails, the journal is as before.
    pub fn append(&mut self, entry: &T) -> Result<()> {
        let mut line = match serde_json::to_vec(entry) {
            Ok(line) => line,
            Err(error) => {
                return Err(Error::request(&self.path, "", error.to_string(), "report this as a bug"));
            }
        };
        line.push(b'\n');
        self.cut()?;
        let written = self.disk.write_at(&self.file, self.length, &line);
        if let Err(error) = written {
            // If this fails too, the cut before the next line does it.
            let _ = self.cut();
            return Err(Error::io(&self.path, "write", error));
        }
        self.length += line.len() as u64;
        Ok(())
    }

    /// Brings the lines to the disk; a save does this before its checkpoint appears.
    pub fn sync(&self) -> Result<()> {
        self.disk.sync(&self.file).map_err(|error| Error::io(&self.path, "write", error))
    }

    /// Removes what lies beyond the last whole line.
    fn cut(&mut self) -> Result<()> {
        let failed = |error| Error::io(&self.path, "write", error);
        if self.file.metadata().map_err(failed)?.len() != self.length {
            self.file.set_len(self.length).map_err(failed)?;
        }
        Ok(())
    }
}

/// The whole entries of a journal, from the beginning to the first line that is not one.
pub fn read<T: Entry>(path: &Path) -> Result<Vec<T>> {
    let file = File::open(path).map_err(|error| Error::io(path, "open", error))?;
    Ok(Scan::of(path, &file)?.entries.into_iter().map(|(entry, _)| entry).collect())
}

struct Scan<T> {
    /// Each with the place where its line ends.
    entries: Vec<(T, u64)>,
    /// Where the last whole line ends.
    whole: u64,
    /// Bytes of the file.
    bytes: u64,
}

impl<T: Entry> Scan<T> {
    /// Reads lines until one is torn, is no entry, or goes back in time.
    fn of(path: &Path, file: &File) -> Result<Self> {
        let failed = |error| Error::io(path, "read", error);
        let bytes = file.metadata().map_err(failed)?.len();
        let mut scan = Scan { entries: Vec::new(), whole: 0, bytes };
        let mut reader = BufReader::new(file);
        let mut line = Vec::new();
        let mut step = 0;
        loop {
            line.clear();
            reader.by_ref().take(LONGEST_LINE).read_until(b'\n', &mut line).map_err(failed)?;
            if line.pop() != Some(b'\n') {
                return Ok(scan);
            }
            let Ok(entry) = serde_json::from_slice::<T>(&line) else {
                return Ok(scan);
            };
            if entry.step() < step {
                return Ok(scan);
            }
            step = entry.step();
            scan.whole += line.len() as u64 + 1;
            scan.entries.push((entry, scan.whole));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::tests::{Folder, budget};
    use crate::record::{Record, Sample};

    fn record(step: u64) -> Record {
        Record { step, loss: 1.0 / step as f64, ..Record::default() }
    }

    fn filled(path: &Path, steps: u64) -> Journal<Record> {
        let mut journal = Journal::create(path).unwrap();
        (1..=steps).for_each(|step| journal.append(&record(step)).unwrap());
        journal
    }

    fn steps_in(path: &Path) -> Vec<u64> {
        read::<Record>(path).unwrap().iter().map(|record| record.step).collect()
    }

    #[test]
    fn lines_come_back_in_order() {
        let folder = Folder::new("journal-order");
        let path = folder.path().join("log.jsonl");
        drop(filled(&path, 5));
        assert_eq!(steps_in(&path), [1, 2, 3, 4, 5]);
        assert_eq!(std::fs::read_to_string(&path).unwrap().lines().count(), 5);
    }

    #[test]
    fn a_journal_with_lines_is_not_begun_again() {
        let folder = Folder::new("journal-again");
        let path = folder.path().join("log.jsonl");
        drop(filled(&path, 1));
        let error = Journal::<Record>::create(&path).unwrap_err().to_string();
        assert!(error.contains("--resume"), "{error}");
        assert_eq!(steps_in(&path), [1]);
    }

    #[test]
    fn resume_cuts_to_the_step_of_the_checkpoint() {
        let folder = Folder::new("journal-cut");
        let path = folder.path().join("log.jsonl");
        drop(filled(&path, 9));
        let (mut journal, kept, tail) = Journal::<Record>::resume(&path, 6).unwrap();
        assert_eq!((kept.len(), tail), (6, Tail { lines: 3, torn_bytes: 0 }));
        journal.append(&record(7)).unwrap();
        assert_eq!(steps_in(&path), [1, 2, 3, 4, 5, 6, 7]);
        let (_, kept, _) = Journal::<Record>::resume(&path, 0).unwrap();
        assert!(kept.is_empty() && steps_in(&path).is_empty());
    }

    #[test]
    fn a_file_cut_at_any_byte_keeps_its_whole_lines() {
        let folder = Folder::new("journal-torn");
        let path = folder.path().join("log.jsonl");
        drop(filled(&path, 3));
        let bytes = std::fs::read(&path).unwrap();
        for cut in 0..=bytes.len() {
            std::fs::write(&path, &bytes[..cut]).unwrap();
            let whole = bytes[..cut].iter().filter(|byte| **byte == b'\n').count();
            let (mut journal, kept, tail) = Journal::<Record>::resume(&path, 99).unwrap();
            assert_eq!((kept.len(), tail.lines), (whole, 0), "cut at {cut}");
            journal.append(&record(50)).unwrap();
            assert_eq!(steps_in(&path).len(), whole + 1);
        }
    }

    #[test]
    fn zeros_after_a_power_cut_are_a_torn_end() {
        let folder = Folder::new("journal-zeros");
        let path = folder.path().join("log.jsonl");
        drop(filled(&path, 2));
        let mut bytes = std::fs::read(&path).unwrap();
        bytes.extend([0; 100]);
        bytes.push(b'\n');
        std::fs::write(&path, &bytes).unwrap();
        let (_, kept, tail) = Journal::<Record>::resume(&path, 99).unwrap();
        assert_eq!((kept.len(), tail), (2, Tail { lines: 0, torn_bytes: 101 }));
    }

    #[test]
    fn a_line_that_does_not_fit_on_the_disk_leaves_the_lines_before() {
        let folder = Folder::new("journal-full");
        let path = folder.path().join("log.jsonl");
        let (disk, left) = budget(500);
        let mut journal = Journal::<Record>::create_on(&path, disk).unwrap();
        let fitted = (1..).take_while(|step| journal.append(&record(*step)).is_ok()).count() as u64;
        assert!((1..9).contains(&fitted));
        assert_eq!(steps_in(&path).len() as u64, fitted);
        let error = journal.append(&record(fitted + 1)).unwrap_err().to_string();
        assert!(error.contains("free space"), "{error}");
        // Somebody makes room; the run goes on as if nothing had been.
        left.store(10_000, std::sync::atomic::Ordering::Relaxed);
        journal.append(&record(fitted + 1)).unwrap();
        assert_eq!(steps_in(&path).len() as u64, fitted + 1);
    }

    #[test]
    fn several_samples_may_belong_to_a_step() {
        let folder = Folder::new("journal-samples");
        let path = folder.path().join("samples.jsonl");
        let mut journal = Journal::<Sample>::create(&path).unwrap();
        for (step, prompt) in [(0, "你是誰"), (0, "line\nbreak"), (5, "你是誰")] {
            let sample = Sample { step, prompt: prompt.into(), reply: "\u{2028}\"x\"".into() };
            journal.append(&sample).unwrap();
        }
        drop(journal);
        let (_, kept, tail) = Journal::<Sample>::resume(&path, 4).unwrap();
        assert_eq!((kept.len(), kept[1].prompt.as_str(), tail.lines), (2, "line\nbreak", 1));
    }
}
