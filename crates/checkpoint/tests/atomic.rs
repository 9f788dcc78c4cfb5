//! A write is whole or not there: whatever fails on the way, the old model still opens.

mod common;

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use common::*;
use halfbyte_checkpoint::atomic::{self, AtomicDirectory, AtomicFile};
use halfbyte_checkpoint::{Checkpoint, Encoding, Format, create};

fn toy(directory: &Path) -> Checkpoint {
    write_model(directory, &qwen3_config(), &tensors(&qwen3_config()));
    Checkpoint::open(directory).unwrap()
}

/// The names in a directory, sorted.
fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn an_error_in_the_middle_leaves_the_old_file() {
    let scratch = Scratch::new();
    let source = toy(&scratch.join("toy"));
    let path = scratch.join("model.dat");
    rewrite(&source, &path, Format::Dat, |_| Encoding::F32).unwrap();
    let before = fs::read(&path).unwrap();
    let mut sink = create(&path, Format::Dat, output_of(&source, |_| Encoding::F16)).unwrap();
    sink.write_rows(0, 0, &[0.0; 64]).unwrap();
    sink.write_rows(0, 48, &[0.0; 64]).unwrap_err();
    drop(sink);
    assert!(fs::read(&path).unwrap() == before);
    assert_eq!(names(scratch.path()), ["config.json", "model.dat", "toy"]);
}

#[test]
fn an_error_in_the_middle_leaves_the_old_directory() {
    let scratch = Scratch::new();
    let source = toy(&scratch.join("toy"));
    let out = scratch.join("out");
    rewrite(&source, &out, Format::HuggingFace, |_| Encoding::F32).unwrap();
    let before = fs::read(out.join("model.safetensors")).unwrap();
    let output = output_of(&source, |_| Encoding::Bf16);
    let mut sink = create(&out, Format::HuggingFace, output).unwrap();
    sink.write_rows(0, 0, &[0.0; 64]).unwrap();
    sink.finish().unwrap_err();
    assert!(fs::read(out.join("model.safetensors")).unwrap() == before);
    assert_eq!(names(scratch.path()), ["out", "toy"]);
}

#[test]
fn a_finished_directory_replaces_the_old_one_whole() {
    let scratch = Scratch::new();
    let source = toy(&scratch.join("toy"));
    let out = scratch.join("out");
    rewrite(&source, &out, Format::ModelOpt, nvfp4_layers).unwrap();
    rewrite(&source, &out, Format::HuggingFace, |_| Encoding::Bf16).unwrap();
    assert_eq!(names(&out), ["config.json", "model.safetensors"]);
    assert_eq!(names(scratch.path()), ["out", "toy"]);
}

#[test]
fn a_directory_can_be_rewritten_from_itself() {
    let scratch = Scratch::new();
    let path = scratch.join("toy");
    let source = toy(&path);
    rewrite(&source, &path, Format::HuggingFace, |_| Encoding::Bf16).unwrap();
    let copy = Checkpoint::open(&path).unwrap();
    assert!(copy.tensors.iter().all(|tensor| tensor.encoding == Encoding::Bf16));
}

#[test]
fn leftovers_of_a_killed_writer_are_cleaned() {
    let scratch = Scratch::new();
    let source = toy(&scratch.join("toy"));
    let half = scratch.join(".out.tmp");
    fs::create_dir(&half).unwrap();
    fs::write(half.join("model.safetensors"), b"half").unwrap();
    fs::write(scratch.join(".model.dat.tmp"), vec![7; 1 << 20]).unwrap();
    rewrite(&source, &scratch.join("out"), Format::HuggingFace, |_| Encoding::Bf16).unwrap();
    rewrite(&source, &scratch.join("model.dat"), Format::Dat, |_| Encoding::F16).unwrap();
    assert_eq!(names(scratch.path()), ["config.json", "model.dat", "out", "toy"]);
    Checkpoint::open(&scratch.join("model.dat")).unwrap();
}

