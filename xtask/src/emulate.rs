//! `emulate`: the contracts of the CUDA backend without a GPU. Every kernel file is compiled as C++ with
//! `crates/cuda/emulator`, all of them become a library in the place of the driver's, beside one in the
//! place of cuBLASLt, and the crate's tests run on them: threads in their order, then in the other.

use std::fs;
use std::path::Path;
use std::process::Command;

const FOLDER: &str = "crates/cuda";

/// Nothing is contracted, as in PTX; an access that a GPU would refuse ends the program.
const OPTIONS: [&str; 10] = [
    "-std=c++17",
    "-O1",
    "-ffp-contract=off",
    "-fno-strict-aliasing",
    "-fPIC",
    "-w",
    "-Wno-psabi",
    "-U_FORTIFY_SOURCE",
    "-fsanitize=alignment",
    "-fsanitize-undefined-trap-on-error",
];

/// Builds the library and runs the tests on it, those whose names have `filter` in them.
pub(crate) fn run(root: &Path, filter: &[&str]) -> Result<String, String> {
    let out = crate::target_folder(root).join("emulator");
    fs::create_dir_all(&out).map_err(|error| format!("{}: {error}", out.display()))?;
    let folder = root.join(FOLDER);
    let mut objects = Vec::new();
    for name in ["driver", "threads"] {
        objects.push(compile(&folder, &folder.join("emulator").join(name).with_extension("cpp"), &out)?);
    }
    for (module, kernels) in modules(&folder)? {
        // A namespace of its own, since files use names as they like.
        let lines: String = kernels.iter().map(|kernel| format!("KERNEL({kernel})\n")).collect();
        let text = format!("#include \"device.h\"\nnamespace {{\n#include \"{module}.cu\"\n{lines}}}\n");
        let source = out.join(&module).with_extension("cpp");
        fs::write(&source, text).map_err(|error| format!("{}: {error}", source.display()))?;
        objects.push(compile(&folder, &source, &out)?);
    }
    let library = out.join("libcuda.so.1");
    done(Command::new(compiler()).args(["-shared", "-o"]).arg(library).args(objects))?;
    let products = compile(&folder, &folder.join("emulator/cublaslt.cpp"), &out)?;
    let library = out.join("libcublasLt.so.13");
    done(Command::new(compiler()).args(["-shared", "-o"]).arg(library).arg(products))?;
    // Attention and gated products again as chips take them that have no products of warpgroups.
    let others = if filter.is_empty() { &["attend", "gated_by"] } else { filter };
    for (capability, backwards, filter) in [("9", false, filter), ("9", true, filter), ("8", true, others)] {
        let mut tests = Command::new(env!("CARGO"));
        tests.args(["test", "--release", "-q", "-p", "halfbyte-cuda", "--lib", "--"]).args(filter);
        tests.current_dir(root).env("LD_LIBRARY_PATH", &out).env("HALFBYTE_EMULATE_CAPABILITY", capability);
        if backwards {
            tests.env("HALFBYTE_EMULATE_BACKWARDS", "1");
        }
        done(&mut tests)?;
    }
    Ok("the contracts hold, with threads in their order and in the other".to_owned())
}

/// Every module and the kernels that its PTX lists.
fn modules(folder: &Path) -> Result<Vec<(String, Vec<String>)>, String> {
    let mut modules = Vec::new();
    for ptx in [folder.join("ptx"), folder.join("ptx/sm_90a")] {
        let entries = fs::read_dir(&ptx).map_err(|error| format!("{}: {error}", ptx.display()))?;
        for path in entries.flatten().map(|entry| entry.path()) {
            if path.extension().is_none_or(|own| own != "ptx") {
                continue;
            }
            let text = fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
            let entry = |line: &str| Some(line.split_once(".entry ")?.1.split('(').next()?.to_owned());
            let module = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            modules.push((module, text.lines().filter_map(entry).collect()));
        }
    }
    modules.sort();
    Ok(modules)
}

fn compiler() -> std::ffi::OsString {
    std::env::var_os("CXX").unwrap_or_else(|| "c++".into())
}

fn compile(folder: &Path, source: &Path, out: &Path) -> Result<std::path::PathBuf, String> {
    let object = out.join(source.file_stem().unwrap_or_default()).with_extension("o");
    let mut command = Command::new(compiler());
    command.args(OPTIONS);
    for below in ["emulator", "src", "src/kernels"] {
        command.arg("-I").arg(folder.join(below));
    }
    done(command.arg("-c").arg(source).arg("-o").arg(&object))?;
    Ok(object)
}

fn done(command: &mut Command) -> Result<(), String> {
    let program = command.get_program().to_string_lossy().into_owned();
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{program} failed ({status}): {command:?}")),
        Err(error) => Err(format!("{program}: {error}. Install a C++ compiler, or set CXX to one.")),
    }
}
