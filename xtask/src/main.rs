//! Repository chores: `cargo run -p xtask -- tidy` checks what the compiler cannot see, `ptx` compiles
//! the CUDA kernels, `emulate` runs them without a GPU.
//!
//! files -> `tree` -> `checks` -> findings, each with its file and line; a wall fails, a length warns.
#![deny(unsafe_code)]

mod checks;
mod emulate;
#[allow(unsafe_code)]
mod nvrtc;
mod ptx;
mod source;
mod targets;
mod tree;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

const HELP: &str = "\
usage: cargo run -p xtask -- tidy | ptx [--nvrtc PATH] [--all-targets | --target TARGET] | ptx --check | emulate [TEST]

tidy   arrows between crates, unsafe, module docs, printing, contracts of ops, unfinished
       code, paths of one machine, sizes; exits 1 and names file and line if a wall is broken
ptx    compiles the CUDA kernels that changed into crates/cuda/ptx, with the NVRTC at PATH: the library,
       or a folder with it below, such as a Python's site-packages after `pip install
       nvidia-cuda-nvrtc-cu12==12.9.*` (without --nvrtc: HALFBYTE_NVRTC)
       --all-targets   compiles all of them for every chip, what is embedded once more, and keeps nothing but a
                       note of what was well, so that only what changed is compiled the next time
       --target TARGET the same for one of them
       --check         says whether the PTX is what the sources make; needs no NVRTC
emulate  runs the tests of the CUDA backend (all, or those whose names have TEST in them) on kernels that a
       C++ compiler (CXX, or c++) has made for this machine; after ptx, which lists the kernels";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["tidy"] => tidy(&root()),
        ["ptx", ref options @ ..] => report("ptx", ptx_of(&root(), options)),
        ["emulate", ref filter @ ..] => report("emulate", emulate::run(&root(), filter)),
        ["help" | "--help" | "-h"] => {
            println!("{HELP}");
            ExitCode::SUCCESS
        }
        _ => {
            eprintln!("{HELP}");
            ExitCode::from(2)
        }
    }
}

fn report(chore: &str, outcome: Result<String, String>) -> ExitCode {
    match outcome {
        Ok(said) => {
            println!("{chore}: {said}");
            ExitCode::SUCCESS
        }
        Err(problem) => {
            eprintln!("{chore}: {problem}");
            ExitCode::FAILURE
        }
    }
}

fn ptx_of(root: &Path, options: &[&str]) -> Result<String, String> {
    let set = || {
        std::env::var_os("HALFBYTE_NVRTC")
            .map(PathBuf::from)
            .ok_or_else(|| "where is NVRTC? Give --nvrtc PATH or set HALFBYTE_NVRTC".to_owned())
    };
    match options {
        ["--check"] => ptx::check(root),
        [] => ptx::build(root, &set()?),
        ["--nvrtc", path] => ptx::build(root, Path::new(path)),
        ["--all-targets"] => targets::check_all(&set()?),
        ["--nvrtc", path, "--all-targets"] => targets::check_all(Path::new(path)),
        ["--nvrtc", path, "--target", target] => targets::check(root, Path::new(path), target),
        _ => Err(HELP.to_owned()),
    }
}

/// Where cargo keeps what can be made again.
fn target_folder(root: &Path) -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from)
}

fn root() -> PathBuf {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    own.parent().unwrap_or(own).to_owned()
}

fn tidy(root: &Path) -> ExitCode {
    let files = match tree::read(root) {
        Ok(files) => files,
        Err(error) => {
            eprintln!("tidy: {}: {error}", root.display());
            return ExitCode::FAILURE;
        }
    };
    let findings = checks::all(&files);
    let failed = findings.iter().filter(|finding| finding.fails).count();
    for finding in &findings {
        eprintln!("{finding}");
    }
    println!("tidy: {} files, {failed} failures, {} warnings", files.len(), findings.len() - failed);
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
