//! The checks, one file per subject; each maps files to findings and touches no disk.

mod arrows;
mod contracts;
mod places;
mod sizes;
mod unsafety;
mod words;

use std::fmt;

use crate::tree::File;

/// What is wrong, and where.
#[derive(Debug, PartialEq)]
pub(crate) struct Finding {
    path: String,
    line: usize,
    problem: String,
    /// A warning is printed and nothing more.
    pub(crate) fails: bool,
}

impl Finding {
    fn new(file: &File, line: usize, problem: impl Into<String>) -> Finding {
        Finding { path: file.path.clone(), line, problem: problem.into(), fails: true }
    }

    fn warning(file: &File, line: usize, problem: impl Into<String>) -> Finding {
        Finding { fails: false, ..Finding::new(file, line, problem) }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.fails { "" } else { "warning: " };
        write!(f, "{}:{}: {kind}{}", self.path, self.line, self.problem)
    }
}

/// Every check on every file.
pub(crate) fn all(files: &[File]) -> Vec<Finding> {
    let checks =
        [arrows::check, unsafety::check, words::check, contracts::check, places::check, sizes::check];
    checks.iter().flat_map(|check| check(files)).collect()
}

/// Lines of the findings, for tests.
#[cfg(test)]
fn lines_of(findings: &[Finding]) -> Vec<usize> {
    findings.iter().map(|finding| finding.line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finding_names_file_and_line() {
        let file = File::of("crates/a/src/lib.rs", "");
        assert_eq!(Finding::new(&file, 7, "bad").to_string(), "crates/a/src/lib.rs:7: bad");
        assert_eq!(Finding::warning(&file, 1, "long").to_string(), "crates/a/src/lib.rs:1: warning: long");
    }
}
