//! Libraries that are found at run time: only the calls that we make are declared.

use std::ffi::OsStr;

use libloading::Library;

/// A library's struct: its functions as fields, which answer with a status, and what keeps them loaded.
macro_rules! calls {
    ($(#[$doc:meta])* $view:vis struct $library:ident { $($field:ident = $name:literal ($($type:ty),*);)* }) => {
        $(#[$doc])*
        $view struct $library {
            $(pub(crate) $field: unsafe extern "C" fn($($type),*) -> std::ffi::c_int,)*
            // The functions live as long as this.
            _library: libloading::Library,
        }

        impl $library {
            /// The calls of a library; where one is missing, its name and the loader's words.
            fn of(library: libloading::Library) -> Result<$library, (&'static str, String)> {
                Ok($library {
                    $($field: {
                        // SAFETY: the type is that of the function in the library's own header.
                        let symbol = unsafe { library.get(concat!($name, "\0").as_bytes()) };
                        *symbol.map_err(|error| ($name, error.to_string()))?
                    },)*
                    _library: library,
                })
            }
        }
    };
}
pub(crate) use calls;

/// Loads a library by its name or path; the error is in the loader's own words.
pub(crate) fn open(place: impl AsRef<OsStr>) -> Result<Library, String> {
    // SAFETY: NVIDIA's libraries run no code of ours when they are loaded.
    unsafe { Library::new(place.as_ref()) }
        // They stand behind the error.
        .map_err(|error| std::error::Error::source(&error).map_or(error.to_string(), ToString::to_string))
}
