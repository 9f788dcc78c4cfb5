//! Repository chores: `cargo run -p xtask -- tidy` checks what the compiler cannot see.
//!
//! files -> `tree` -> `checks` -> findings, each with its file and line; a wall fails, a length warns.
#![forbid(unsafe_code)]

mod checks;
mod source;
mod tree;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

const HELP: &str = "\
usage: cargo run -p xtask -- tidy

tidy   arrows between crates, unsafe, module docs, printing, contracts of ops, unfinished
       code, paths of one machine, sizes; exits 1 and names file and line if a wall is broken";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["tidy"] => tidy(&root()),
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
