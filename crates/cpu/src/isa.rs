//! The instruction set: found once at start, named in the output, the same bits whichever it is.

use std::fmt;

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
    /// 512-bit, and bf16 tiles for many tokens.
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
                    && is_x86_feature_detected!("avx512bf16")
            }
            #[cfg(target_arch = "x86_64")]
            Isa::Amx => Isa::Avx512.available() && crate::tiles::available(),
            #[cfg(not(target_arch = "x86_64"))]
            Isa::Avx2 | Isa::Avx512 | Isa::Amx => false,
        }
    }

    /// Runs `work` compiled for this set: what is inlined into it uses the wide registers.
    #[inline]
    pub(crate) fn run<R>(self, work: impl FnOnce() -> R) -> R {
        match self {
            // SAFETY: a value above `Scalar` is only made after `available` said yes (`Cpu::new`).
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 | Isa::Amx => unsafe { avx512(work) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => unsafe { avx2(work) },
            _ => work(),
        }
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,avx2,fma,f16c")]
fn avx512<R>(work: impl FnOnce() -> R) -> R {
    work()
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
fn avx2<R>(work: impl FnOnce() -> R) -> R {
    work()
}
