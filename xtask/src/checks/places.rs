//! No file names a place of one machine: an absolute path someone happens to have, a package mirror.

use super::Finding;
use crate::tree::File;

/// First folders of paths that exist on one machine only. What the system owes everyone (`proc`,
/// `sys`, `dev`, `etc`, `usr`) is not here.
const FOLDERS: [&str; 6] = ["home", "opt", "root", "tmp", "Users", "work"];

/// First labels of hosts that serve packages, and names of the programs that mirror them.
const LABELS: [&str; 4] = ["index", "mirror", "mirrors", "registry"];
const MIRRORS: [&str; 3] = ["artifactory", "jfrog", "sonatype"];

pub(super) fn check(files: &[File]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in files.iter().filter(|file| file.name() != "Cargo.lock") {
        for (number, line) in file.text().lines().enumerate() {
            // A test may speak of the temporary folder; it makes its own by `env::temp_dir`.
            let test = file.lines.get(number).is_some_and(|line| line.test) || file.is_beside_the_product();
            if let Some(folder) = machine_path(line).filter(|folder| !(test && *folder == "tmp")) {
                let problem = format!("a path under /{folder} exists on one machine: take it as an argument");
                findings.push(Finding::new(file, number + 1, problem));
            }
            if let Some(host) = package_host(line) {
                findings.push(Finding::new(file, number + 1, format!("names the package host {host}")));
            }
        }
    }
    findings
}

/// The first folder, if the line has an absolute path under one of FOLDERS.
fn machine_path(line: &str) -> Option<&'static str> {
    FOLDERS.into_iter().find(|folder| {
        line.match_indices('/').any(|(at, _)| {
            let begins = !line[..at].ends_with(|c: char| c.is_alphanumeric() || "_-.~/})]>$%*".contains(c));
            let below = line[at + 1..].strip_prefix(folder).and_then(|rest| rest.strip_prefix('/'));
            begins && below.is_some()
        })
    })
}

/// The host of a URL on this line, if it serves packages.
fn package_host(line: &str) -> Option<&str> {
    line.match_indices("://").find_map(|(at, mark)| {
        let rest = &line[at + mark.len()..];
        let end = |c: char| c.is_whitespace() || "\"'`<>)]},".contains(c);
        let url = rest.split(end).next().unwrap_or_default();
        let host = url.split(['/', ':']).next().unwrap_or_default();
        let label = host.split(['.', '-']).next().unwrap_or_default();
        let mirrors = MIRRORS.iter().any(|name| url.contains(name));
        (mirrors || LABELS.contains(&label) && host.contains('.')).then_some(host)
    })
}

#[cfg(test)]
mod tests {
    use super::super::lines_of;
    use super::*;

    fn findings_of(path: &str, text: &str) -> Vec<usize> {
        lines_of(&check(&[File::of(path, text)]))
    }

    /// Composed, or this file would be its own first finding.
    fn under(folder: &str) -> String {
        format!("/{folder}/models/a.gguf")
    }

    #[test]
    fn a_path_of_one_machine_fails() {
        for folder in FOLDERS {
            let path = under(folder);
            for line in [
                path.clone(),
                format!("model = \"{path}\""),
                format!("see `{path}`"),
                format!("--out={path}"),
            ] {
                assert_eq!(findings_of("README.md", &format!("a\n{line}\n")), [2], "{line}");
            }
        }
        let text = format!("//! x\nlet a = \"{}\";\n", under("opt"));
        assert_eq!(findings_of("crates/a/tests/b.rs", &text), [2]);
        assert_eq!(findings_of("crates/a/src/b.rs", &text.replace("opt", "tmp")), [2]);
    }

    #[test]
    fn other_paths_pass() {
        let lines = "crates/opt/a, target/tmp/b, {root}/work/c, $HOME/home/d, https://example.org/opt/e\n\
            /proc/meminfo /sys/fs/cgroup /dev/null /etc/passwd /usr/include\n/target\n/work\nand/or/tmp/x ./tmp/y\n";
        assert_eq!(findings_of("README.md", lines), []);
        assert_eq!(findings_of("Cargo.lock", &under("opt")), []);
    }

    #[test]
    fn tests_may_speak_of_the_temporary_folder() {
        let line = format!("let a = \"{}\";", under("tmp"));
        assert_eq!(findings_of("crates/a/tests/b.rs", &line), []);
        assert_eq!(
            findings_of("crates/a/src/b.rs", &format!("#[cfg(test)]\nmod tests {{\n{line}\n}}\n")),
            []
        );
    }

    #[test]
    fn a_package_host_fails() {
        for host in [
            "index.example.io",
            "registry.example.org",
            "mirror-3.example.com:443",
            "example.com/artifactory",
        ] {
            assert_eq!(findings_of("deny.toml", &format!("a = \"https:{}{host}/b\"\n", "//")), [1], "{host}");
        }
    }

    #[test]
    fn other_hosts_pass() {
        let lines = "https://github.com/rust-lang/crates.io-index https://huggingface.co/Qwen/Qwen3-4B\n\
            https://docs.rs/registry/latest file://index the registry, an index.\n";
        assert_eq!(findings_of("README.md", lines), []);
    }
}
