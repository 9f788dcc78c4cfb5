//! The checkpoints of a run: which there are, which is the newest whole one, reading its parts.
//!
//! `000412` is a checkpoint, `.000412.partial` one being written, `.000412.aside` one being
//! replaced. A checkpoint counts only if its manifest reads and every part has its length and
//! checksum; what does not is passed over, with the reason.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use crate::binding::Binding;
use crate::disk::{Disk, check_room};
use crate::error::{Error, Result};
use crate::hash::Hash;
use crate::manifest::{Manifest, Part, Progress};
use crate::staging::{self, Staging};

/// Bytes that are read at a time.
const BUFFER: usize = 1 << 20;

/// The folder `checkpoints` of a run.
#[derive(Debug)]
pub struct Snapshots {
    folder: PathBuf,
    keep: usize,
    disk: Disk,
}

/// A checkpoint in its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Saved {
    /// Where.
    pub path: PathBuf,
    /// How large, manifest and all.
    pub bytes: u64,
    /// Older ones that are gone now.
    pub removed: Vec<PathBuf>,
}

/// What was found on opening.
#[derive(Debug)]
pub struct Found {
    /// The newest whole checkpoint.
    pub newest: Option<Snapshot>,
    /// Newer ones that are not whole.
    pub passed: Vec<Passed>,
}

/// A checkpoint that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Passed {
    /// Where it is.
    pub path: PathBuf,
    /// What is wrong with it.
    pub reason: String,
}

/// A whole checkpoint.
#[derive(Debug)]
pub struct Snapshot {
    path: PathBuf,
    manifest: Manifest,
}

impl Snapshots {
    /// The checkpoints in `folder`, which is made if it is not there; the `keep` newest stay, at
    /// least one. Opening writes nothing else, so a run that is going may be looked at.
    pub fn open(folder: &Path, keep: usize) -> Result<Snapshots> {
        Self::open_on(folder, keep, Disk::system())
    }

    pub(crate) fn open_on(folder: &Path, keep: usize, disk: Disk) -> Result<Snapshots> {
        fs::create_dir_all(folder).map_err(|error| Error::io(folder, "create", error))?;
        Ok(Snapshots { folder: folder.to_path_buf(), keep: keep.max(1), disk })
    }

    /// Puts back what a kill left aside and removes what was not finished. Only for the one who
    /// holds the run.
    pub fn recover(&self) -> Result<()> {
        let failed = |error| Error::io(&self.folder, "clean up", error);
        for entry in self.names()? {
            let path = self.folder.join(&entry);
            if let Some(step) = hidden_step(&entry, ".aside") {
                let named = self.folder.join(staging::name(step));
                match named.exists() {
                    true => self.disk.remove_folder(&path).map_err(failed)?,
                    false => self.disk.rename(&path, &named).map_err(failed)?,
                }
            } else if hidden_step(&entry, ".partial").is_some() {
                self.disk.remove_folder(&path).map_err(failed)?;
            }
        }
        Ok(())
    }

    /// Starts the checkpoint of `step`, of about `bytes`; a disk without room is refused here.
    pub fn begin(&self, step: u64, bytes: u64) -> Result<Staging> {
        check_room(&self.folder, bytes)?;
        Staging::begin(&self.folder, step, self.disk.clone())
    }

    /// Makes a checkpoint of the parts. Only when it is in its place are older ones removed.
    pub fn finish(&self, mut staging: Staging, progress: Progress) -> Result<Saved> {
        let step = staging.step();
        let bytes = staging.seal(progress)?;
        let path = staging.place(&self.folder)?;
        // An old checkpoint that cannot be removed is no reason to fail a save that stands.
        let removed = self.prune(step).unwrap_or_default();
        Ok(Saved { path, bytes, removed })
    }

    /// Removes what is older than the `keep` newest up to `step`; those without a manifest that
    /// reads do not count.
    fn prune(&self, step: u64) -> Result<Vec<PathBuf>> {
        let mut removed = Vec::new();
        let mut kept = 0;
        for path in self.steps()?.into_iter().rev().filter(|(of, _)| *of <= step).map(|(_, path)| path) {
            if kept < self.keep && Manifest::read(&path).is_ok() {
                kept += 1;
            } else if self.remove(&path).is_ok() {
                removed.push(path);
            }
        }
        Ok(removed)
    }

    /// Takes the name away first: a removal that is cut leaves no broken checkpoint behind.
    fn remove(&self, path: &Path) -> io::Result<()> {
        let step = path.file_name().and_then(|name| step_of(name.to_str()?)).unwrap_or_default();
        let hidden = self.folder.join(staging::partial_name(step));
        self.disk.rename(path, &hidden)?;
        self.disk.remove_folder(&hidden)
    }

    /// The newest checkpoint whose every byte is as it was written, and the broken ones before it.
    pub fn newest(&self) -> Result<Found> {
        let mut passed = Vec::new();
        for (step, path) in self.steps()?.into_iter().rev() {
            match Snapshot::verify(&path, step) {
                Ok(snapshot) => return Ok(Found { newest: Some(snapshot), passed }),
                Err(reason) => passed.push(Passed { path, reason }),
            }
        }
        Ok(Found { newest: None, passed })
    }

