//! A run that is killed dozens of times at random moments loses nothing but the steps since its
//! last save, and goes on bit for bit.
//!
//! The test starts itself as a child that trains a toy (a state that depends on all steps before)
//! and saves without pause, kills it with SIGKILL, looks at what is there, and starts it again.
#![cfg(unix)]

mod child;

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use halfbyte_formats::philox::{Stream, random_bits};
use halfbyte_train::*;

/// Tells the child that it is one, and where it trains.
const CHILD: &str = "HALFBYTE_TRAIN_TEST_CHILD";
const KILLS: u64 = 40;
const WORDS: usize = 1 << 14;
const KEEP: usize = 2;

/// A toy state; every step depends on all before it.
struct Toy {
    step: u64,
    words: Vec<u32>,
}

impl Toy {
    fn new() -> Toy {
        Toy { step: 0, words: vec![1; WORDS] }
    }

    fn advance(&mut self) {
        self.step += 1;
        let stream = Stream::new(7, self.step, 0);
        for (index, word) in self.words.iter_mut().enumerate().step_by(64) {
            *word = word.rotate_left(5) ^ stream.bits(index as u64);
        }
    }

    fn bytes(&self) -> Vec<u8> {
        self.words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    fn from_bytes(step: u64, bytes: &[u8]) -> Toy {
        let words = bytes.as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word)).collect();
        Toy { step, words }
    }
}

fn binding() -> Binding {
    Binding { template: "toy".into(), ..Binding::default() }
}

fn progress(step: u64) -> Progress {
    let settings = ScheduleSettings {
        peak: 1e-3,
        minimum: 0.0,
        warm_up: WarmUp::Share(0.1),
        decay: Decay::Cosine,
        steps: 1_000_000,
    };
    Progress {
        step,
        counters: BTreeMap::from([("tokens".into(), step * 64)]),
        position: DataPosition { epoch: step / 10, sequence: step % 10 },
        schedule: Schedule::new(&settings).unwrap(),
        binding: binding(),
    }
}

fn state_of(snapshot: &Snapshot) -> Vec<u8> {
    let mut bytes = Vec::new();
    for name in ["state.low", "state.high"] {
        snapshot.read_part(name, |source| source.read_to_end(&mut bytes).map(drop)).unwrap();
    }
    bytes
}

/// What the child does until it is killed.
fn train(path: &Path) {
    let resumed = match path.join("settings.toml").exists() {
        true => RunFolder::resume(path, &binding(), KEEP).unwrap(),
        false => {
            RunFolder::create(path, "toy = true\n", &binding(), KEEP).unwrap();
            RunFolder::resume(path, &binding(), KEEP).unwrap()
        }
    };
    let mut folder = resumed.folder;
    let mut toy = match &resumed.snapshot {
        Some(snapshot) => Toy::from_bytes(snapshot.step(), &state_of(snapshot)),
        None => Toy::new(),
    };
    assert_eq!(resumed.records.last().map_or(0, |record| record.step), toy.step);
    std::io::stdout().write_all(b"ready\n").unwrap();
    std::io::stdout().flush().unwrap();
    // Should nobody come to kill it, it does not stay for ever.
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(120) {
        toy.advance();
        folder.log.append(&Record { step: toy.step, ..Record::default() }).unwrap();
        if toy.step.is_multiple_of(2) {
            let bytes = toy.bytes();
            let (low, high) = bytes.split_at(bytes.len() / 3);
            let fill = |staging: &mut Staging| {
                let mut chunks = low.chunks(1000);
                staging.write_part("state.low", |sink| chunks.try_for_each(|chunk| sink.write_all(chunk)))?;
                staging.write_part("state.high", |sink| sink.write_all(high))
            };
            folder.save(progress(toy.step), bytes.len() as u64, fill).unwrap();
        }
    }
}

#[test]
fn the_child_trains_until_it_is_killed() {
    if let Some(path) = std::env::var_os(CHILD) {
        train(Path::new(&path));
    }
}

