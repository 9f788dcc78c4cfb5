//! `halfbyte train` on a toy: it learns, any number of threads gives the same bytes, and a run that
//! is killed again and again ends with the bytes of one that was not.

mod program;
mod toy;

use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use toy::{Toy, halfbyte, text};

const ROWS: &str = "hello\tgood day\nwho are you\tI am a toy\n你是誰\t我是玩具\nbye\tsee you\n";

fn flags<'a>(model: &'a str, data: &'a str, out: &'a str) -> Vec<&'a str> {
    vec![
        "train",
        "--model",
        model,
        "--data",
        data,
        "--out",
        out,
        "--seq",
        "64",
        "--batch",
        "2",
        "--lr",
        "3e-3",
        "--steps",
        "30",
        "--save-every",
        "3",
        "--sample",
        "hello",
        "--sample-every",
        "7",
    ]
}

struct Place {
    toy: Toy,
    model: String,
    data: String,
}

impl Place {
    fn new(name: &str) -> Place {
        let toy = Toy::new(name);
        Place { model: toy.path("model"), data: toy.write("rows.tsv", ROWS), toy }
    }

    fn out(&self, name: &str) -> String {
        self.toy.path(name)
    }
}

/// Everything that must be the same: the model's tensors, the last checkpoint, what it said on the way.
fn results(out: &str) -> [Vec<u8>; 3] {
    ["model/model.safetensors", "checkpoints/000030/state", "samples.jsonl"]
        .map(|path| fs::read(Path::new(out).join(path)).unwrap())
}

#[test]
fn a_toy_learns_and_the_result_opens() {
    let place = Place::new("train-learns");
    let out = place.out("run");
    let mut flags = flags(&place.model, &place.data, &out);
    flags.push("--json");
    let output = halfbyte(&flags);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let answer: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let (first, last) = (answer["first_loss"].as_f64().unwrap(), answer["last_loss"].as_f64().unwrap());
    assert!(last < 0.7 * first, "loss {first} -> {last}");
    let model = format!("{out}/model");
    assert!(halfbyte(&["inspect", &model]).status.success());
    let reply = halfbyte(&["run", &model, "--prompt", "hello", "--max-tokens", "4"]);
    assert!(reply.status.success(), "{}", text(&reply.stderr));
    assert!(fs::read_to_string(format!("{out}/report.html")).unwrap().contains("<svg"));
    assert_eq!(fs::read_to_string(format!("{out}/log.jsonl")).unwrap().lines().count(), 30);
    // The folder holds a run: another one is refused, with a way out.
    let again = halfbyte(&flags);
    assert_eq!(again.status.code(), Some(1), "{}", text(&again.stderr));
    assert!(text(&again.stderr).contains("--resume"));
    // Resuming with another recipe says what is different.
    flags.extend(["--resume", "--weight-decay", "0.5"]);
    let other = halfbyte(&flags);
    assert!(!other.status.success());
    assert!(text(&other.stderr).contains("weight_decay"), "{}", text(&other.stderr));
}

#[test]
fn no_step_is_larger_than_the_clip() {
    let place = Place::new("train-clip");
    let [free, clipped] = ["free", "clipped"].map(|name| place.out(name));
    let sizes = |out: &str, clip: &[&str]| -> Vec<f64> {
        let mut flags = flags(&place.model, &place.data, out);
        flags.extend(clip);
        let output = halfbyte(&flags);
        assert!(output.status.success(), "{}", text(&output.stderr));
        let log = fs::read_to_string(format!("{out}/log.jsonl")).unwrap();
        let record = |line: &str| -> serde_json::Value { serde_json::from_str(line).unwrap() };
        log.lines().map(|line| record(line)["update_size"].as_f64().unwrap()).collect()
    };
    assert!(sizes(&free, &[]).iter().any(|size| *size > 0.25));
    let held = sizes(&clipped, &["--clip-update", "0.2"]);
    assert!(held.iter().all(|size| *size > 0.0 && *size <= 0.2 * 1.0001), "{held:?}");
    let wrong = halfbyte(&["train", "--clip-update", "0"]);
    assert!(text(&wrong.stderr).contains("above 0"), "{}", text(&wrong.stderr));
}

