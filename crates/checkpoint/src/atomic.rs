//! Writes that are whole or not there: temporary name, fsync, rename, fsync of the directory.
//!
//! A file is replaced by one rename. A directory cannot be: the old one steps aside to
//! `.NAME.old.tmp`, the new one takes its name, the old one is removed. `recover` puts the old one
//! back if a kill fell between the two renames. Leftovers of killed writers are cleaned by the
//! next writer; a lock tells a dead writer from a live one.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

use crate::error::Error;

/// Held in a directory being written; removed before it gets its name.
const LOCK: &str = ".lock";

/// A file that appears under its name only when it is finished.
#[derive(Debug)]
pub struct AtomicFile {
    path: PathBuf,
    temporary: PathBuf,
    file: File,
    finished: bool,
}

impl AtomicFile {
    /// Starts a file that will be called `path`.
    pub fn create(path: &Path) -> Result<AtomicFile, Error> {
        if path.is_dir() {
            let remedy = "give a file name, or remove the directory first";
            return Err(Error::request(path, "", "this is a directory", remedy));
        }
        let temporary = sibling(path, ".tmp")?;
        let file = open_locked(&temporary)?;
        let failed = |error| Error::io(&temporary, "write", error);
        file.set_len(0).map_err(failed)?;
        Ok(AtomicFile { path: path.to_path_buf(), temporary, file, finished: false })
    }

    /// The name it will have.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The open file, still under its temporary name.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Sets the length before anything is written.
    pub fn set_len(&self, len: u64) -> Result<(), Error> {
        let result = self.file.set_len(len);
        result.map_err(|error| Error::io(&self.path, "write", error))
    }

    /// Writes `bytes` at `offset`.
    pub fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        write_all_at(&self.file, offset, bytes)
            .map_err(|error| Error::io(&self.path, &format!("write at offset {offset}"), error))
    }

    /// Brings it to the disk and gives it its name.
    pub fn finish(mut self) -> Result<(), Error> {
        let failed = |error| Error::io(&self.path, "write", error);
        self.file.sync_all().map_err(failed)?;
        fs::rename(&self.temporary, &self.path).map_err(failed)?;
        self.finished = true;
        sync_parent(&self.path)
    }
}

impl Drop for AtomicFile {
    fn drop(&mut self) {
        if !self.finished {
            // Nothing can be done about a failure here; the next writer cleans it.
            let _ = fs::remove_file(&self.temporary);
        }
    }
}

/// Writes `bytes` as the file `path`, whole or not at all.
pub fn write_file(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    let file = AtomicFile::create(path)?;
    file.write_at(0, bytes)?;
    file.finish()
}

/// A directory that appears under its name only when it is finished.
#[derive(Debug)]
pub struct AtomicDirectory {
    path: PathBuf,
    temporary: PathBuf,
    lock: Option<File>,
    finished: bool,
}

impl AtomicDirectory {
    /// Starts a directory that will be called `path`. What is there now must be a directory of
    /// files for which `replaceable` holds: nobody's other files are ever removed.
    pub fn create(path: &Path, replaceable: fn(&str) -> bool) -> Result<Self, Error> {
        recover(path)?;
        check_replaceable(path, replaceable)?;
        let temporary = sibling(path, ".tmp")?;
        let failed = |error| Error::io(&temporary, "write", error);
        match fs::create_dir(&temporary) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                let stale = open_locked(&temporary.join(LOCK))?;
                drop(stale);
                fs::remove_dir_all(&temporary).map_err(failed)?;
                fs::create_dir(&temporary).map_err(failed)?;
            }
            Err(error) => return Err(failed(error)),
        }
        let lock = open_locked(&temporary.join(LOCK))?;
        Ok(AtomicDirectory { path: path.to_path_buf(), temporary, lock: Some(lock), finished: false })
    }

    /// Where to put the files until it is finished.
    pub fn temporary(&self) -> &Path {
        &self.temporary
    }

    /// The name it will have.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes a small file into it and brings it to the disk.
    pub fn write_file(&self, name: &str, bytes: &[u8]) -> Result<(), Error> {
        let path = self.temporary.join(name);
        let write = || -> io::Result<()> {
            fs::write(&path, bytes)?;
            File::open(&path)?.sync_all()
        };
        write().map_err(|error| Error::io(&self.path.join(name), "write", error))
    }

    /// Gives it its name; what was there before is removed afterwards.
    pub fn finish(mut self) -> Result<(), Error> {
        let failed = |error| Error::io(&self.path, "write", error);
        fs::remove_file(self.temporary.join(LOCK)).map_err(failed)?;
        self.lock = None;
        sync_directory(&self.temporary)?;
        let old = sibling(&self.path, ".old.tmp")?;
        let replaces = self.path.exists();
        if replaces {
            remove_directory(&old)?;
            fs::rename(&self.path, &old).map_err(failed)?;
        }
        if let Err(error) = fs::rename(&self.temporary, &self.path) {
            if replaces {
                fs::rename(&old, &self.path).map_err(failed)?;
            }
            return Err(failed(error));
        }
        self.finished = true;
        sync_parent(&self.path)?;
        if replaces {
            remove_directory(&old)?;
        }
        Ok(())
    }
}

