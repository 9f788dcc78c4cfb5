//! Where the library may be.

use std::path::{Path, PathBuf};

/// Newest first.
const NAMES: [&str; 2] = ["libcublasLt.so.13", "libcublasLt.so.12"];

/// The folders of Python's packages that bring it, below a Python's own folder.
const PACKAGES: [&str; 4] = [
    "lib/python3*/site-packages/nvidia/cu13/lib",
    "lib/python3*/site-packages/nvidia/cublas/lib",
    "lib/python3*/dist-packages/nvidia/cu13/lib",
    "lib/python3*/dist-packages/nvidia/cublas/lib",
];

/// Toolkits, and where systems put Pythons: in the folder, in one below, in the environment of one below.
const TOOLKITS: [&str; 2] = ["/usr/local/cuda*/lib64", "/usr/local/cuda*/targets/*/lib"];
const PYTHONS: [&str; 3] = ["/usr", "/usr/local", "/opt"];
const BELOW: [&str; 3] = ["", "*", "*/.venv"];

/// Names and paths to try, in order: what the loader finds by itself, the Pythons in the given folders
/// (those of `bin` and `lib`), toolkits, Pythons in the usual folders.
pub fn usual_places(pythons: &[PathBuf]) -> Vec<PathBuf> {
    let mut folders = Vec::new();
    let python =
        |folder: &Path| PACKAGES.iter().flat_map(|below| matching(folder, below)).collect::<Vec<_>>();
    pythons.iter().for_each(|folder| folders.extend(python(folder)));
    TOOLKITS.iter().for_each(|toolkit| folders.extend(matching(Path::new("/"), &toolkit[1..])));
    for root in PYTHONS {
        let roots = BELOW.iter().flat_map(|below| matching(Path::new(root), below));
        roots.for_each(|folder| folders.extend(python(&folder)));
    }
    let inside = |name: &'static str| folders.iter().map(move |folder| folder.join(name));
    let found = NAMES.into_iter().flat_map(inside).filter(|path| path.is_file());
    NAMES.into_iter().map(PathBuf::from).chain(found).collect()
}

/// The folders below one whose names follow a pattern: `*` stands for any characters of a name.
fn matching(folder: &Path, pattern: &str) -> Vec<PathBuf> {
    let (first, rest) = pattern.split_once('/').unwrap_or((pattern, ""));
    if first.is_empty() {
        return vec![folder.to_path_buf()];
    }
    let Some((before, after)) = first.split_once('*') else {
        return matching(&folder.join(first), rest);
    };
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<_> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.retain(|name| name.len() >= first.len() - 1 && name.starts_with(before) && name.ends_with(after));
    names.sort();
    // The newest first, as far as names tell.
    names.iter().rev().flat_map(|name| matching(&folder.join(name), rest)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_python_given_comes_before_those_in_the_usual_folders() {
        let root = std::env::temp_dir().join(format!("halfbyte-places-{}", std::process::id()));
        let lib = root.join("lib/python3.12/site-packages/nvidia/cu13/lib");
        std::fs::create_dir_all(&lib).unwrap();
        std::fs::write(lib.join("libcublasLt.so.13"), "").unwrap();
        let places = usual_places(std::slice::from_ref(&root));
        std::fs::remove_dir_all(&root).unwrap();
        assert_eq!(places[..2], NAMES.map(PathBuf::from));
        assert_eq!(places[2], lib.join("libcublasLt.so.13"));
    }
}
