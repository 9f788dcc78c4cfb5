//! Every op of `ops` that has a contract is held to it by each device: its name is in a `contracts!` list.

use super::Finding;
use crate::tree::File;

const DEVICES: [&str; 2] = ["cpu", "cuda"];

pub(super) fn check(files: &[File]) -> Vec<Finding> {
    DEVICES.iter().flat_map(|device| missing(files, device)).collect()
}

fn missing(files: &[File], device: &str) -> Vec<Finding> {
    let own = files.iter().filter(|file| file.is_rust() && file.crate_name() == Some(device));
    let held: Vec<&str> = own.flat_map(listed).collect();
    let ops = files.iter().filter(|file| file.path.starts_with("crates/ops/src/"));
    ops.filter_map(|file| {
        let line =
            file.lines.iter().position(|line| line.code.trim_start().starts_with("pub fn contract"))?;
        let op = op_name(&file.path)?;
        let problem = format!("no contracts!(...) in crates/{device} names {op}: its kernels go untested");
        (!held.contains(&op)).then(|| Finding::new(file, line + 1, problem))
    })
    .collect()
}

/// crates/ops/src/rope.rs, crates/ops/src/rope/mod.rs -> rope
fn op_name(path: &str) -> Option<&str> {
    let path = path.strip_suffix(".rs")?;
    path.strip_suffix("/mod").unwrap_or(path).rsplit('/').next()
}

/// The names in every `contracts!(a, b)` of a file, over as many lines as it takes.
fn listed(file: &File) -> Vec<&str> {
    let mut names = Vec::new();
    let mut inside = false;
    for line in &file.lines {
        let mut rest = line.code.as_str();
        if !inside {
            let Some((_, after)) = rest.split_once("contracts!(") else { continue };
            rest = after;
        }
        let (list, closed) = rest.split_once(')').map_or((rest, false), |(list, _)| (list, true));
        names.extend(list.split(',').map(str::trim).filter(|name| !name.is_empty()));
        inside = !closed;
    }
    names
}

#[cfg(test)]
mod tests {
    use super::super::lines_of;
    use super::*;

    const OP: &str = "//! y = x\n\npub fn contract<B: Backend>(make: impl Fn(usize) -> B) {}\n";

    #[test]
    fn an_op_in_the_list_passes() {
        let list = "//! x\ncontracts!(rope, add); // first\ncontracts!(\n    gated,\n);\n";
        let of = |path: &str| {
            let devices = DEVICES.map(|device| File::of(&format!("crates/{device}/src/lib.rs"), list));
            check(&devices.into_iter().chain([File::of(path, OP)]).collect::<Vec<_>>())
        };
        for op in ["rope.rs", "add.rs", "gated.rs", "rope/mod.rs"] {
            assert_eq!(of(&format!("crates/ops/src/{op}")), [], "{op}");
        }
    }

    #[test]
    fn an_op_outside_the_list_fails() {
        let cpu = File::of("crates/cpu/src/lib.rs", "//! x\ncontracts!(rope);\n// contracts!(loss)\n");
        assert_eq!(lines_of(&check(&[cpu, File::of("crates/ops/src/loss.rs", OP)])), [3, 3]);
    }

    #[test]
    fn a_file_without_a_contract_owes_nothing() {
        assert_eq!(check(&[File::of("crates/ops/src/math.rs", "//! x\npub fn exp() {}\n")]), []);
    }
}
