//! The folder of a run:
//!
//! ```text
//! run/binding.json         what the run is bound to
//! run/settings.toml        what was asked for, resolved: `--config` takes it back
//! run/log.jsonl            one record per step
//! run/samples.jsonl        replies to the fixed prompts
//! run/checkpoints/000412/  parts and manifest.json
//! run/report.html          at the end
//! run/.lock                held while a process trains here
//! ```

use std::fs::{self, File, OpenOptions, TryLockError};
use std::path::{Path, PathBuf};

use crate::binding::Binding;
use crate::disk::Disk;
use crate::error::{Error, Result};
use crate::journal::{Journal, Tail};
use crate::manifest::Progress;
use crate::record::{Record, Sample};
use crate::snapshot::{Passed, Saved, Snapshot, Snapshots};
use crate::staging::Staging;
use halfbyte_checkpoint::atomic;

const BINDING: &str = "binding.json";
const SETTINGS: &str = "settings.toml";
const LOG: &str = "log.jsonl";
const SAMPLES: &str = "samples.jsonl";
const CHECKPOINTS: &str = "checkpoints";
const REPORT: &str = "report.html";
const LOCK: &str = ".lock";
/// Longest binding that is read.
const LONGEST_BINDING: u64 = 16 << 20;

/// A run that this process holds.
#[derive(Debug)]
pub struct RunFolder {
    path: PathBuf,
    snapshots: Snapshots,
    /// One record per step.
    pub log: Journal<Record>,
    /// Replies to the fixed prompts. Those of a step are written before its checkpoint.
    pub samples: Journal<Sample>,
    /// Released by the system, however the process ends.
    _lock: File,
}

/// A run taken up again.
#[derive(Debug)]
pub struct Resumed {
    /// The run, its journals cut to the step of the checkpoint.
    pub folder: RunFolder,
    /// Where to go on; `None` before the first save: from the start.
    pub snapshot: Option<Snapshot>,
    /// Newer checkpoints that are not whole.
    pub passed: Vec<Passed>,
    /// The steps so far.
    pub records: Vec<Record>,
    /// The samples so far.
    pub samples: Vec<Sample>,
    /// What was cut off the log.
    pub tail: Tail,
}

impl RunFolder {
    /// Begins a run in `path`; a folder that holds one already is refused. `settings` are the
    /// resolved ones as a text, for a person and for `--config`.
    pub fn create(path: &Path, settings: &str, binding: &Binding, keep: usize) -> Result<RunFolder> {
        fs::create_dir_all(path).map_err(|error| Error::io(path, "create", error))?;
        let lock = lock(path)?;
        if path.join(SETTINGS).exists() {
            let remedy = "go on with it by --resume, or choose another --out folder";
            return Err(Error::request(path, "", "a run was begun here already", remedy));
        }
        let snapshots = Snapshots::open(&path.join(CHECKPOINTS), keep)?;
        if let Some((step, _)) = snapshots.steps()?.last() {
            let problem = format!("checkpoints up to step {step} are here, but no {SETTINGS}");
            let remedy = "put settings.toml back, or choose another --out folder";
            return Err(Error::request(path, CHECKPOINTS, problem, remedy));
        }
        let (log, samples) = (Journal::create(&path.join(LOG))?, Journal::create(&path.join(SAMPLES))?);
        let text = serde_json::to_string_pretty(binding).unwrap_or_default() + "\n";
        atomic::write_file(&path.join(BINDING), text.as_bytes())?;
        // Last: what has settings is a run.
        atomic::write_file(&path.join(SETTINGS), settings.as_bytes())?;
        sync_parent(path)?;
        Ok(RunFolder { path: path.to_path_buf(), snapshots, log, samples, _lock: lock })
    }

    /// Where the run in `path` has its settings.
    pub fn settings(path: &Path) -> Result<PathBuf> {
        let file = path.join(SETTINGS);
        match file.is_file() {
            true => Ok(file),
            false => {
                let remedy = "give the --out folder of a run that was begun";
                let problem = format!("no run was begun here: it has no {SETTINGS}");
                Err(Error::input(path, "", problem, remedy))
            }
        }
    }

    /// The checkpoints of the run in `path`, to look at.
    pub fn checkpoints(path: &Path) -> Result<Snapshots> {
        Self::settings(path)?;
        Snapshots::open(&path.join(CHECKPOINTS), usize::MAX)
    }

