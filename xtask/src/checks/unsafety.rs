//! `unsafe` lives in the crates that touch hardware, and every use says why it is sound.

use super::Finding;
use crate::tree::File;

/// Crates that may; all others forbid it at their root.
const MAY: [&str; 2] = ["cpu", "cuda"];

/// The one file outside them that loads a compiler; the root of its crate denies it everywhere else.
const LOADER: &str = "xtask/src/nvrtc.rs";

/// A comment further above than this does not belong to the block.
const NEAR: usize = 6;

pub(super) fn check(files: &[File]) -> Vec<Finding> {
    let rust = files.iter().filter(|file| file.is_rust());
    rust.flat_map(|file| {
        let may = file.crate_name().is_some_and(|name| MAY.contains(&name)) || file.path == LOADER;
        if may { reasons(file) } else { absence(file) }
    })
    .collect()
}

fn absence(file: &File) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (number, line) in file.lines.iter().enumerate() {
        if line.has_word("unsafe") {
            findings.push(Finding::new(file, number + 1, "`unsafe` outside crates/cpu and crates/cuda"));
        }
    }
    let attribute =
        if file.path == "xtask/src/main.rs" { "#![deny(unsafe_code)]" } else { "#![forbid(unsafe_code)]" };
    let forbids = file.lines.iter().any(|line| line.code.contains(attribute));
    if is_root(&file.path) && !forbids {
        findings.push(Finding::new(file, 1, format!("the crate's root lacks {attribute}")));
    }
    findings
}

fn is_root(path: &str) -> bool {
    path.ends_with("/src/lib.rs") || path.ends_with("/src/main.rs")
}

fn reasons(file: &File) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (number, line) in file.lines.iter().enumerate() {
        if !needs_reason(&line.code) {
            continue;
        }
        let near = &file.lines[number.saturating_sub(NEAR)..=number];
        if !near.iter().any(|line| line.comment.contains("SAFETY")) {
            findings.push(Finding::new(file, number + 1, "no SAFETY comment says why this is sound"));
        }
    }
    findings
}

/// A block, an impl, an extern block. A declaration (`unsafe fn`) says what it asks for in its docs.
fn needs_reason(code: &str) -> bool {
    code.match_indices("unsafe").any(|(at, word)| {
        let before = code[..at].chars().next_back();
        let after = code[at + word.len()..].trim_start();
        !before.is_some_and(|c| c.is_alphanumeric() || c == '_')
            && (after.is_empty()
                || ["{", "impl", "extern \"\" {"].iter().any(|start| after.starts_with(start)))
    })
}

#[cfg(test)]
mod tests {
    use super::super::lines_of;
    use super::*;

    #[test]
    fn unsafe_outside_the_hardware_crates_fails() {
        let text = "//! x\n#![forbid(unsafe_code)]\nfn a() { unsafe { b() } }\n";
        assert_eq!(lines_of(&check(&[File::of("crates/model/src/lib.rs", text)])), [3]);
        assert_eq!(lines_of(&check(&[File::of("crates/model/tests/a.rs", "//! x\nunsafe fn a() {}")])), [2]);
    }

    #[test]
    fn the_word_in_a_comment_or_string_passes() {
        let text = "//! unsafe\n// unsafe { }\nlet a = \"unsafe {\";\n";
        assert_eq!(check(&[File::of("crates/model/src/a.rs", text)]), []);
    }

    #[test]
    fn a_root_that_does_not_forbid_fails() {
        for root in ["crates/text/src/lib.rs", "crates/cli/src/main.rs"] {
            assert_eq!(lines_of(&check(&[File::of(root, "//! x\n// #![forbid(unsafe_code)]\n")])), [1]);
            assert_eq!(check(&[File::of(root, "//! x\n#![forbid(unsafe_code)]\n")]), []);
        }
        assert_eq!(check(&[File::of("crates/cpu/src/lib.rs", "//! x\n")]), []);
    }

    #[test]
    fn xtask_denies_it_everywhere_but_in_one_file() {
        assert_eq!(check(&[File::of("xtask/src/main.rs", "//! x\n#![deny(unsafe_code)]\n")]), []);
        assert_eq!(lines_of(&check(&[File::of("xtask/src/main.rs", "//! x\n")])), [1]);
        let call = "//! x\n// SAFETY: checked.\nunsafe { a() }\n";
        assert_eq!(check(&[File::of(LOADER, call)]), []);
        assert_eq!(lines_of(&check(&[File::of("xtask/src/ptx.rs", call)])), [3]);
    }

    #[test]
    fn a_block_with_a_reason_passes() {
        let text = "//! x\n// SAFETY: checked.\nlet a = b(\n    unsafe { c() });\n// SAFETY: d.\nunsafe impl Send for E {}\n\
            /// # Safety\n/// f\nunsafe fn g() {}\n";
        assert_eq!(check(&[File::of("crates/cpu/src/a.rs", text)]), []);
    }

    #[test]
    fn a_block_without_a_reason_fails() {
        let far =
            "// SAFETY: of another.\n".to_owned() + &"\n".repeat(NEAR + 1) + "let a = unsafe { b() };\n";
        assert_eq!(lines_of(&check(&[File::of("crates/cpu/src/a.rs", &far)])), [NEAR + 3]);
        let bare = "//! x\nunsafe impl Send for E {}\nlet a = unsafe\n{ b() };\nunsafe extern \"C\" {\n}\n";
        assert_eq!(lines_of(&check(&[File::of("crates/cuda/src/a.rs", bare)])), [2, 3, 5]);
    }
}
