//! Positioned reads of a file, through the page cache or past it, or of bytes that are part of the
//! program. No memory map: a file that shrinks while it is read gives an error, not a signal.

use std::fs::{File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

use crate::error::Error;

/// Alignment that satisfies direct reads on every common disk.
const ALIGNMENT: usize = 4096;
/// Bytes moved by one direct read.
const DIRECT_CHUNK: usize = 4 << 20;

/// An opened file of known length.
#[derive(Debug)]
pub(crate) struct SourceFile {
    path: PathBuf,
    place: Place,
    len: u64,
}

/// Where the bytes are.
#[derive(Debug)]
enum Place {
    Disk { file: File, direct: Option<File> },
    Memory(&'static [u8]),
}

impl SourceFile {
    /// Opens a regular file. Devices and pipes are refused: they would block or never end.
    pub(crate) fn open(path: &Path) -> Result<SourceFile, Error> {
        let failed = |error| Error::io(path, "open", error);
        let metadata = std::fs::metadata(path).map_err(failed)?;
        if !metadata.is_file() {
            return Err(Error::input(
                path,
                "",
                "this is not a regular file",
                "give the path of the model file itself",
            ));
        }
        let file = File::open(path).map_err(failed)?;
        let len = file.metadata().map_err(failed)?.len();
        Ok(SourceFile { path: path.to_path_buf(), place: Place::Disk { file, direct: None }, len })
    }

    /// Bytes that need no opening; `name` stands for them in messages.
    pub(crate) fn memory(name: &Path, bytes: &'static [u8]) -> SourceFile {
        SourceFile { path: name.to_path_buf(), place: Place::Memory(bytes), len: bytes.len() as u64 }
    }

    /// Length when it was opened.
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// The path it was opened by.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Reads past the page cache from now on, where the file system can; else nothing changes.
    pub(crate) fn use_direct_reads(&mut self) -> Result<(), Error> {
        let Place::Disk { direct, .. } = &mut self.place else {
            return Ok(());
        };
        match open_direct(&self.path) {
            Ok(file) => *direct = file,
            // tmpfs and some network file systems refuse the flag; the cache is then the only way.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => {}
            Err(error) => return Err(Error::io(&self.path, "open for direct reads", error)),
        }
        Ok(())
    }

    /// Fills `out` from `offset`. The range must lie in the file.
    pub(crate) fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<(), Error> {
        let end = offset.checked_add(out.len() as u64);
        if end.is_none_or(|end| end > self.len) {
            return Err(Error::input(
                &self.path,
                format!("offset {offset}"),
                format!("{} bytes are needed here, the file ends at {}", out.len(), self.len),
                "the copy is incomplete: copy this file again",
            ));
        }
        let result = match &self.place {
            Place::Memory(bytes) => {
                let start = offset as usize;
                out.copy_from_slice(&bytes[start..start + out.len()]);
                Ok(())
            }
            Place::Disk { file, direct: Some(direct) } if out.len() >= ALIGNMENT => {
                read_direct(file, direct, offset, out)
            }
            Place::Disk { file, .. } => read_exact_at(file, offset, out),
        };
        result.map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => Error::input(
                &self.path,
                format!("offset {offset}"),
                "the file became shorter while it was read",
                "let nothing write to the model while it is used",
            ),
            _ => Error::io(&self.path, &format!("read at offset {offset}"), error),
        })
    }
}

/// Reads aligned chunks into an aligned bounce buffer and copies the wanted part out.
fn read_direct(file: &File, direct: &File, mut offset: u64, out: &mut [u8]) -> io::Result<()> {
    let wanted = out.len().min(DIRECT_CHUNK) + 2 * ALIGNMENT;
    let wanted = wanted.next_multiple_of(ALIGNMENT);
    let mut storage = vec![0u8; wanted + ALIGNMENT];
    let start = storage.as_ptr().align_offset(ALIGNMENT);
    let Some(buffer) = storage.get_mut(start..start + wanted) else {
        return read_exact_at(file, offset, out);
    };
    let mut filled = 0;
    while filled < out.len() {
        let skip = (offset % ALIGNMENT as u64) as usize;
        let chunk = (skip + out.len() - filled).next_multiple_of(ALIGNMENT);
        let chunk = chunk.min(wanted);
        let got = read_some_at(direct, offset - skip as u64, &mut buffer[..chunk])?;
        let useful = got.saturating_sub(skip).min(out.len() - filled);
        if useful == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        out[filled..filled + useful].copy_from_slice(&buffer[skip..skip + useful]);
        filled += useful;
        offset += useful as u64;
    }
    Ok(())
}

fn read_some_at(file: &File, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
    loop {
        match read_once_at(file, offset, buffer) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}

fn read_exact_at(file: &File, mut offset: u64, mut out: &mut [u8]) -> io::Result<()> {
    while !out.is_empty() {
        match read_some_at(file, offset, out)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            got => {
                out = &mut out[got..];
                offset += got as u64;
            }
        }
    }
    Ok(())
}

#[cfg(unix)]
fn read_once_at(file: &File, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
    std::os::unix::fs::FileExt::read_at(file, buffer, offset)
}

#[cfg(windows)]
fn read_once_at(file: &File, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
    std::os::windows::fs::FileExt::seek_read(file, buffer, offset)
}

/// The kernel's O_DIRECT; its value depends on the processor.
#[cfg(all(target_os = "linux", target_arch = "aarch64"))]
const O_DIRECT: i32 = 0x1_0000;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
const O_DIRECT: i32 = 0x4000;

#[cfg(all(target_os = "linux", any(target_arch = "aarch64", target_arch = "x86_64")))]
fn open_direct(path: &Path) -> io::Result<Option<File>> {
    use std::os::unix::fs::OpenOptionsExt;
    let mut options = OpenOptions::new();
    options.read(true).custom_flags(O_DIRECT).open(path).map(Some)
}

#[cfg(not(all(target_os = "linux", any(target_arch = "aarch64", target_arch = "x86_64"))))]
fn open_direct(path: &Path) -> io::Result<Option<File>> {
    OpenOptions::new().read(true).open(path).map(|_| None)
}
