//! `ptx`: kernels `crates/cuda/src/*.cu` -> `crates/cuda/ptx/*.ptx`, which the crate embeds.
//!
//! Beside them lies `sources.txt`: for each module the hash of what it was made from, so that a stale
//! one is found where there is no compiler.

use std::fs;
use std::path::{Path, PathBuf};

use crate::nvrtc::Nvrtc;

/// What is embedded, and where that lies: any chip from this one on takes it.
const BASE: Made = Made { target: "compute_80", folder: "" };
/// Modules for the one chip that has products of warpgroups end so.
const WARPGROUP: &str = "_warpgroup";
const WARPGROUP_MADE: Made = Made { target: "compute_90a", folder: "sm_90a" };
const WARPGROUP_CHIP: &str = "sm_90a";
/// All that modules are embedded for.
pub(crate) const EMBEDDED: [Made; 2] = [BASE, WARPGROUP_MADE];

const FOLDER: &str = "crates/cuda";
const HASHES: &str = "sources.txt";

/// What a module is compiled for, and the folder of the PTX below that of all.
#[derive(Clone, Copy)]
pub(crate) struct Made {
    pub(crate) target: &'static str,
    folder: &'static str,
}

/// A kernel file and the hash of all that goes into it.
pub(crate) struct Module {
    pub(crate) name: String,
    source: String,
    pub(crate) hash: u64,
}

impl Module {
    fn made(&self) -> Made {
        if self.name.ends_with(WARPGROUP) { WARPGROUP_MADE } else { BASE }
    }

    /// Whether it is compiled for a chip, or for what is embedded.
    pub(crate) fn is_for(&self, target: &str) -> bool {
        match EMBEDDED.iter().any(|made| made.target == target) {
            true => self.made().target == target,
            false => !self.name.ends_with(WARPGROUP) || target == WARPGROUP_CHIP,
        }
    }
}

/// Compiles every module and writes its PTX; those that are not stale stay as they are.
pub(crate) fn build(root: &Path, nvrtc: &Path) -> Result<String, String> {
    let modules = modules(root)?;
    let stale = stale(root, &modules);
    let folder = root.join(FOLDER).join("ptx");
    let nvrtc = Nvrtc::load(nvrtc)?;
    for module in modules.iter().filter(|module| stale.contains(&module.name)) {
        let made = module.made();
        let ptx = compile(root, &nvrtc, module, made.target)?;
        let folder = folder.join(made.folder);
        fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        write(&folder.join(&module.name).with_extension("ptx"), &ptx)?;
    }
    for Made { folder: below, .. } in EMBEDDED {
        let lies_there =
            |name: &str| modules.iter().any(|own| own.name == name && own.made().folder == below);
        for path in files(&folder.join(below), "ptx")? {
            if !stem(&path).is_some_and(lies_there) {
                fs::remove_file(&path).map_err(|error| format!("{}: {error}", path.display()))?;
            }
        }
    }
    let lines: Vec<String> =
        modules.iter().map(|module| format!("{} {:016x}\n", module.name, module.hash)).collect();
    write(&folder.join(HASHES), &lines.concat())?;
    Ok(format!("NVRTC {}: {} of {} modules made", nvrtc.version(), stale.len(), modules.len()))
}

/// Whether what is embedded was made from the sources that are there.
pub(crate) fn check(root: &Path) -> Result<String, String> {
    let modules = modules(root)?;
    let stale = stale(root, &modules);
    if stale.is_empty() {
        Ok(format!("{} modules are up to date", modules.len()))
    } else {
        Err(format!("stale PTX: {}. Run cargo run -p xtask -- ptx --nvrtc PATH.", stale.join(", ")))
    }
}

/// The PTX that is embedded of a module for a target, if any is.
pub(crate) fn embedded(root: &Path, module: &Module, target: &str) -> Option<String> {
    let made = module.made();
    if made.target != target {
        return None;
    }
    let folder = root.join(FOLDER).join("ptx").join(made.folder);
    fs::read_to_string(folder.join(&module.name).with_extension("ptx")).ok()
}

pub(crate) fn compile(root: &Path, nvrtc: &Nvrtc, module: &Module, target: &str) -> Result<String, String> {
    let mut options = options(target);
    options.push(format!("--include-path={}", root.join(FOLDER).join("src/kernels").display()));
    nvrtc
        .compile(&format!("{}.cu", module.name), &module.source, &options)
        .map_err(|said| format!("{} for {target}:\n{said}", module.name))
}

/// Nothing is contracted or approximated unless a kernel says so: bits are promised.
fn options(target: &str) -> Vec<String> {
    let architecture = format!("--gpu-architecture={target}");
    let rest = ["--std=c++17", "--fmad=false", "--ftz=false", "--prec-div=true", "--prec-sqrt=true"];
    std::iter::once(architecture).chain(rest.map(str::to_owned)).collect()
}

/// Every kernel file; each may include any header, so all headers count for all.
pub(crate) fn modules(root: &Path) -> Result<Vec<Module>, String> {
    let folder = root.join(FOLDER).join("src");
    let mut headers = options(BASE.target).concat();
    for path in all_files(&folder.join("kernels"), "cuh")? {
        headers += &read(&path)?;
    }
    let sources = files(&folder, "cu")?.into_iter().map(|path| {
        let source = read(&path)?;
        let hash = hash(headers.bytes().chain(source.bytes()));
        Ok(Module { name: stem(&path).unwrap_or_default().to_owned(), source, hash })
    });
    sources.collect()
}

/// Names of modules whose hash is not the one written beside the PTX, or whose PTX is not there.
fn stale(root: &Path, modules: &[Module]) -> Vec<String> {
    let folder = root.join(FOLDER).join("ptx");
    let kept = fs::read_to_string(folder.join(HASHES)).unwrap_or_default();
    let fresh = |module: &Module| {
        let line = format!("{} {:016x}", module.name, module.hash);
        let there = folder.join(module.made().folder).join(&module.name).with_extension("ptx").is_file();
        kept.lines().any(|kept| kept == line) && there
    };
    modules.iter().filter(|module| !fresh(module)).map(|module| module.name.clone()).collect()
}

/// FNV-1a: enough to see a change.
pub(crate) fn hash(bytes: impl Iterator<Item = u8>) -> u64 {
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

fn stem(path: &Path) -> Option<&str> {
    path.file_stem().and_then(|stem| stem.to_str())
}

fn files(folder: &Path, ending: &str) -> Result<Vec<PathBuf>, String> {
    let entries = fs::read_dir(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    paths.retain(|path| path.is_file() && path.extension().is_some_and(|own| own == ending));
    paths.sort();
    Ok(paths)
}

fn all_files(folder: &Path, ending: &str) -> Result<Vec<PathBuf>, String> {
    let mut paths = files(folder, ending)?;
    let entries = fs::read_dir(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let mut folders: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    folders.sort();
    for below in folders.iter().filter(|path| path.is_dir()) {
        paths.extend(all_files(below, ending)?);
    }
    Ok(paths)
}

fn read(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))
}

fn write(path: &Path, text: &str) -> Result<(), String> {
    fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_byte_changes_the_hash() {
        assert_eq!(hash("".bytes()), 0xcbf2_9ce4_8422_2325);
        assert_ne!(hash("a = b + c;".bytes()), hash("a = b - c;".bytes()));
    }
}