#[test]
fn a_kill_between_the_two_renames_is_undone() {
    let scratch = Scratch::new();
    toy(&scratch.join(".model.old.tmp"));
    let checkpoint = Checkpoint::open(&scratch.join("model")).unwrap();
    assert_eq!(checkpoint.path, scratch.join("model"));
    assert_eq!(names(scratch.path()), ["model"]);
}

#[test]
fn two_writers_of_one_path_do_not_mix() {
    let scratch = Scratch::new();
    let first = AtomicFile::create(&scratch.join("a")).unwrap();
    let message = AtomicFile::create(&scratch.join("a")).unwrap_err().to_string();
    assert!(message.contains("another process"), "{message}");
    first.write_at(0, b"whole").unwrap();
    first.finish().unwrap();
    assert_eq!(fs::read(scratch.join("a")).unwrap(), b"whole");
    let held = AtomicDirectory::create(&scratch.join("d"), |_| true).unwrap();
    AtomicDirectory::create(&scratch.join("d"), |_| true).unwrap_err();
    drop(held);
    assert_eq!(names(scratch.path()), ["a"]);
}

#[test]
fn a_directory_with_other_peoples_files_is_never_replaced() {
    let scratch = Scratch::new();
    let source = toy(&scratch.join("toy"));
    let home = scratch.join("home");
    fs::create_dir(&home).unwrap();
    fs::write(home.join("thesis.odt"), b"years").unwrap();
    let result = rewrite(&source, &home, Format::HuggingFace, |_| Encoding::Bf16);
    assert!(result.unwrap_err().to_string().contains("thesis.odt"));
    assert_eq!(fs::read(home.join("thesis.odt")).unwrap(), b"years");
    atomic::write_file(&home, b"x").unwrap_err();
}

/// Runs only as the child of the test below: writes half a model and waits to be killed.
#[test]
fn half_a_model() {
    let Some(directory) = std::env::var_os("HALFBYTE_TEST_KILLED").map(PathBuf::from) else {
        eprintln!("skipped: this is no test of its own");
        return;
    };
    let source = Checkpoint::open(&directory.join("toy")).unwrap();
    let output = output_of(&source, |_| Encoding::F16);
    let mut dat = create(&directory.join("model.dat"), Format::Dat, output.clone()).unwrap();
    let mut out = create(&directory.join("out"), Format::HuggingFace, output).unwrap();
    dat.write_rows(0, 0, &[0.0; 64]).unwrap();
    out.write_rows(0, 0, &[0.0; 64]).unwrap();
    println!("half written");
    std::thread::sleep(Duration::from_secs(60));
}

#[test]
fn a_killed_writer_leaves_the_old_model_and_no_obstacle() {
    let scratch = Scratch::new();
    let source = toy(&scratch.join("toy"));
    let (dat, out) = (scratch.join("model.dat"), scratch.join("out"));
    rewrite(&source, &dat, Format::Dat, |_| Encoding::F32).unwrap();
    rewrite(&source, &out, Format::HuggingFace, |_| Encoding::F32).unwrap();
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "half_a_model", "--nocapture"])
        .env("HALFBYTE_TEST_KILLED", scratch.path())
        .stdout(Stdio::piped())
        .spawn();
    let Ok(mut child) = child else {
        eprintln!("skipped: this machine cannot start the test binary (an emulator)");
        return;
    };
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let half = lines.map_while(Result::ok).any(|line| line.contains("half written"));
    child.kill().unwrap();
    let status = child.wait().unwrap();
    if status.code() == Some(127) {
        eprintln!("skipped: this machine cannot start the test binary (an emulator)");
        return;
    }
    assert!(half, "the child ended before it was killed");
    assert!(scratch.join(".model.dat.tmp").exists() && scratch.join(".out.tmp").exists());
    for path in [&dat, &out] {
        let old = Checkpoint::open(path).unwrap();
        assert!(old.tensors.iter().all(|tensor| tensor.encoding == Encoding::F32));
    }
    rewrite(&source, &dat, Format::Dat, |_| Encoding::F16).unwrap();
    rewrite(&source, &out, Format::HuggingFace, |_| Encoding::F16).unwrap();
    assert_eq!(names(scratch.path()), ["config.json", "model.dat", "out", "toy"]);
}
