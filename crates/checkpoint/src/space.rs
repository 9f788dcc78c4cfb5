//! Whether the disk has room for a model, asked before the first byte: every writer knows its
//! length once the tensors are declared.

use std::path::Path;

use crate::error::Error;

/// Refuses to write `needed` bytes at `path` where its file system has fewer left. What stands at
/// `path` now does not count as room: it stays until the new model is whole.
pub(crate) fn check(path: &Path, needed: u64) -> Result<(), Error> {
    match free(path) {
        Some(free) => compare(path, needed, free),
        // A system that does not say is no reason to refuse; a full disk ends the write later.
        None => Ok(()),
    }
}

fn compare(path: &Path, needed: u64, free: u64) -> Result<(), Error> {
    if needed <= free {
        return Ok(());
    }
    Err(Error::space(
        path,
        format!("this takes {needed} bytes, and its disk has {free} left"),
        format!("free {} bytes there, or write to another disk", needed - free),
    ))
}

/// Bytes that a file beside `path` may still take.
#[cfg(unix)]
fn free(path: &Path) -> Option<u64> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let system = rustix::fs::statvfs(parent.unwrap_or(Path::new("."))).ok()?;
    system.f_bavail.checked_mul(system.f_frsize)
}

#[cfg(not(unix))]
fn free(_path: &Path) -> Option<u64> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    #[test]
    fn a_disk_that_is_too_full_is_refused_with_the_numbers_and_a_remedy() {
        let path = Path::new("models/big");
        assert!(compare(path, 1000, 1000).is_ok());
        let error = compare(path, 8_000_000_000, 7_999_999_990).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Space);
        assert_eq!(
            error.to_string(),
            "models/big\nthis takes 8000000000 bytes, and its disk has 7999999990 left\n\
             free 10 bytes there, or write to another disk"
        );
    }

    #[test]
    #[cfg(unix)]
    fn no_disk_holds_everything() {
        let path = std::env::temp_dir().join("halfbyte-space");
        assert!(check(&path, 0).is_ok());
        assert!(check(&path, u64::MAX).is_err());
        // A relative name lies in the current directory; a missing directory is for others to refuse.
        assert!(check(Path::new("name"), u64::MAX).is_err());
        assert!(check(Path::new("no/such/directory/name"), u64::MAX).is_ok());
    }
}