    /// The steps that have a folder, in order. A folder without a manifest (a removal that was cut)
    /// is among them.
    pub fn steps(&self) -> Result<Vec<(u64, PathBuf)>> {
        let names = self.names()?.into_iter();
        let mut steps: Vec<(u64, PathBuf)> =
            names.filter_map(|name| Some((step_of(&name)?, self.folder.join(name)))).collect();
        steps.sort_unstable();
        Ok(steps)
    }

    fn names(&self) -> Result<Vec<String>> {
        let read = || -> io::Result<Vec<String>> {
            let entries = fs::read_dir(&self.folder)?.collect::<io::Result<Vec<_>>>()?;
            Ok(entries.into_iter().filter_map(|entry| entry.file_name().into_string().ok()).collect())
        };
        read().map_err(|error| Error::io(&self.folder, "read", error))
    }
}

impl Snapshot {
    /// Opens one checkpoint by its folder, for export or a look; every byte is checked.
    pub fn open(path: &Path) -> Result<Snapshot> {
        let step = path.file_name().and_then(|name| step_of(name.to_str()?));
        let manifest = || Manifest::read(path).map(|manifest| manifest.progress.step);
        let verified = step.map_or_else(manifest, Ok).and_then(|step| Snapshot::verify(path, step));
        verified.map_err(|reason| {
            Error::input(path, "", reason, "this checkpoint is not whole; take another one of the run")
        })
    }

    fn verify(path: &Path, step: u64) -> std::result::Result<Snapshot, String> {
        let manifest = Manifest::read(path)?;
        if manifest.progress.step != step {
            return Err(format!("the folder says step {step}, its manifest {}", manifest.progress.step));
        }
        // Lengths first: they are quick, and tell a cut copy without reading the rest.
        for part in &manifest.parts {
            check_length(path, part)?;
        }
        let snapshot = Snapshot { path: path.to_path_buf(), manifest };
        for part in &snapshot.manifest.parts {
            snapshot.read(part, &mut |source| drain(source))?;
        }
        Ok(snapshot)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What it says about itself.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Steps behind it.
    pub fn step(&self) -> u64 {
        self.manifest.progress.step
    }

    /// Refuses to go on with another model, data, recipe or template.
    pub fn check(&self, now: &Binding) -> Result<()> {
        let differences = self.manifest.progress.binding.differences(now);
        match differences.is_empty() {
            true => Ok(()),
            false => Err(Error::OtherRun { folder: self.path.clone(), differences }),
        }
    }

    /// Reads one part through `take`, which must read it to its end; the checksum is verified again.
    pub fn read_part(&self, name: &str, mut take: impl FnMut(&mut dyn Read) -> io::Result<()>) -> Result<()> {
        let remedy = "resume with the program and settings that wrote it";
        let Some(part) = self.manifest.parts.iter().find(|part| part.name == name) else {
            return Err(Error::input(&self.path, name, "this checkpoint has no such part", remedy));
        };
        let remedy = "check the disk; an older checkpoint of the run may be whole";
        self.read(part, &mut take).map_err(|reason| Error::input(&self.path, "", reason, remedy))
    }

    fn read(
        &self,
        part: &Part,
        take: &mut dyn FnMut(&mut dyn Read) -> io::Result<()>,
    ) -> std::result::Result<(), String> {
        let failed = |error: io::Error| format!("{} cannot be read: {error}", part.name);
        let file = File::open(self.path.join(&part.name)).map_err(failed)?;
        let mut source = Source { file: file.take(part.bytes), hash: Hash::default() };
        take(&mut source).map_err(failed)?;
        let (bytes, hash) = (source.hash.bytes(), format!("{:016x}", source.hash.finish()));
        if bytes != part.bytes {
            return Err(format!("{}: {bytes} of its {} bytes were read", part.name, part.bytes));
        }
        if hash != part.hash {
            return Err(format!("{}: its checksum is {hash}, the manifest says {}", part.name, part.hash));
        }
        Ok(())
    }
}

fn check_length(path: &Path, part: &Part) -> std::result::Result<(), String> {
    let metadata = fs::symlink_metadata(path.join(&part.name))
        .map_err(|error| format!("{} cannot be read: {error}", part.name))?;
    if !metadata.is_file() {
        return Err(format!("{} is no plain file", part.name));
    }
    match metadata.len() {
        bytes if bytes == part.bytes => Ok(()),
        bytes => Err(format!("{} has {bytes} bytes, the manifest says {}", part.name, part.bytes)),
    }
}

/// A part that hashes what is read of it.
struct Source {
    file: io::Take<File>,
    hash: Hash,
}

impl Read for Source {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.file.read(buffer)?;
        self.hash.add(&buffer[..count]);
        Ok(count)
    }
}

fn drain(source: &mut dyn Read) -> io::Result<()> {
    let mut buffer = vec![0; BUFFER];
    while source.read(&mut buffer)? > 0 {}
    Ok(())
}

fn step_of(name: &str) -> Option<u64> {
    let step = name.bytes().all(|byte| byte.is_ascii_digit()).then(|| name.parse().ok())??;
    (staging::name(step) == name).then_some(step)
}

fn hidden_step(name: &str, ending: &str) -> Option<u64> {
    step_of(name.strip_prefix('.')?.strip_suffix(ending)?)
}

#[cfg(test)]
mod tests;
