//! The repository's files, as `.gitignore` leaves them.

use std::fs;
use std::io;
use std::path::Path;

use crate::source::{self, Line};

/// One file: its path from the root with `/`, its size, and its text where it is text.
pub(crate) struct File {
    pub(crate) path: String,
    pub(crate) bytes: u64,
    pub(crate) text: Option<String>,
    /// Of a Rust file: code and comments apart. Empty for others.
    pub(crate) lines: Vec<Line>,
}

impl File {
    pub(crate) fn new(path: &str, bytes: u64, text: Option<String>) -> File {
        let rust = path.ends_with(".rs");
        let lines = text.as_deref().filter(|_| rust).map(source::split).unwrap_or_default();
        File { path: path.to_owned(), bytes, text, lines }
    }

    /// A file of a test: what a checker sees, without a disk.
    #[cfg(test)]
    pub(crate) fn of(path: &str, text: &str) -> File {
        File::new(path, text.len() as u64, Some(text.to_owned()))
    }

    pub(crate) fn is_rust(&self) -> bool {
        self.path.ends_with(".rs")
    }

    pub(crate) fn text(&self) -> &str {
        self.text.as_deref().unwrap_or_default()
    }

    /// `crates/NAME/...` -> NAME
    pub(crate) fn crate_name(&self) -> Option<&str> {
        self.path.strip_prefix("crates/")?.split('/').next()
    }

    pub(crate) fn name(&self) -> &str {
        self.path.rsplit('/').next().unwrap_or_default()
    }

    /// Whether the whole file is compiled for tests, examples or benches only.
    pub(crate) fn is_beside_the_product(&self) -> bool {
        let folders = ["tests", "examples", "benches"];
        self.path.split('/').any(|part| folders.contains(&part)) || self.name() == "tests.rs"
    }
}

/// Every file that git would keep, sorted by path.
pub(crate) fn read(root: &Path) -> io::Result<Vec<File>> {
    let ignored = Ignored::parse(&fs::read_to_string(root.join(".gitignore")).unwrap_or_default());
    let mut files = Vec::new();
    walk(root, "", &ignored, &mut files)?;
    files.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(files)
}

fn walk(folder: &Path, prefix: &str, ignored: &Ignored, files: &mut Vec<File>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let Ok(name) = entry.file_name().into_string() else { continue };
        let path = if prefix.is_empty() { name } else { format!("{prefix}/{name}") };
        if ignored.holds(&path) {
            continue;
        }
        let kind = entry.file_type()?;
        if kind.is_dir() {
            walk(&entry.path(), &path, ignored, files)?;
        } else if kind.is_file() {
            let bytes = fs::read(entry.path())?;
            files.push(File::new(&path, bytes.len() as u64, String::from_utf8(bytes).ok()));
        }
    }
    Ok(())
}

/// The three kinds of line our `.gitignore` uses: `/name` at the root, `name` anywhere, `*.end`.
struct Ignored {
    at_root: Vec<String>,
    anywhere: Vec<String>,
    endings: Vec<String>,
}

impl Ignored {
    fn parse(text: &str) -> Ignored {
        let mut ignored = Ignored { at_root: vec![".git".into()], anywhere: Vec::new(), endings: Vec::new() };
        for line in text.lines().map(|line| line.trim().trim_end_matches('/')) {
            if let Some(name) = line.strip_prefix('/') {
                ignored.at_root.push(name.to_owned());
            } else if let Some(ending) = line.strip_prefix('*') {
                ignored.endings.push(ending.to_owned());
            } else if !line.is_empty() && !line.starts_with('#') {
                ignored.anywhere.push(line.to_owned());
            }
        }
        ignored
    }

    fn holds(&self, path: &str) -> bool {
        let name = path.rsplit('/').next().unwrap_or_default();
        self.at_root.iter().any(|root| root == path)
            || self.anywhere.iter().any(|part| part == name)
            || self.endings.iter().any(|ending| name.ends_with(ending.as_str()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ignored_files_are_not_read() {
        let ignored = Ignored::parse("/target\n# why\n*.tmp\n__pycache__/\n");
        for path in ["target", ".git", "a/b.tmp", "scripts/__pycache__"] {
            assert!(ignored.holds(path), "{path}");
        }
        for path in ["crates/target", "a/b.rs", ".ci", "# why"] {
            assert!(!ignored.holds(path), "{path}");
        }
    }

    #[test]
    fn a_file_knows_its_crate_and_whether_it_is_a_test() {
        let file = File::of("crates/ops/src/lib.rs", "");
        assert_eq!((file.crate_name(), file.is_beside_the_product()), (Some("ops"), false));
        assert!(File::of("crates/ops/tests/golden.rs", "").is_beside_the_product());
        assert!(File::of("crates/ops/src/dot/tests.rs", "").is_beside_the_product());
        assert_eq!(File::of("xtask/src/main.rs", "").crate_name(), None);
    }
}
