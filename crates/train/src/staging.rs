//! A checkpoint on its way: parts into `.000412.partial`, each brought to the disk, the manifest
//! last, then one rename. Dropped before that, it leaves nothing.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use crate::disk::Disk;
use crate::error::{Error, Result};
use crate::hash::Hash;
use crate::manifest::{FORMAT, MANIFEST, Manifest, Part, Progress, name_problem};

/// Bytes that are handed to the system at a time.
const BUFFER: usize = 1 << 20;

/// Parts being written.
#[derive(Debug)]
pub struct Staging {
    step: u64,
    folder: PathBuf,
    parts: Vec<Part>,
    disk: Disk,
    finished: bool,
}

impl Staging {
    pub(crate) fn begin(checkpoints: &Path, step: u64, disk: Disk) -> Result<Staging> {
        let folder = checkpoints.join(partial_name(step));
        let begin = || -> io::Result<()> {
            disk.remove_folder(&folder)?;
            disk.create_folder(&folder)
        };
        begin().map_err(|error| Error::io(&folder, "create", error))?;
        Ok(Staging { step, folder, parts: Vec::new(), disk, finished: false })
    }

    /// The step that is being saved.
    pub fn step(&self) -> u64 {
        self.step
    }

    /// Writes one part: whatever `fill` writes into the sink, to the disk before this returns.
    pub fn write_part(
        &mut self,
        name: &str,
        fill: impl FnOnce(&mut dyn Write) -> io::Result<()>,
    ) -> Result<()> {
        let path = self.folder.join(name);
        let twice = self.parts.iter().any(|part| part.name == name).then_some("was written already");
        if let Some(problem) = name_problem(name).or(twice) {
            return Err(Error::request(&path, name, format!("the part {problem}"), "choose another name"));
        }
        let part = self.part(name, &path, fill).map_err(|error| Error::io(&path, "write", error))?;
        self.parts.push(part);
        Ok(())
    }

    fn part(
        &self,
        name: &str,
        path: &Path,
        fill: impl FnOnce(&mut dyn Write) -> io::Result<()>,
    ) -> io::Result<Part> {
        let file = self.disk.create_file(path)?;
        let mut sink = Sink { file, disk: &self.disk, hash: Hash::default(), buffer: Vec::new() };
        fill(&mut sink)?;
        sink.flush()?;
        self.disk.sync(&sink.file)?;
        Ok(Part {
            name: name.to_owned(),
            bytes: sink.hash.bytes(),
            hash: format!("{:016x}", sink.hash.finish()),
        })
    }

    /// The manifest, to the disk; then the names in the folder.
    pub(crate) fn seal(&mut self, progress: Progress) -> Result<u64> {
        let path = self.folder.join(MANIFEST);
        if progress.step != self.step {
            let problem = format!("begun for step {}, finished with step {}", self.step, progress.step);
            return Err(Error::request(&path, "step", problem, "report this as a bug"));
        }
        let manifest = Manifest { format: FORMAT, progress, parts: self.parts.clone() };
        let write = || -> io::Result<u64> {
            let text = manifest.to_bytes();
            let file = self.disk.create_file(&path)?;
            self.disk.write(&file, &text)?;
            self.disk.sync(&file)?;
            self.disk.sync_folder(&self.folder)?;
            Ok(text.len() as u64)
        };
        let own = write().map_err(|error| Error::io(&path, "write", error))?;
        Ok(own + self.parts.iter().map(|part| part.bytes).sum::<u64>())
    }

    /// Gives it its name. What has that name already (a broken one, or the same step saved twice)
    /// steps aside first and is removed afterwards; `recover` knows a kill in between.
    pub(crate) fn place(mut self, checkpoints: &Path) -> Result<PathBuf> {
        let path = checkpoints.join(name(self.step));
        let aside = checkpoints.join(aside_name(self.step));
        let place = |staging: &mut Staging| -> io::Result<()> {
            let disk = staging.disk.clone();
            let replaces = path.exists();
            if replaces {
                disk.remove_folder(&aside)?;
                disk.rename(&path, &aside)?;
            }
            if let Err(error) = disk.rename(&staging.folder, &path) {
                if replaces {
                    disk.rename(&aside, &path)?;
                }
                return Err(error);
            }
            staging.finished = true;
            disk.sync_folder(checkpoints)?;
            if replaces {
                // The next start removes it otherwise.
                let _ = disk.remove_folder(&aside);
            }
            Ok(())
        };
        place(&mut self).map_err(|error| Error::io(&path, "write", error))?;
        Ok(path)
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        if !self.finished {
            // Makes room on a full disk. If it fails, the next start cleans up.
            let _ = self.disk.remove_folder(&self.folder);
        }
    }
}

/// Collects bytes into large writes and hashes them.
struct Sink<'a> {
    file: File,
    disk: &'a Disk,
    hash: Hash,
    buffer: Vec<u8>,
}

impl Sink<'_> {
    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.hash.add(bytes);
        self.disk.write(&self.file, bytes)
    }
}

impl Write for Sink<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.buffer.len() + bytes.len() >= BUFFER {
            self.flush()?;
        }
        match bytes.len() < BUFFER {
            true => self.buffer.extend_from_slice(bytes),
            false => self.put(bytes)?,
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        let mut buffer = std::mem::take(&mut self.buffer);
        if !buffer.is_empty() {
            self.put(&buffer)?;
        }
        buffer.clear();
        self.buffer = buffer;
        Ok(())
    }
}

/// "000412".
pub(crate) fn name(step: u64) -> String {
    format!("{step:06}")
}

pub(crate) fn partial_name(step: u64) -> String {
    format!(".{step:06}.partial")
}

pub(crate) fn aside_name(step: u64) -> String {
    format!(".{step:06}.aside")
}
