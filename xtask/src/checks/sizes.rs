//! Sizes: golden files stay small enough to read in a review; a long source file is worth a thought.

use super::Finding;
use crate::tree::File;

const GOLDEN_BYTES: u64 = 200 * 1024;
const SOURCE_LINES: usize = 600;

pub(super) fn check(files: &[File]) -> Vec<Finding> {
    files.iter().filter_map(|file| golden(file).or_else(|| source(file))).collect()
}

fn golden(file: &File) -> Option<Finding> {
    let is_golden = file.path.split('/').rev().skip(1).any(|folder| folder == "golden");
    (is_golden && file.bytes > GOLDEN_BYTES).then(|| {
        let problem =
            format!("{} bytes of golden data, more than {GOLDEN_BYTES}: keep fewer cases", file.bytes);
        Finding::new(file, 1, problem)
    })
}

fn source(file: &File) -> Option<Finding> {
    let lines = file.text().lines().count();
    (file.is_rust() && lines > SOURCE_LINES)
        .then(|| Finding::warning(file, SOURCE_LINES + 1, format!("{lines} lines: is this two files?")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_golden_file_fails() {
        let large = File::new("crates/a/tests/golden/b.bin", GOLDEN_BYTES + 1, None);
        assert!(check(&[large])[0].fails);
        let small = File::new("crates/a/tests/golden/b.bin", GOLDEN_BYTES, None);
        let elsewhere = File::new("docs/golden.png", GOLDEN_BYTES + 1, None);
        assert_eq!(check(&[small, elsewhere]), []);
    }

    #[test]
    fn a_long_source_file_only_warns() {
        let long = File::of("crates/a/src/b.rs", &"//!\n".repeat(SOURCE_LINES + 1));
        assert!(!check(&[long])[0].fails);
        let fair = File::of("crates/a/src/b.rs", &"//!\n".repeat(SOURCE_LINES));
        let prose = File::of("README.md", &"a\n".repeat(SOURCE_LINES + 1));
        assert_eq!(check(&[fair, prose]), []);
    }
}
