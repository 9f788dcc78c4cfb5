//! `halfbyte train` on a toy: it learns, any number of threads gives the same bytes, and a run that
//! is killed again and again ends with the bytes of one that was not.

mod program;
mod toy;

use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

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
fn the_same_seed_gives_the_same_bytes_with_any_threads_and_after_any_kill() {
    let place = Place::new("train-kill");
    let [one, three, killed] = ["one", "three", "killed"].map(|name| place.out(name));
    for (out, threads) in [(&one, "1"), (&three, "3")] {
        let mut flags = flags(&place.model, &place.data, out);
        flags.extend(["--threads", threads]);
        let output = halfbyte(&flags);
        assert!(output.status.success(), "{}", text(&output.stderr));
    }
    let want = results(&one);
    assert!(want == results(&three), "threads change the bytes");
    let mut kills = 0;
    for turn in 0..200u64 {
        let mut command = program::halfbyte();
        command.args(flags(&place.model, &place.data, &killed)).stderr(Stdio::null()).stdout(Stdio::null());
        if Path::new(&killed).join("settings.toml").exists() {
            command.arg("--resume");
        }
        let mut child = command.spawn().unwrap();
        // Longer and longer, so that the run comes to its end on any machine.
        std::thread::sleep(Duration::from_millis(5 + turn * 7 % 40 + turn * 5));
        if child.try_wait().unwrap().is_none() {
            child.kill().unwrap();
            kills += 1;
        }
        if child.wait().unwrap().success() {
            break;
        }
    }
    assert!(kills >= 5, "only {kills} kills hit a running program");
    assert!(want == results(&killed), "{kills} kills changed the bytes");
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