impl Drop for AtomicDirectory {
    fn drop(&mut self) {
        if !self.finished {
            self.lock = None;
            // Nothing can be done about a failure here; the next writer cleans it.
            let _ = fs::remove_dir_all(&self.temporary);
        }
    }
}

/// Puts back a directory whose replacement was killed between its two renames.
pub fn recover(path: &Path) -> Result<(), Error> {
    let Ok(old) = sibling(path, ".old.tmp") else {
        return Ok(()); // a path like `/` is never replaced
    };
    if path.exists() || !old.is_dir() {
        return Ok(());
    }
    fs::rename(&old, path).map_err(|error| Error::io(path, "put back the old directory", error))
}

fn check_replaceable(path: &Path, replaceable: fn(&str) -> bool) -> Result<(), Error> {
    if !path.exists() {
        return Ok(());
    }
    let refuse = |problem: String| {
        let remedy = "choose a path that does not exist yet, or remove what is there";
        Err(Error::request(path, "", problem, remedy))
    };
    if !path.is_dir() {
        return refuse("a file is in the way of the directory".into());
    }
    let entries = fs::read_dir(path).map_err(|error| Error::io(path, "read", error))?;
    for entry in entries {
        let entry = entry.map_err(|error| Error::io(path, "read", error))?;
        let name = entry.file_name();
        let known = name.to_str().is_some_and(replaceable);
        let directory = entry.file_type().is_ok_and(|kind| kind.is_dir());
        if !known || directory {
            let name = name.to_string_lossy();
            return refuse(format!("it holds {name}, which is no part of a model"));
        }
    }
    Ok(())
}

/// `.NAME` + `ending` beside `path`.
fn sibling(path: &Path, ending: &str) -> Result<PathBuf, Error> {
    let Some(name) = path.file_name() else {
        let remedy = "give a path that ends in a name";
        return Err(Error::request(path, "", "this path has no last name", remedy));
    };
    let mut hidden = OsString::from(".");
    hidden.push(name);
    hidden.push(ending);
    Ok(path.with_file_name(hidden))
}

fn open_locked(path: &Path) -> Result<File, Error> {
    let mut options = OpenOptions::new();
    let options = options.read(true).write(true).create(true).truncate(false);
    let file = options.open(path).map_err(|error| Error::io(path, "create", error))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(Error::request(
            path,
            "",
            "another process is writing this model now",
            "wait for it, or write to another path",
        )),
        // Some network file systems have no locks; two writers at once are then not noticed.
        Err(TryLockError::Error(_)) => Ok(file),
    }
}

fn remove_directory(path: &Path) -> Result<(), Error> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(Error::io(path, "remove", error)),
        _ => Ok(()),
    }
}

fn sync_parent(path: &Path) -> Result<(), Error> {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => sync_directory(parent),
        _ => sync_directory(Path::new(".")),
    }
}

#[cfg(unix)]
fn sync_directory(path: &Path) -> Result<(), Error> {
    let synced = File::open(path).and_then(|directory| directory.sync_all());
    synced.map_err(|error| Error::io(path, "write", error))
}

#[cfg(not(unix))]
fn sync_directory(_path: &Path) -> Result<(), Error> {
    Ok(())
}

/// Writes all of `bytes` at `offset`.
#[cfg(unix)]
pub(crate) fn write_all_at(file: &File, offset: u64, bytes: &[u8]) -> io::Result<()> {
    std::os::unix::fs::FileExt::write_all_at(file, bytes, offset)
}

/// Writes all of `bytes` at `offset`.
#[cfg(windows)]
pub(crate) fn write_all_at(file: &File, mut offset: u64, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        let written = std::os::windows::fs::FileExt::seek_write(file, bytes, offset)?;
        if written == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        bytes = &bytes[written..];
        offset += written as u64;
    }
    Ok(())
}
