//! The instruction set: found once at start, named in the output, the same bits whichever it is.

use std::fmt;

use halfbyte_ops::{Error, Result};

/// Kernel sets, slowest first. A machine has all those before its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Isa {
    /// Plain Rust. On x86-64 fused multiply-adds then come from a library: slow, for checking.
    Scalar,
    /// 128-bit, every aarch64.
    Neon,
    /// 256-bit with fused multiply-add.
    Avx2,
    /// 512-bit.
    Avx512,
    /// 512-bit with conversion to bf16, and bf16 tiles for many tokens.
    Amx,
}

impl Isa {
    /// Every set, slowest first.
    pub const ALL: [Isa; 5] = [Isa::Scalar, Isa::Neon, Isa::Avx2, Isa::Avx512, Isa::Amx];

    /// The fastest of this machine.
    pub fn detect() -> Isa {
        let found = Isa::ALL.into_iter().rev().find(|isa| isa.available());
        found.unwrap_or(Isa::Scalar)
    }

    /// As on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Isa::Scalar => "scalar",
            Isa::Neon => "neon",
            Isa::Avx2 => "avx2",
            Isa::Avx512 => "avx512",
            Isa::Amx => "amx",
        }
    }

    /// Refuses a set that this machine lacks, naming the one it has.
    pub fn check(self) -> Result<()> {
        match self.available() {
            true => Ok(()),
            false => Err(Error::Device(format!(
                "this machine has no {self} kernels; the fastest it has is {}",
                Isa::detect()
            ))),
        }
    }

    /// Whether this machine has it.
    pub fn available(self) -> bool {
        match self {
            Isa::Scalar => true,
            Isa::Neon => cfg!(target_arch = "aarch64"),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => {
                is_x86_feature_detected!("avx2")
                    && is_x86_feature_detected!("fma")
                    && is_x86_feature_detected!("f16c")
            }
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => {
                Isa::Avx2.available()
                    && is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512vl")
                    && is_x86_feature_detected!("avx512dq")
            }
            #[cfg(target_arch = "x86_64")]
            Isa::Amx => {
                Isa::Avx512.available()
                    && is_x86_feature_detected!("avx512bf16")
                    && is_x86_feature_detected!("avx512vbmi")
                    && crate::tiles::available()
            }
            #[cfg(not(target_arch = "x86_64"))]
            Isa::Avx2 | Isa::Avx512 | Isa::Amx => false,
        }
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Compiles a function for every instruction set and gives it the set to use as a first argument.
///
/// What the body calls must be `inline(always)`: only what is inlined uses the wide registers
/// (a closure is not, and its fused multiply-adds then become calls into a library).
macro_rules! for_isa {
    ($(#[$doc:meta])* $vis:vis fn $name:ident($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)? $body:block) => {
        $(#[$doc])*
        $vis fn $name(isa: $crate::isa::Isa, $($arg: $ty),*) $(-> $ret)? {
            #[inline(always)]
            fn plain($($arg: $ty),*) $(-> $ret)? $body
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c")]
            fn avx512($($arg: $ty),*) $(-> $ret)? {
                plain($($arg),*)
            }
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma,f16c")]
            fn avx2($($arg: $ty),*) $(-> $ret)? {
                plain($($arg),*)
            }
            match isa {
                // SAFETY: a value above `Scalar` is used only after `available` said yes (`Cpu::new`).
                #[cfg(target_arch = "x86_64")]
                $crate::isa::Isa::Avx512 | $crate::isa::Isa::Amx => unsafe { avx512($($arg),*) },
                // SAFETY: as above.
                #[cfg(target_arch = "x86_64")]
                $crate::isa::Isa::Avx2 => unsafe { avx2($($arg),*) },
                _ => plain($($arg),*),
            }
        }
    };
}
pub(crate) use for_isa;
