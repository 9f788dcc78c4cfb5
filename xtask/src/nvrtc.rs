//! NVIDIA's compiler for kernels, loaded at run time: CUDA C++ in, PTX or a program for one chip out.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::{Path, PathBuf};

use libloading::Library;

type Status = c_int;
type Program = *mut c_void;
type Strings = *const *const c_char;

/// The library and the functions that are called.
pub(crate) struct Nvrtc {
    version: unsafe extern "C" fn(*mut c_int, *mut c_int) -> Status,
    create:
        unsafe extern "C" fn(*mut Program, *const c_char, *const c_char, c_int, Strings, Strings) -> Status,
    compile: unsafe extern "C" fn(Program, c_int, Strings) -> Status,
    log_size: unsafe extern "C" fn(Program, *mut usize) -> Status,
    log: unsafe extern "C" fn(Program, *mut c_char) -> Status,
    ptx_size: unsafe extern "C" fn(Program, *mut usize) -> Status,
    ptx: unsafe extern "C" fn(Program, *mut c_char) -> Status,
    destroy: unsafe extern "C" fn(*mut Program) -> Status,
    _library: Library,
}

impl Nvrtc {
    /// `place` is the library, or a folder that has it somewhere below: a Python's site-packages.
    pub(crate) fn load(place: &Path) -> Result<Nvrtc, String> {
        let path =
            find(place).ok_or_else(|| format!("{}: no libnvrtc.so is there or below", place.display()))?;
        let failed = |error: libloading::Error| format!("{}: {error}", path.display());
        // SAFETY: the compiler's library runs no code of ours when it is loaded, and the types are
        // those of its header.
        unsafe {
            let library = Library::new(&path).map_err(failed)?;
            Ok(Nvrtc {
                version: *library.get(b"nvrtcVersion\0").map_err(failed)?,
                create: *library.get(b"nvrtcCreateProgram\0").map_err(failed)?,
                compile: *library.get(b"nvrtcCompileProgram\0").map_err(failed)?,
                log_size: *library.get(b"nvrtcGetProgramLogSize\0").map_err(failed)?,
                log: *library.get(b"nvrtcGetProgramLog\0").map_err(failed)?,
                ptx_size: *library.get(b"nvrtcGetPTXSize\0").map_err(failed)?,
                ptx: *library.get(b"nvrtcGetPTX\0").map_err(failed)?,
                destroy: *library.get(b"nvrtcDestroyProgram\0").map_err(failed)?,
                _library: library,
            })
        }
    }

    /// "12.9"
    pub(crate) fn version(&self) -> String {
        let (mut major, mut minor) = (0, 0);
        // SAFETY: writes two numbers.
        unsafe { (self.version)(&mut major, &mut minor) };
        format!("{major}.{minor}")
    }

    /// PTX of a source, or what the compiler said against it. For a real chip (`sm_90a`) the program
    /// is assembled too, so that what the assembler refuses is found; its PTX is given.
    pub(crate) fn compile(&self, name: &str, source: &str, options: &[String]) -> Result<String, String> {
        let text = |text: &str| CString::new(text).map_err(|_| format!("{name}: has a zero byte"));
        let (source, file) = (text(source)?, text(name)?);
        let options: Vec<CString> = options.iter().map(|option| text(option)).collect::<Result<_, _>>()?;
        let pointers: Vec<*const c_char> = options.iter().map(|option| option.as_ptr()).collect();
        let mut program: Program = std::ptr::null_mut();
        // SAFETY: all texts live through the calls; buffers are as long as the compiler asks for.
        unsafe {
            let none = std::ptr::null();
            if (self.create)(&mut program, source.as_ptr(), file.as_ptr(), 0, none, none) != 0 {
                return Err(format!("{name}: nvrtcCreateProgram failed"));
            }
            let status = (self.compile)(program, pointers.len() as c_int, pointers.as_ptr());
            let (size, get) = if status == 0 { (self.ptx_size, self.ptx) } else { (self.log_size, self.log) };
            let mut bytes = 0;
            (size)(program, &mut bytes);
            let mut out = vec![0u8; bytes + 1];
            (get)(program, out.as_mut_ptr().cast());
            (self.destroy)(&mut program);
            let out = CStr::from_bytes_until_nul(&out).map_err(|error| format!("{name}: {error}"))?;
            let out = out.to_string_lossy().into_owned();
            if status == 0 { Ok(out) } else { Err(out) }
        }
    }
}

/// The library itself, the first below a folder by name.
fn find(place: &Path) -> Option<PathBuf> {
    if place.is_file() {
        return Some(place.to_owned());
    }
    let mut entries: Vec<PathBuf> =
        std::fs::read_dir(place).ok()?.flatten().map(|entry| entry.path()).collect();
    entries.sort();
    let is_library = |path: &&PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        path.is_file() && name.starts_with("libnvrtc.so")
    };
    let here = entries.iter().find(is_library).cloned();
    here.or_else(|| entries.iter().filter(|path| path.is_dir()).find_map(|folder| find(folder)))
}
