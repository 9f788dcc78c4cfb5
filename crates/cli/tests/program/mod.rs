//! Starts the built program as cargo starts the tests: through the emulator that scripts/aarch64.sh
//! names, where there is one.

use std::process::Command;

/// The program, ready for its arguments.
pub(crate) fn halfbyte() -> Command {
    let program = env!("CARGO_BIN_EXE_halfbyte");
    let emulator = match cfg!(target_arch = "aarch64") {
        true => std::env::var("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER").unwrap_or_default(),
        false => String::new(),
    };
    let mut words = emulator.split_whitespace();
    match words.next() {
        None => Command::new(program),
        Some(first) => {
            let mut command = Command::new(first);
            command.args(words).arg(program);
            command
        }
    }
}