    /// Takes up the run in `path` at its newest whole checkpoint. Another model, data, recipe or
    /// template is refused with what was and what is.
    pub fn resume(path: &Path, binding: &Binding, keep: usize) -> Result<Resumed> {
        Self::settings(path)?;
        let began = read_binding(path)?;
        let lock = lock(path)?;
        let differences = began.differences(binding);
        if !differences.is_empty() {
            return Err(Error::OtherRun { folder: path.to_path_buf(), differences });
        }
        let snapshots = Snapshots::open(&path.join(CHECKPOINTS), keep)?;
        snapshots.recover()?;
        let found = snapshots.newest()?;
        if let Some(snapshot) = &found.newest {
            snapshot.check(binding)?;
        }
        let step = found.newest.as_ref().map(Snapshot::step);
        if step.is_none() && !found.passed.is_empty() {
            let reasons: Vec<String> = found
                .passed
                .iter()
                .map(|passed| format!("{}: {}", passed.path.display(), passed.reason))
                .collect();
            let problem = format!("none of its checkpoints is whole\n{}", reasons.join("\n"));
            let remedy = "restore one of them from a copy, or remove them all to begin at step 1";
            return Err(Error::input(path, CHECKPOINTS, problem, remedy));
        }
        let step = step.unwrap_or(0);
        let (log, records, tail) = Journal::resume(&path.join(LOG), step)?;
        let (samples, sampled, _) = Journal::resume(&path.join(SAMPLES), step)?;
        let folder = RunFolder { path: path.to_path_buf(), snapshots, log, samples, _lock: lock };
        let (snapshot, passed) = (found.newest, found.passed);
        Ok(Resumed { folder, snapshot, passed, records, samples: sampled, tail })
    }

    /// Saves a checkpoint of about `bytes`: `fill` writes the parts. Whatever fails, the
    /// checkpoints before are untouched and nothing half-made is left.
    pub fn save(
        &self,
        progress: Progress,
        bytes: u64,
        fill: impl FnOnce(&mut Staging) -> Result<()>,
    ) -> Result<Saved> {
        let mut staging = self.snapshots.begin(progress.step, bytes)?;
        fill(&mut staging)?;
        // The records up to a checkpoint are on the disk before it is.
        self.log.sync()?;
        self.samples.sync()?;
        self.snapshots.finish(staging, progress)
    }

    /// Writes the report, whole or not at all; gives its path.
    pub fn write_report(&self, html: &str) -> Result<PathBuf> {
        let path = self.path.join(REPORT);
        atomic::write_file(&path, html.as_bytes())?;
        Ok(path)
    }

    /// Where the run is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its checkpoints.
    pub fn snapshots(&self) -> &Snapshots {
        &self.snapshots
    }
}

fn read_binding(path: &Path) -> Result<Binding> {
    let file = path.join(BINDING);
    let bytes = fs::metadata(&file).map_err(|error| Error::io(&file, "read", error))?.len();
    let remedy = "put the file back as the run wrote it";
    if bytes > LONGEST_BINDING {
        return Err(Error::input(&file, "", format!("{bytes} bytes are no binding"), remedy));
    }
    let text = fs::read(&file).map_err(|error| Error::io(&file, "read", error))?;
    serde_json::from_slice(&text).map_err(|error| Error::input(&file, "", error.to_string(), remedy))
}

/// Brings the name of the run to the disk; what is in it is there already.
fn sync_parent(path: &Path) -> Result<()> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    Disk::system().sync_folder(parent).map_err(|error| Error::io(parent, "write", error))
}

fn lock(path: &Path) -> Result<File> {
    let file = path.join(LOCK);
    let mut options = OpenOptions::new();
    let options = options.read(true).write(true).create(true).truncate(false);
    let lock = options.open(&file).map_err(|error| Error::io(&file, "create", error))?;
    match lock.try_lock() {
        Err(TryLockError::WouldBlock) => {
            let remedy = "wait for it or stop it, or choose another --out folder";
            Err(Error::request(path, "", "another process is training here now", remedy))
        }
        // Some network file systems have no locks; two runs at once are then not noticed.
        Ok(()) | Err(TryLockError::Error(_)) => Ok(lock),
    }
}

#[cfg(test)]
mod tests;