/// Trains with one thread, with three, and killed again and again: all must end with the same bytes.
fn ends_with_the_same_bytes(name: &str, mode: &[&str], kills_wanted: u32) {
    let place = Place::new(name);
    let [three, one, killed] = ["three", "one", "killed"].map(|name| place.out(name));
    let mut whole = Duration::ZERO;
    for (out, threads) in [(&three, "3"), (&one, "1")] {
        let mut flags = flags(&place.model, &place.data, out);
        flags.extend(["--threads", threads]);
        flags.extend(mode);
        let started = Instant::now();
        let output = halfbyte(&flags);
        whole = started.elapsed();
        assert!(output.status.success(), "{}", text(&output.stderr));
    }
    let want = results(&one);
    assert!(want == results(&three), "{mode:?}: threads change the bytes");
    // How long a run may live before it is killed. First moments, together half of a whole run, so that it
    // cannot have ended; then longer and longer, so that kills fall everywhere; at last as long as it takes.
    let life = |turn: u32| match turn {
        _ if turn < kills_wanted => {
            Some(whole * (1 + turn * 7 % kills_wanted) / (kills_wanted * kills_wanted))
        }
        _ if turn < 3 * kills_wanted => Some(whole * (turn - kills_wanted) / kills_wanted),
        _ => None,
    };
    let mut kills = 0;
    for turn in 0..=3 * kills_wanted {
        let mut command = program::halfbyte();
        command.args(flags(&place.model, &place.data, &killed)).args(mode);
        command.stderr(Stdio::null()).stdout(Stdio::null());
        if Path::new(&killed).join("settings.toml").exists() {
            command.arg("--resume");
        }
        let mut child = command.spawn().unwrap();
        if let Some(life) = life(turn) {
            std::thread::sleep(life);
            if child.try_wait().unwrap().is_none() {
                child.kill().unwrap();
                kills += 1;
            }
        }
        if child.wait().unwrap().success() {
            break;
        }
    }
    assert!(kills >= kills_wanted, "{mode:?}: only {kills} kills hit a running program");
    assert!(want == results(&killed), "{mode:?}: {kills} kills changed the bytes");
}

#[test]
fn the_same_seed_gives_the_same_bytes_with_any_threads_and_after_any_kill() {
    ends_with_the_same_bytes("train-kill", &[], 24);
}

/// What the recipe is compared with: master weights, wider moments, no quantisation.
const MODES: [&[&str]; 4] = [
    &["--state", "lean", "--moments", "8"],
    &["--state", "bf16", "--second", "full"],
    &["--state", "f32", "--moments", "32", "--second", "full", "--scales", "four-over-six"],
    &["--state", "all-f32", "--moments", "32", "--second", "full"],
];

#[test]
fn that_holds_in_every_mode_of_comparison() {
    for (index, mode) in MODES.into_iter().enumerate() {
        ends_with_the_same_bytes(&format!("train-mode-{index}"), mode, 5);
    }
}

/// Flags of a run whose every update is so small that it is zero in f32.
fn still<'a>(place: &'a Place, out: &'a str, steps: &'a str) -> Vec<&'a str> {
    let mut flags = flags(&place.model, &place.data, out);
    for (flag, value) in [("--lr", "1e-60"), ("--steps", steps)] {
        let at = flags.iter().position(|found| *found == flag).unwrap();
        flags[at + 1] = value;
    }
    flags
}

#[test]
fn zero_updates_change_no_byte_of_the_model_in_any_mode() {
    let place = Place::new("train-still");
    for (index, mode) in [&[][..]].into_iter().chain(MODES).enumerate() {
        let model = |steps: &str| {
            let out = place.out(&format!("{index}-{steps}"));
            let mut flags = still(&place, &out, steps);
            flags.extend(mode);
            let output = halfbyte(&flags);
            assert!(output.status.success(), "{}", text(&output.stderr));
            fs::read(Path::new(&out).join("model/model.safetensors")).unwrap()
        };
        assert!(model("1") == model("6"), "{mode:?}");
    }
}

#[test]
fn a_model_that_was_not_quantised_is_written_in_f32() {
    let place = Place::new("train-f32");
    let out = place.out("run");
    let mut flags = still(&place, &out, "1");
    flags.extend(["--state", "all-f32"]);
    let output = halfbyte(&flags);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let model = format!("{out}/model");
    let found = halfbyte(&["inspect", &model]);
    assert!(text(&found.stdout).contains("24 F32"), "{}", text(&found.stdout));
    let difference = halfbyte(&["diff", &place.model, &model, "--exit-code"]);
    assert!(difference.status.success(), "{}", text(&difference.stdout));
    // A flag that would do nothing is refused.
    flags.extend(["--scales", "search"]);
    assert_eq!(halfbyte(&flags).status.code(), Some(2));
}

