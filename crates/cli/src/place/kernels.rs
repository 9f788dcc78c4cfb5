//! Sets of kernels, as `--kernels` and `--require` name them.

use std::fmt;
use std::str::FromStr;

use halfbyte_cpu::Isa;

use crate::failure::{Code, Failure, Result};

/// A set of kernels.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Kernels {
    Cpu(Isa),
    Gpu(Products),
}

/// Who makes the products of many tokens on a GPU; the later the faster.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub(crate) enum Products {
    Own,
    CublasLt,
}

impl Kernels {
    /// Every set, those of a GPU last, the slowest of each first.
    pub(crate) fn all() -> impl Iterator<Item = Kernels> {
        let gpu = [Products::Own, Products::CublasLt].map(Kernels::Gpu);
        Isa::ALL.into_iter().map(Kernels::Cpu).chain(gpu)
    }

    /// Refuses to go on with these where a flag names faster ones; `why` says what stands in their way.
    pub(super) fn meet(self, flag: &str, required: Option<Kernels>, why: &str) -> Result<()> {
        let slower = match (self, required) {
            (Kernels::Cpu(isa), Some(Kernels::Cpu(required))) => isa < required || !required.available(),
            (Kernels::Gpu(products), Some(Kernels::Gpu(required))) => products < required,
            _ => false,
        };
        match required {
            Some(required) if slower => Err(Failure::new(
                Code::Failed,
                format!("{flag} {required}: this run would use {self}\n{why}"),
            )),
            _ => Ok(()),
        }
    }
}

/// The sets that this CPU has, slowest first.
pub(crate) fn cpu_kernels() -> Vec<&'static str> {
    Isa::ALL.into_iter().filter(|isa| isa.available()).map(Isa::name).collect()
}

impl FromStr for Kernels {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Kernels, String> {
        let found = Kernels::all().find(|kernels| kernels.to_string() == text);
        found.ok_or_else(|| "one of amx, avx512, avx2, neon, scalar, or of a GPU own, cublaslt".into())
    }
}

impl fmt::Display for Kernels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kernels::Cpu(isa) => isa.name(),
            Kernels::Gpu(Products::Own) => "own",
            Kernels::Gpu(Products::CublasLt) => "cublaslt",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_are_read_as_they_are_written() {
        for kernels in Kernels::all() {
            assert_eq!(kernels.to_string().parse(), Ok(kernels));
        }
        assert!("cuda".parse::<Kernels>().is_err());
    }

    #[test]
    fn slower_kernels_than_those_required_are_refused() {
        let [own, library] = [Products::Own, Products::CublasLt].map(Kernels::Gpu);
        let scalar = Kernels::Cpu(Isa::Scalar);
        let refused = own.meet("--require", Some(library), "there is none").unwrap_err();
        assert!(refused.text.contains("--require cublaslt") && refused.text.contains("there is none"));
        assert!(own.meet("--require", None, "").is_ok());
        assert!(own.meet("--require", Some(own), "").is_ok());
        assert!(library.meet("--require", Some(own), "").is_ok());
        assert!(scalar.meet("--require", Some(scalar), "").is_ok());
        let amx = Kernels::Cpu(Isa::Amx);
        assert!(scalar.meet("--require", Some(amx), "").is_err());
    }
}
