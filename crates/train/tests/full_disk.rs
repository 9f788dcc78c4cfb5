//! A real disk that is full, and a real limit on the size of files: the run keeps what it had.
//!
//! The test starts itself again inside a shell that sets the limit up: `ulimit -f` for the size of
//! files, a small tmpfs in a name space of its own for the disk (skipped where that is not allowed).
#![cfg(target_os = "linux")]

mod child;

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use halfbyte_train::*;

const CHILD: &str = "HALFBYTE_TRAIN_TEST_FULL";

fn save(folder: &RunFolder, step: u64, bytes: usize) -> Result<Saved> {
    let settings = ScheduleSettings {
        peak: 1e-3,
        minimum: 0.0,
        warm_up: WarmUp::Steps(0),
        decay: Decay::Constant,
        steps: 10,
    };
    let progress = Progress {
        step,
        counters: BTreeMap::new(),
        position: DataPosition::default(),
        schedule: Schedule::new(&settings).unwrap(),
        binding: Binding::default(),
    };
    // No room is asked for beforehand: the write itself must fail.
    folder.save(progress, 0, |staging| {
        let chunk = vec![step as u8; 4096];
        staging.write_part("state", |sink| (0..bytes / 4096).try_for_each(|_| sink.write_all(&chunk)))
    })
}

fn newest(path: &Path) -> u64 {
    let snapshots = Snapshots::open(&path.join("checkpoints"), 1).unwrap();
    snapshots.newest().unwrap().newest.unwrap().step()
}

/// Saves one that fits, one that does not, one that fits; then fills the log until nothing fits.
fn work(path: &Path, fills_up: bool) {
    let mut folder = RunFolder::create(path, "", &Binding::default(), 1).unwrap();
    save(&folder, 1, 256 << 10).unwrap();
    let error = save(&folder, 2, 4 << 20).unwrap_err();
    assert!(error.to_string().contains("cannot write"), "{error}");
    assert_eq!(newest(path), 1);
    let names: Vec<_> = std::fs::read_dir(path.join("checkpoints")).unwrap().collect();
    assert_eq!(names.len(), 1, "the failed save takes no room");
    save(&folder, 3, 256 << 10).unwrap();
    assert_eq!(newest(path), 3);
    let record = |step| Record { step, ..Record::default() };
    let written = (1..).take_while(|step| folder.log.append(&record(*step)).is_ok()).count();
    assert!(written > 1000);
    assert_eq!(read_journal::<Record>(&path.join("log.jsonl")).unwrap().len(), written);
    if fills_up {
        // Not a byte is left; the save fails, the checkpoint before stays.
        assert!(save(&folder, 4, 256 << 10).is_err());
    }
    assert_eq!(newest(path), 3);
    drop(folder);
    let resumed = RunFolder::resume(path, &Binding::default(), 1).unwrap();
    assert_eq!((resumed.snapshot.unwrap().step(), resumed.records.len()), (3, 3));
    save(&resumed.folder, 5, 256 << 10).unwrap();
    assert_eq!(newest(path), 5);
    std::io::stdout().write_all(b"all held\n").unwrap();
}

#[test]
fn the_child_fills_what_it_is_given() {
    if let Some(path) = std::env::var_os(CHILD) {
        let path = PathBuf::from(path);
        work(&path, path.ends_with("disk"));
    }
}

/// What the child said, run by `shell` with itself as "$@".
fn run_child(shell: &mut Command, setup: &str, path: &Path) -> String {
    let script = format!("{setup} && exec \"$@\"");
    let command = shell.args(["-c", &script, "sh"]).args(child::itself());
    let command = command.args(["--exact", "the_child_fills_what_it_is_given", "--nocapture"]);
    let output = command.env(CHILD, path).output().unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

fn folder(name: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("halfbyte-train-{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&path);
    std::fs::create_dir_all(&path).unwrap();
    path
}

#[test]
fn a_limit_on_the_size_of_files_loses_nothing() {
    let path = folder("limit");
    // 512 KiB; the signal is ignored, so that the write fails instead.
    let said = run_child(&mut Command::new("sh"), "trap '' XFSZ && ulimit -f 1024", &path.join("run"));
    assert!(said.contains("all held"), "{said}");
    std::fs::remove_dir_all(&path).unwrap();
}

#[test]
fn a_full_disk_loses_nothing() {
    let path = folder("full");
    let mut unshare = Command::new("unshare");
    let mounted =
        format!("mount -t tmpfs -o size=1m none '{}' || {{ echo no mount; exit 0; }}", path.display());
    let said = run_child(unshare.args(["-rm", "sh"]), &mounted, &path.join("disk"));
    match said.contains("no mount") || said.contains("unshare") {
        true => eprintln!("skipped: no small disk may be mounted here: {}", said.trim()),
        false => assert!(said.contains("all held"), "{said}"),
    }
    std::fs::remove_dir_all(&path).unwrap();
}
