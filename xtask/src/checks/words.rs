//! Words that do not belong: printing outside cli, unfinished code; and module docs that must be there.

use super::Finding;
use crate::source::has_word;
use crate::tree::File;

/// What only cli (and this chore, and tests) may do: print, exit, read the environment.
const SPEECH: [&str; 8] =
    ["println!", "eprintln!", "print!", "eprint!", "process::exit", "env::var", "env::var_os", "env::vars"];

const UNFINISHED: [&str; 4] = ["todo!", "unimplemented!", "dbg!", "#[ignore"];

/// The mark of a known fault left in place.
const MARK: &str = "FIXME";

pub(super) fn check(files: &[File]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in files {
        if file.is_rust() {
            module_docs(file, &mut findings);
            speech(file, &mut findings);
            unfinished(file, &mut findings);
        } else if [".py", ".sh", ".toml"].iter().any(|ending| file.path.ends_with(ending)) {
            marks(file, &mut findings);
        }
    }
    findings
}

fn module_docs(file: &File, findings: &mut Vec<Finding>) {
    if !file.text().starts_with("//!") {
        findings.push(Finding::new(file, 1, "the first line is not `//!` docs: say what the file is for"));
    }
}

fn speech(file: &File, findings: &mut Vec<Finding>) {
    let may = file.crate_name() == Some("cli") || file.path.starts_with("xtask/");
    if may || file.is_beside_the_product() {
        return;
    }
    for (number, line) in file.lines.iter().enumerate().filter(|(_, line)| !line.test) {
        if let Some(word) = SPEECH.iter().find(|word| line.has_word(word)) {
            let problem = format!("`{word}`: only crates/cli prints, exits and reads the environment");
            findings.push(Finding::new(file, number + 1, problem));
        }
    }
}

fn unfinished(file: &File, findings: &mut Vec<Finding>) {
    for (number, line) in file.lines.iter().enumerate() {
        let word = UNFINISHED.iter().find(|word| line.has_word(word));
        let word = word.or_else(|| has_word(&line.comment, MARK).then_some(&MARK));
        if let Some(word) = word {
            findings.push(Finding::new(file, number + 1, format!("`{word}`: finish it or open an issue")));
        }
    }
}

fn marks(file: &File, findings: &mut Vec<Finding>) {
    for (number, line) in file.text().lines().enumerate() {
        if has_word(line, MARK) {
            findings.push(Finding::new(file, number + 1, format!("`{MARK}`: finish it or open an issue")));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::lines_of;
    use super::*;

    #[test]
    fn a_file_without_module_docs_fails() {
        assert_eq!(lines_of(&check(&[File::of("crates/a/src/b.rs", "// b\n//! c\n")])), [1]);
        assert_eq!(lines_of(&check(&[File::of("crates/a/tests/b.rs", "")])), [1]);
        assert_eq!(check(&[File::of("crates/a/src/b.rs", "//! b\n")]), []);
        assert_eq!(check(&[File::of("scripts/b.py", "# b\n")]), []);
    }

    #[test]
    fn speech_outside_cli_fails() {
        let text =
            "//! x\nprintln!(\"a\");\nstd::process::exit(1);\nlet a = env::var_os(\"b\");\neprint!(\"c\");\n";
        assert_eq!(lines_of(&check(&[File::of("crates/model/src/a.rs", text)])), [2, 3, 4, 5]);
    }

    #[test]
    fn speech_in_cli_tests_examples_and_docs_passes() {
        let text = "//! x\nprintln!(\"a\");\nstd::process::exit(1);\n";
        let places =
            ["crates/cli/src/a.rs", "xtask/src/a.rs", "crates/a/tests/b.rs", "crates/a/examples/b.rs"];
        for path in places {
            assert_eq!(check(&[File::of(path, text)]), [], "{path}");
        }
        let quiet = "//! println!(\"a\")\nwriteln!(out, \"print!\")?;\n#[cfg(test)]\nmod tests {\n eprintln!(\"skipped\");\n}\n";
        assert_eq!(check(&[File::of("crates/model/src/a.rs", quiet)]), []);
    }

    #[test]
    fn unfinished_code_fails_everywhere() {
        let text =
            format!("//! x\ntodo!();\nunimplemented!()\ndbg!(a)\n// {MARK} later\n#[ignore = \"slow\"]\n");
        for path in ["crates/cli/src/a.rs", "crates/a/tests/b.rs"] {
            assert_eq!(lines_of(&check(&[File::of(path, &text)])), [2, 3, 4, 5, 6], "{path}");
        }
        assert_eq!(lines_of(&check(&[File::of("scripts/a.py", &format!("a\n# {MARK}\n"))])), [2]);
    }

    #[test]
    fn finished_code_passes() {
        let text = "//! x\nlet a = \"todo!()\";\n// a todo list\n#[should_panic]\nfn b() {}\n";
        assert_eq!(check(&[File::of("crates/a/src/b.rs", text)]), []);
        assert_eq!(check(&[File::of("scripts/a.py", "a\n# b\n")]), []);
    }
}
