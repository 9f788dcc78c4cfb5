//! Cargo arrows: a crate uses only what ARCHITECTURE.md draws below it.
//!
//! The drawing is the sentence that begins "Cargo arrows"; what is reachable along it may be used
//! directly, so an arrow may skip a floor but never points up or sideways.

use std::collections::{BTreeMap, BTreeSet};

use super::Finding;
use crate::tree::File;

type Drawing<'a> = BTreeMap<&'a str, BTreeSet<&'a str>>;

pub(super) fn check(files: &[File]) -> Vec<Finding> {
    let Some(architecture) = files.iter().find(|file| file.path == "ARCHITECTURE.md") else {
        return files
            .first()
            .map(|file| Finding::new(file, 1, "ARCHITECTURE.md is missing"))
            .into_iter()
            .collect();
    };
    let crates: BTreeSet<&str> = files.iter().filter_map(File::crate_name).collect();
    let sentence = architecture.text().lines().enumerate().find(|(_, line)| line.starts_with("Cargo arrows"));
    let Some((number, sentence)) = sentence else {
        return vec![Finding::new(architecture, 1, "no line begins with \"Cargo arrows (user -> used):\"")];
    };
    let drawing = match drawing(sentence, &crates) {
        Ok(drawing) => drawing,
        Err(problem) => return vec![Finding::new(architecture, number + 1, problem)],
    };
    let manifests = files.iter().filter(|file| file.name() == "Cargo.toml");
    let mut findings: Vec<Finding> = manifests.flat_map(|file| manifest(file, &drawing)).collect();
    for name in crates {
        if !architecture.text().contains(&format!("| `{name}` |")) {
            findings.push(Finding::new(architecture, 1, format!("the code map has no row for `{name}`")));
        }
    }
    findings
}

/// "Cargo arrows (user -> used): cli -> everything; a, b -> c. More prose." -> who may use whom.
fn drawing<'a>(sentence: &'a str, crates: &BTreeSet<&'a str>) -> Result<Drawing<'a>, String> {
    let (_, arrows) = sentence.split_once(':').ok_or("the arrows begin after a colon")?;
    let arrows = arrows.split_once('.').map_or(arrows, |(arrows, _)| arrows);
    let names = |list: &'a str| list.split(',').map(str::trim).filter(|name| !name.is_empty());
    let mut drawing = Drawing::new();
    for arrow in arrows.split(';') {
        let (users, used) =
            arrow.split_once("->").ok_or_else(|| format!("\"{}\" is no arrow", arrow.trim()))?;
        for user in names(users) {
            let below = drawing.entry(user).or_default();
            for name in names(used) {
                if name == "everything" {
                    below.extend(crates.iter().filter(|name| **name != user));
                } else {
                    below.insert(name);
                }
            }
        }
    }
    // Follow the arrows until nothing new is reached: one round per crate is enough.
    for _ in 0..drawing.len() {
        let before = drawing.clone();
        for below in drawing.values_mut() {
            let further: Vec<&str> =
                below.iter().filter_map(|name| before.get(name)).flatten().copied().collect();
            below.extend(further);
        }
    }
    match drawing.iter().find(|(user, below)| below.contains(*user)) {
        Some((user, _)) => Err(format!("the arrows lead from {user} back to itself")),
        None => Ok(drawing),
    }
}

fn manifest(file: &File, drawing: &Drawing<'_>) -> Vec<Finding> {
    let user = match file.path.strip_suffix("/Cargo.toml") {
        Some("xtask") => "xtask",
        Some(_) if file.crate_name().is_some() => file.crate_name().unwrap_or_default(),
        _ => return Vec::new(),
    };
    let allowed = |used: &str| drawing.get(user).is_some_and(|below| below.contains(used));
    let used = dependencies(file.text()).into_iter().filter(|(_, used)| !allowed(used));
    used.map(|(line, used)| {
        let problem = format!("{user} may not use {used}: ARCHITECTURE.md draws no arrow that way");
        Finding::new(file, line, problem)
    })
    .collect()
}

