//! `ptx --all-targets`: every kernel file compiled for every chip, and the embedded PTX made once more.
//!
//! One process for each target, since NVRTC compiles one program at a time in a process, and as many of
//! them as there are cores. What was well is remembered in the target folder: only what changed since is
//! compiled again.

use std::collections::HashSet;
use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::thread;

use crate::nvrtc::Nvrtc;
use crate::ptx::{self, Module};

/// Chips that every kernel must compile for.
const CHIPS: [&str; 7] = ["sm_80", "sm_89", "sm_90a", "sm_100a", "sm_103a", "sm_120a", "sm_121a"];
/// The line of PTX that names the compiler.
const MADE_BY: &str = "// Cuda compilation tools";

/// All targets.
pub(crate) fn check_all(nvrtc: &Path) -> Result<String, String> {
    let own = std::env::current_exe().map_err(|error| format!("xtask itself: {error}"))?;
    let embedded = ptx::EMBEDDED.map(|made| made.target);
    let waiting = Mutex::new(CHIPS.iter().chain(&embedded));
    let failed = Mutex::new(Vec::new());
    let next = || waiting.lock().ok().and_then(|mut waiting| waiting.next());
    let take = || {
        while let Some(target) = next() {
            let status =
                Command::new(&own).args(["ptx", "--nvrtc"]).arg(nvrtc).args(["--target", target]).status();
            if !status.is_ok_and(|status| status.success()) {
                failed.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).push(*target);
            }
        }
    };
    let cores = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| (0..cores).for_each(|_| drop(scope.spawn(take))));
    match failed.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner())[..] {
        [] => Ok(format!("every module compiles for {}, and the embedded ones are theirs", CHIPS.join(", "))),
        ref failed => Err(format!("not every module is well for {}; see above", failed.join(", "))),
    }
}

/// One target, in this process.
pub(crate) fn check(root: &Path, nvrtc: &Path, target: &str) -> Result<String, String> {
    let (modules, nvrtc) = (ptx::modules(root)?, Nvrtc::load(nvrtc)?);
    let memory = Memory::open(root, target)?;
    let (mut compiled, mut known) = (0, 0);
    for module in modules.iter().filter(|module| module.is_for(target)) {
        let embedded = ptx::embedded(root, module, target);
        let mark = mark(module, &nvrtc.version(), embedded.as_deref());
        if memory.known.contains(&mark) {
            known += 1;
            continue;
        }
        let made = ptx::compile(root, &nvrtc, module, target)?;
        if embedded.is_some_and(|embedded| differs(&embedded, &made)) {
            return Err(format!(
                "{}: the embedded PTX is not what its source makes. Remove it and run cargo run -p xtask -- ptx --nvrtc PATH.",
                module.name
            ));
        }
        memory.add(&mark)?;
        compiled += 1;
    }
    Ok(format!("{target}: {compiled} modules compiled, {known} had been before"))
}

/// Whether the same compiler made something else.
fn differs(embedded: &str, made: &str) -> bool {
    let maker = |text: &str| text.lines().find(|line| line.starts_with(MADE_BY)).map(str::to_owned);
    maker(embedded) == maker(made) && embedded != made
}

/// All that what is remembered depends on.
fn mark(module: &Module, version: &str, embedded: Option<&str>) -> String {
    let text = format!("{:016x} {version} {}", module.hash, embedded.unwrap_or_default());
    format!("{} {:016x}", module.name, ptx::hash(text.bytes()))
}

/// What was well for a target.
struct Memory {
    file: PathBuf,
    known: HashSet<String>,
}

impl Memory {
    fn open(root: &Path, target: &str) -> Result<Memory, String> {
        let folder = crate::target_folder(root).join("kernels");
        fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        let file = folder.join(target).with_extension("txt");
        let known = fs::read_to_string(&file).unwrap_or_default().lines().map(str::to_owned).collect();
        Ok(Memory { file, known })
    }

    fn add(&self, mark: &str) -> Result<(), String> {
        let file = OpenOptions::new().create(true).append(true).open(&self.file);
        file.and_then(|mut file| writeln!(file, "{mark}"))
            .map_err(|error| format!("{}: {error}", self.file.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ptx_of_another_compiler_is_not_compared() {
        let of = |version: &str, code: &str| format!("//\n{MADE_BY}, release {version}\n{code}\n");
        assert!(!differs(&of("12.9", "add"), &of("12.9", "add")));
        assert!(differs(&of("12.9", "add"), &of("12.9", "sub")));
        assert!(!differs(&of("12.9", "add"), &of("13.0", "sub")));
    }
}