#[test]
fn stored_gradients_give_the_same_bytes_with_any_threads_and_after_a_stop() {
    let place = Place::new("train-stored");
    let [one, three, resumed] = ["one", "three", "resumed"].map(|name| place.out(name));
    let stored = ["--accumulate", "2", "--clip-norm", "0.5"];
    let run = |out: &str, more: &[&str]| {
        let output = halfbyte(&[&flags(&place.model, &place.data, out)[..], &stored, more].concat());
        assert!(output.status.success(), "{}", text(&output.stderr));
    };
    run(&one, &["--threads", "1"]);
    run(&three, &["--threads", "3"]);
    assert!(results(&one) == results(&three), "threads change the bytes");
    run(&resumed, &["--keep", "20"]);
    // As if it had been killed before the last steps.
    for step in ["000024", "000027", "000030"] {
        fs::remove_dir_all(Path::new(&resumed).join("checkpoints").join(step)).unwrap();
    }
    fs::remove_dir_all(Path::new(&resumed).join("model")).unwrap();
    run(&resumed, &["--keep", "20", "--resume"]);
    assert!(results(&one) == results(&resumed), "a stop changes the bytes");
    let log = fs::read_to_string(format!("{one}/log.jsonl")).unwrap();
    let norm =
        |line: &str| serde_json::from_str::<serde_json::Value>(line).unwrap()["gradient_norm"].as_f64();
    assert!(log.lines().all(|line| norm(line).is_some_and(|norm| norm > 0.0)), "{log}");
    assert!(fs::read_to_string(format!("{one}/report.html")).unwrap().contains("Length of the gradient"));
}

#[test]
fn a_clip_without_a_stored_gradient_is_refused_with_the_remedy() {
    let place = Place::new("train-clip");
    let out = place.out("run");
    for (more, remedy) in [
        (vec!["--clip-norm", "1"], "--gradient stored"),
        (vec!["--gradient", "fused", "--accumulate", "2"], "--gradient stored"),
        (vec!["--accumulate", "0"], "at least 1"),
        (vec!["--gradient", "stored", "--clip-norm", "0"], "above 0"),
    ] {
        let output = halfbyte(&[flags(&place.model, &place.data, &out), more.clone()].concat());
        assert_eq!(output.status.code(), Some(2), "{more:?}: {}", text(&output.stderr));
        assert!(text(&output.stderr).contains(remedy), "{more:?}: {}", text(&output.stderr));
        assert!(!Path::new(&out).exists(), "nothing is left behind");
    }
}

#[test]
fn data_without_a_reply_is_refused_by_name() {
    let place = Place::new("train-empty");
    let row = "{\"messages\": [{\"role\": \"user\", \"content\": \"hi\"}]}\n";
    let (data, out) = (place.toy.write("empty.jsonl", row), place.out("run"));
    let output = halfbyte(&flags(&place.model, &data, &out));
    assert_eq!(output.status.code(), Some(4), "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("empty.jsonl"), "{}", text(&output.stderr));
    assert!(!Path::new(&out).exists(), "nothing is left behind");
}

#[test]
fn random_weights_are_those_that_init_writes() {
    let place = Place::new("train-random");
    let config = place.toy.path("model/config.json");
    let [written, from_file, from_none] = ["written", "from-file", "from-none"].map(|name| place.out(name));
    let made = halfbyte(&["init", "--config", &config, "--out", &written, "--dtype", "f32"]);
    assert!(made.status.success(), "{}", text(&made.stderr));
    let output = halfbyte(&flags(&written, &place.data, &from_file));
    assert!(output.status.success(), "{}", text(&output.stderr));
    let mut random = flags(&config, &place.data, &from_none);
    random[1] = "--random";
    let output = halfbyte(&random);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(results(&from_file) == results(&from_none), "the file changes the bytes");
    // The run's own settings name no model beside the config.
    let settings = format!("{from_none}/settings.toml");
    let again = halfbyte(&["train", "--config", &settings, "--resume"]);
    assert!(again.status.success(), "{}", text(&again.stderr));
    let exported = place.out("exported");
    let export = halfbyte(&["export", &from_none, &exported, "--to", "modelopt"]);
    assert!(export.status.success(), "{}", text(&export.stderr));
    assert!(fs::read(format!("{exported}/model.safetensors")).unwrap() == results(&from_none)[0]);
}

#[test]
fn a_shape_without_a_tokenizer_learns_in_the_words_of_the_program() {
    let place = Place::new("train-shape");
    let out = place.out("run");
    let train = |config: &str, more: &[&str]| {
        let most = ["train", "--random", config, "--data", &place.data, "--out", &out, "--steps", "2"];
        halfbyte(&[&most[..], more].concat())
    };
    let small = place.toy.path("config.json");
    let refused = train(&small, &[]);
    assert_eq!(refused.status.code(), Some(4), "{}", text(&refused.stderr));
    assert!(text(&refused.stderr).contains("tokenizer.json"), "{}", text(&refused.stderr));
    let large = fs::read_to_string(&small).unwrap().replace("260", "9000");
    let large = place.toy.write("large.json", &large);
    let mute = train(&large, &["--sample", "hello"]);
    assert_eq!(mute.status.code(), Some(2), "{}", text(&mute.stderr));
    assert!(text(&mute.stderr).contains("tokenizer.json"), "{}", text(&mute.stderr));
    let learnt = train(&large, &[]);
    assert!(learnt.status.success(), "{}", text(&learnt.stderr));
    assert!(halfbyte(&["inspect", &format!("{out}/model")]).status.success());
}