/// Workspace crates under the tables that ship, with their lines; dev-dependencies are free.
fn dependencies(text: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    let mut table = "";
    for (number, line) in text.lines().map(str::trim).enumerate() {
        let key = if let Some(header) = line.strip_prefix('[') {
            table = header.trim_end_matches(']');
            // [dependencies.name] names the crate in the header.
            match table.rsplit_once('.') {
                Some((parent, name)) if ships(parent) => name,
                _ => continue,
            }
        } else if ships(table) {
            line.split(['.', '=', ' ']).next().unwrap_or_default()
        } else {
            continue;
        };
        let name = key.trim_matches('"');
        if let Some(short) = name.strip_prefix("halfbyte-") {
            found.push((number + 1, short));
        } else if name == "halfbyte" {
            found.push((number + 1, "cli"));
        }
    }
    found
}

fn ships(table: &str) -> bool {
    matches!(table.rsplit('.').next(), Some("dependencies" | "build-dependencies"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAP: &str = "| `cli` | \n| `model` |\n| `ops` |\n| `formats` |\n| `cpu` |\n\
        Cargo arrows (user -> used): cli -> everything; model -> ops; cpu -> ops, formats; ops -> formats. So.\n";

    fn findings_of(path: &str, manifest: &str) -> Vec<Finding> {
        let crates = ["cli", "model", "ops", "formats", "cpu"];
        let mut files = vec![File::of("ARCHITECTURE.md", MAP), File::of(path, manifest)];
        files.extend(crates.map(|name| File::of(&format!("crates/{name}/src/lib.rs"), "//! x")));
        check(&files)
    }

    #[test]
    fn arrows_downward_pass_even_over_a_floor() {
        let manifest = "[dependencies]\nhalfbyte-ops.workspace = true\nhalfbyte-formats = { path = \"x\" }\nserde = \"1\"\n";
        assert_eq!(findings_of("crates/model/Cargo.toml", manifest), []);
        let all = "[dependencies]\nhalfbyte-cpu.workspace = true\nhalfbyte-model.workspace = true\n";
        assert_eq!(findings_of("crates/cli/Cargo.toml", all), []);
    }

    #[test]
    fn arrows_up_and_sideways_fail_by_line() {
        let manifest = "[package]\nname = \"x\"\n\n[dependencies]\nhalfbyte-cpu.workspace = true\n\
            [target.'cfg(unix)'.dependencies]\nhalfbyte = { path = \"x\" }\n[dependencies.halfbyte-model]\n";
        let findings = findings_of("crates/ops/Cargo.toml", manifest);
        assert_eq!(super::super::lines_of(&findings), [5, 7, 8]);
        assert!(findings[0].problem.contains("ops may not use cpu"), "{findings:?}");
    }

    #[test]
    fn dev_dependencies_are_free() {
        let manifest = "[dev-dependencies]\nhalfbyte-cpu.workspace = true\n";
        assert_eq!(findings_of("crates/model/Cargo.toml", manifest), []);
    }

    #[test]
    fn xtask_uses_no_crate() {
        let manifest = "[dependencies]\nhalfbyte-formats.workspace = true\n";
        assert_eq!(super::super::lines_of(&findings_of("xtask/Cargo.toml", manifest)), [2]);
    }

    #[test]
    fn a_crate_off_the_map_and_a_ring_are_found() {
        let files = [File::of("ARCHITECTURE.md", MAP), File::of("crates/train/src/lib.rs", "")];
        assert!(check(&files)[0].problem.contains("no row for `train`"));
        let ring = "Cargo arrows: a -> b; b -> c; c -> a.";
        assert!(drawing(ring, &BTreeSet::new()).unwrap_err().contains("back to itself"));
    }

    #[test]
    fn a_map_without_arrows_fails() {
        assert_eq!(check(&[File::of("ARCHITECTURE.md", "# x")]).len(), 1);
        let broken = [File::of("ARCHITECTURE.md", "\nCargo arrows: a uses b.")];
        assert_eq!(super::super::lines_of(&check(&broken)), [2]);
    }
}
