//! How this test starts itself again: through the emulator that scripts/aarch64.sh names, where
//! there is one.

use std::ffi::OsString;

/// Program and first arguments.
pub(crate) fn itself() -> Vec<OsString> {
    let emulator = match cfg!(target_arch = "aarch64") {
        true => std::env::var("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER").unwrap_or_default(),
        false => String::new(),
    };
    let mut words: Vec<OsString> = emulator.split_whitespace().map(OsString::from).collect();
    words.push(std::env::current_exe().unwrap().into());
    words
}