fn start(path: &Path) -> Child {
    let words = child::itself();
    let mut child = Command::new(&words[0])
        .args(&words[1..])
        .args(["--exact", "the_child_trains_until_it_is_killed", "--nocapture", "--test-threads=1"])
        .env(CHILD, path)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    // The harness speaks first; the child is at work when it says so.
    let mut said = Vec::new();
    let mut letter = [0];
    let stdout = child.stdout.as_mut().unwrap();
    while !said.ends_with(b"ready\n") {
        stdout.read_exact(&mut letter).expect("the child trains");
        said.push(letter[0]);
    }
    child
}

fn folder() -> PathBuf {
    let path = std::env::temp_dir().join(format!("halfbyte-train-kill-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&path);
    path
}

/// Names in the folder of checkpoints that begin with a dot: a save or a removal was cut.
fn unfinished(path: &Path) -> usize {
    let entries = std::fs::read_dir(path.join("checkpoints")).unwrap();
    entries.filter(|entry| entry.as_ref().unwrap().file_name().to_string_lossy().starts_with('.')).count()
}

/// How long a save takes on this disk: the first child runs until it has made a few.
fn save_time(path: &Path) -> Duration {
    let mut child = start(path);
    let begun = Instant::now();
    let snapshots = Snapshots::open(&path.join("checkpoints"), KEEP).unwrap();
    let newest = || snapshots.steps().unwrap().last().map_or(0, |(step, _)| *step);
    while newest() < 10 {
        assert!(child.try_wait().unwrap().is_none(), "the child ended by itself");
        std::thread::sleep(Duration::from_millis(1));
    }
    let time = begun.elapsed() / (newest() / 2).max(1) as u32;
    child.kill().unwrap();
    child.wait().unwrap();
    time
}

#[test]
fn killed_dozens_of_times_the_newest_whole_checkpoint_opens_and_is_right() {
    let path = folder();
    // Some kills before the first save of a start, some after several.
    let longest = save_time(&path).as_micros() as u64 * 6 + 1000;
    let mut straight = Toy::new();
    let mut last = 0;
    let (mut in_a_save, mut went_on) = (0, 0);
    for kill in 0..KILLS {
        let mut child = start(&path);
        std::thread::sleep(Duration::from_micros(u64::from(random_bits(1, kill, 0, 0)) % longest));
        child.kill().unwrap();
        let status = child.wait().unwrap();
        use std::os::unix::process::ExitStatusExt;
        assert_eq!(status.signal(), Some(9), "the child ended before it was killed: {status}");
        in_a_save += unfinished(&path).min(1);

        let found = Snapshots::open(&path.join("checkpoints"), KEEP).unwrap().newest().unwrap();
        assert_eq!(found.passed, [], "a kill leaves no broken checkpoint");
        let snapshot = found.newest.expect("the last good checkpoint is never gone");
        assert!(snapshot.step() >= last, "step {} after {last}", snapshot.step());
        went_on += u64::from(snapshot.step() > last);
        last = snapshot.step();
        while straight.step < last {
            straight.advance();
        }
        assert_eq!(snapshot.manifest().progress, progress(last));
        assert!(state_of(&snapshot) == straight.bytes(), "step {last} differs from the run without kills");
        let log: Vec<u64> = read_journal::<Record>(&path.join("log.jsonl"))
            .unwrap()
            .iter()
            .map(|record| record.step)
            .collect();
        assert!(log.iter().copied().eq(1..=log.len() as u64), "a step is missing or twice");
        assert!(log.len() as u64 >= last);
    }
    eprintln!("{KILLS} kills, {in_a_save} of them inside a save; reached step {last}");
    assert!(in_a_save >= 5, "only {in_a_save} of {KILLS} kills fell into a save");
    assert!(went_on >= 5 && last > 10, "the run did not go on: step {last}");
    std::fs::remove_dir_all(&path).unwrap();
}
