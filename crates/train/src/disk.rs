//! Every act of a save upon the disk goes through here, so that a test can let each one fail.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;

/// What is about to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Act {
    CreateFolder,
    CreateFile,
    /// So many bytes.
    Write(usize),
    Sync,
    Rename,
    Remove,
}

type Gate = dyn Fn(Act) -> io::Result<()> + Send + Sync;

/// The file system, behind a gate that lets everything pass outside of tests.
#[derive(Clone)]
pub(crate) struct Disk {
    gate: Arc<Gate>,
}

impl fmt::Debug for Disk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Disk")
    }
}

impl Disk {
    pub(crate) fn system() -> Disk {
        Disk { gate: Arc::new(|_| Ok(())) }
    }

    pub(crate) fn create_folder(&self, path: &Path) -> io::Result<()> {
        (self.gate)(Act::CreateFolder)?;
        fs::create_dir(path)
    }

    pub(crate) fn create_file(&self, path: &Path) -> io::Result<File> {
        (self.gate)(Act::CreateFile)?;
        OpenOptions::new().write(true).create_new(true).open(path)
    }

    pub(crate) fn write(&self, mut file: &File, bytes: &[u8]) -> io::Result<()> {
        (self.gate)(Act::Write(bytes.len()))?;
        file.write_all(bytes)
    }

    pub(crate) fn write_at(&self, mut file: &File, offset: u64, bytes: &[u8]) -> io::Result<()> {
        io::Seek::seek(&mut file, io::SeekFrom::Start(offset))?;
        self.write(file, bytes)
    }

    pub(crate) fn sync(&self, file: &File) -> io::Result<()> {
        (self.gate)(Act::Sync)?;
        file.sync_all()
    }

    /// Brings the names in a folder to the disk.
    pub(crate) fn sync_folder(&self, path: &Path) -> io::Result<()> {
        (self.gate)(Act::Sync)?;
        match cfg!(unix) {
            true => File::open(path)?.sync_all(),
            // Elsewhere a folder cannot be opened as a file; its names are the system's care.
            false => Ok(()),
        }
    }

    pub(crate) fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        (self.gate)(Act::Rename)?;
        fs::rename(from, to)
    }

    /// Removes a folder and all in it; one that is not there is no error.
    pub(crate) fn remove_folder(&self, path: &Path) -> io::Result<()> {
        (self.gate)(Act::Remove)?;
        match fs::remove_dir_all(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }
}

/// Refuses to write `needed` bytes into `folder` where its file system has fewer left.
pub(crate) fn check_room(folder: &Path, needed: u64) -> Result<(), halfbyte_checkpoint::Error> {
    match free(folder) {
        Some(free) if needed > free => Err(halfbyte_checkpoint::Error::space(
            folder,
            format!("a checkpoint takes {needed} bytes, and this disk has {free} left"),
            format!("free {} bytes there; the checkpoints before are untouched", needed - free),
        )),
        // A system that does not say is no reason to refuse; a full disk ends the write later.
        _ => Ok(()),
    }
}

#[cfg(unix)]
fn free(folder: &Path) -> Option<u64> {
    let system = rustix::fs::statvfs(folder).ok()?;
    system.f_bavail.checked_mul(system.f_frsize)
}

#[cfg(not(unix))]
fn free(_folder: &Path) -> Option<u64> {
    None
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::path::PathBuf;
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    /// A folder of a test, removed at its end.
    pub(crate) struct Folder(PathBuf);

    impl Folder {
        pub(crate) fn new(name: &str) -> Folder {
            let name = format!("halfbyte-train-{name}-{}", std::process::id());
            let path = std::env::temp_dir().join(name);
            let _ = fs::remove_dir_all(&path);
            fs::create_dir_all(&path).unwrap();
            Folder(path)
        }

        pub(crate) fn path(&self) -> &Path {
            &self.0
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn full() -> io::Error {
        io::Error::from(io::ErrorKind::StorageFull)
    }

    /// A disk with room for so many bytes; the number may be changed later.
    pub(crate) fn budget(bytes: usize) -> (Disk, Arc<AtomicUsize>) {
        let left = Arc::new(AtomicUsize::new(bytes));
        let shared = left.clone();
        let gate = move |act| match act {
            Act::Write(bytes) => {
                shared.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(bytes)).map_err(|_| full())?;
                Ok(())
            }
            _ => Ok(()),
        };
        (Disk { gate: Arc::new(gate) }, left)
    }

    /// A disk whose act number `at` fails; with `broken` all acts after it too, as if the process
    /// had died there. The counter says how many acts there were.
    pub(crate) fn failing(at: usize, broken: bool) -> (Disk, Arc<AtomicUsize>) {
        let count = Arc::new(AtomicUsize::new(0));
        let shared = count.clone();
        let gate = move |_| {
            let now = shared.fetch_add(1, Relaxed);
            if now == at || broken && now > at { Err(full()) } else { Ok(()) }
        };
        (Disk { gate: Arc::new(gate) }, count)
    }

    #[test]
    fn a_disk_without_room_is_refused_with_the_numbers() {
        let folder = Folder::new("room");
        assert!(check_room(folder.path(), 1).is_ok());
        if cfg!(unix) {
            let error = check_room(folder.path(), u64::MAX).unwrap_err();
            assert_eq!(error.kind, halfbyte_checkpoint::ErrorKind::Space);
            assert!(error.to_string().contains("checkpoints before are untouched"), "{error}");
        }
    }
}
