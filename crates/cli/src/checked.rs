//! Which GPUs have passed their self-test: one empty file for each chip, driver and set of kernels, in the user's cache.

use std::env;
use std::fs;
use std::path::PathBuf;

use halfbyte_cuda::{Device, self_test};

use crate::failure::Result;
use crate::output::Progress;

/// Checks a GPU that this user has not checked yet; passes are remembered where there is a place for it.
pub(crate) fn gpu(device: &Device) -> Result<()> {
    let identity = self_test::identity(device)?;
    let mark = folder().map(|folder| folder.join(file_name(&identity)));
    if mark.as_ref().is_some_and(|mark| mark.exists()) {
        return Ok(());
    }
    let progress = Progress::waiting("checking the kernels on this GPU, once");
    self_test::run(device)?;
    drop(progress);
    if let Some(mark) = mark {
        // Who cannot remember checks again.
        let _ = mark.parent().map(fs::create_dir_all).transpose().and_then(|_| fs::write(&mark, ""));
    }
    Ok(())
}

/// Where a user's programs keep what they can make again.
fn folder() -> Option<PathBuf> {
    let named = env::var_os("XDG_CACHE_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
    let usual = || env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache"));
    named.or_else(usual).map(|folder| folder.join("halfbyte"))
}

fn file_name(identity: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || c == '.' { c } else { '-' };
    identity.chars().map(plain).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_safe_for_any_file_system() {
        assert_eq!(file_name("NVIDIA H200/x sm_90"), "NVIDIA-H200-x-sm-90");
    }
}
