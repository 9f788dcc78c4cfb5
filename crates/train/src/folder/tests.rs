//! A run folder from its beginning to its resumption.

use super::*;
use crate::disk::tests::Folder;
use crate::manifest::tests::progress;

fn binding(model: &str) -> Binding {
    let facts = |value: &str| [("fingerprint".to_owned(), value.to_owned())].into();
    Binding { model: facts(model), data: facts("d1"), recipe: facts("r1"), template: "t1".into() }
}

fn begin(path: &Path) -> RunFolder {
    RunFolder::create(path, "lr = 5e-5\n", &binding("m1"), 2).unwrap()
}

fn step(folder: &mut RunFolder, step: u64) {
    folder.log.append(&Record { step, ..Record::default() }).unwrap();
    let sample = Sample { step, prompt: "p".into(), reply: "r".into() };
    folder.samples.append(&sample).unwrap();
}

fn save(folder: &RunFolder, step: u64) -> Saved {
    let progress = Progress { binding: binding("m1"), ..progress(step) };
    let fill =
        |staging: &mut Staging| staging.write_part("state", |sink| sink.write_all(&step.to_le_bytes()));
    folder.save(progress, 8, fill).unwrap()
}

#[test]
fn a_killed_run_goes_on_from_its_last_checkpoint() {
    let run = Folder::new("run");
    let path = run.path().join("out");
    let mut folder = begin(&path);
    for at in 1..=7 {
        step(&mut folder, at);
        if at % 3 == 0 {
            let saved = save(&folder, at);
            assert_eq!(saved.path, path.join("checkpoints").join(format!("{at:06}")));
        }
    }
    drop(folder);
    let resumed = RunFolder::resume(&path, &binding("m1"), 2).unwrap();
    assert_eq!(resumed.snapshot.as_ref().unwrap().step(), 6);
    assert_eq!((resumed.records.len(), resumed.samples.len(), resumed.tail.lines), (6, 6, 1));
    assert!(resumed.passed.is_empty());
    let mut folder = resumed.folder;
    step(&mut folder, 7);
    drop(folder);
    let log = crate::journal::read::<Record>(&path.join(LOG)).unwrap();
    assert_eq!(log.iter().map(|record| record.step).collect::<Vec<_>>(), [1, 2, 3, 4, 5, 6, 7]);
    assert_eq!(fs::read_to_string(RunFolder::settings(&path).unwrap()).unwrap(), "lr = 5e-5\n");
}

#[test]
fn a_run_killed_before_its_first_save_begins_again() {
    let run = Folder::new("early");
    let mut folder = begin(run.path());
    step(&mut folder, 1);
    drop(folder);
    let resumed = RunFolder::resume(run.path(), &binding("m1"), 2).unwrap();
    assert!(resumed.snapshot.is_none() && resumed.records.is_empty());
}

#[test]
fn another_model_is_refused_with_what_was_and_what_is() {
    let run = Folder::new("other");
    let folder = begin(run.path());
    save(&folder, 1);
    drop(folder);
    let error = RunFolder::resume(run.path(), &binding("m2"), 2).unwrap_err().to_string();
    let path = run.path().display();
    assert_eq!(
        error,
        format!(
            "{path}: this is another run\nmodel: fingerprint was m1, is m2\n\
             give what this run began with, or begin another run in another --out folder"
        )
    );
    // A checkpoint that was copied here from another run is refused too.
    let mut foreign = binding("m1");
    foreign.template = "t9".into();
    let snapshots = Snapshots::open(&run.path().join(CHECKPOINTS), 5).unwrap();
    let staging = snapshots.begin(2, 0).unwrap();
    snapshots.finish(staging, Progress { binding: foreign, ..progress(2) }).unwrap();
    let error = RunFolder::resume(run.path(), &binding("m1"), 2).unwrap_err().to_string();
    assert!(error.contains("000002") && error.contains("template: hash was t9, is t1"), "{error}");
}

#[test]
fn a_folder_is_begun_once_and_held_by_one() {
    let run = Folder::new("once");
    let folder = begin(run.path());
    let error = RunFolder::resume(run.path(), &binding("m1"), 2).unwrap_err().to_string();
    assert!(error.contains("another process is training here"), "{error}");
    drop(folder);
    let error = RunFolder::create(run.path(), "", &binding("m1"), 2).unwrap_err().to_string();
    assert!(error.contains("begun here already") && error.contains("--resume"), "{error}");
}

#[test]
fn where_no_run_was_begun_nothing_is_resumed_or_made() {
    let run = Folder::new("none");
    let path = run.path().join("typo");
    let error = RunFolder::resume(&path, &binding("m1"), 2).unwrap_err().to_string();
    assert!(error.contains("no run was begun here"), "{error}");
    assert!(!path.exists());
    fs::write(run.path().join(SETTINGS), "lr = 1").unwrap();
    fs::write(run.path().join(BINDING), "not json").unwrap();
    assert!(RunFolder::resume(run.path(), &binding("m1"), 2).is_err());
}

#[test]
fn a_run_whose_checkpoints_are_all_broken_does_not_begin_again_by_itself() {
    let run = Folder::new("all-broken");
    let mut folder = begin(run.path());
    step(&mut folder, 1);
    let saved = save(&folder, 1);
    drop(folder);
    fs::write(saved.path.join("state"), [0; 8]).unwrap();
    let error = RunFolder::resume(run.path(), &binding("m1"), 2).unwrap_err().to_string();
    assert!(error.contains("none of its checkpoints is whole") && error.contains("checksum"), "{error}");
    assert_eq!(crate::journal::read::<Record>(&run.path().join(LOG)).unwrap().len(), 1);
}

#[test]
fn the_report_is_replaced_whole() {
    let run = Folder::new("report");
    let folder = begin(run.path());
    folder.write_report("<p>1</p>").unwrap();
    let path = folder.write_report("<p>2</p>").unwrap();
    assert_eq!(fs::read_to_string(path).unwrap(), "<p>2</p>");
}
