//! `halfbyte doctor`: what it says is true of this machine, whatever it has.

mod program;

use std::process::Output;

use serde_json::Value;

fn doctor(flags: &[&str]) -> Output {
    program::halfbyte().arg("doctor").args(flags).output().unwrap()
}

fn report(flags: &[&str]) -> Value {
    let output = doctor(&[&["--json"], flags].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn what_it_calls_refused_is_refused_and_nothing_else() {
    let report = report(&["--device", "cpu"]);
    let groups = report["refused"].as_array().unwrap();
    let refused =
        |flag: &str| groups.iter().any(|group| group["flags"].as_array().unwrap().contains(&flag.into()));
    let sets =
        ["amx", "avx512", "avx2", "neon", "scalar", "own", "cublaslt"].map(|set| format!("--require {set}"));
    let others = ["--device cuda", "--unified require"].map(str::to_owned);
    for flag in sets.iter().chain(&others) {
        let output = doctor(&flag.split(' ').collect::<Vec<_>>());
        assert_eq!(
            !output.status.success(),
            refused(flag),
            "{flag}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
    assert!(!refused("--require scalar"));
    assert!(groups.iter().all(|group| !group["reason"].as_str().unwrap().is_empty()));
}

#[test]
fn every_part_of_the_work_has_a_path() {
    let report = report(&["--kernels", "scalar"]);
    let paths = report["paths"].as_array().unwrap();
    for what in ["products of many tokens", "attention, both ways", "rounding and the optimizer"] {
        let path = paths.iter().find(|path| path["what"] == what).unwrap_or_else(|| panic!("{what}"));
        assert!(path["path"].as_str().unwrap().contains("scalar"), "{path}");
    }
}

#[test]
fn flags_that_contradict_each_other_are_misuse() {
    for flags in [["--kernels", "own", "--device", "cpu"], ["--kernels", "scalar", "--require", "cublaslt"]] {
        let output = doctor(&flags);
        assert_eq!(output.status.code(), Some(2), "{flags:?}");
        assert!(String::from_utf8_lossy(&output.stderr).contains("leave one of them out"));
    }
}
