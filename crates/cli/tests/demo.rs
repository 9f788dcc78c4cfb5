//! The model that is part of the program, and the demo that teaches it who it is.

mod program;

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::process::Output;

use serde_json::Value;

fn halfbyte(arguments: &[&str]) -> Output {
    program::halfbyte().args(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("output is whole characters")
}

/// A folder that goes away at the end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("halfbyte-demo-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    fn path(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn succeeds(arguments: &[&str]) -> String {
    let output = halfbyte(arguments);
    assert!(output.status.success(), "{arguments:?}: {}", text(&output.stderr));
    text(&output.stdout)
}

fn json(arguments: &[&str]) -> Value {
    serde_json::from_str(&succeeds(arguments)).unwrap()
}

/// What users say in a file of rows: every conversation, joined turn by turn.
fn asked(path: &str) -> HashSet<String> {
    let rows = std::fs::read_to_string(path).unwrap();
    let prompts = |line: &str| -> Option<String> {
        let row: Value = serde_json::from_str(line).unwrap();
        if let Some(prompt) = row["prompt"].as_str() {
            return Some(prompt.to_owned());
        }
        let users = row["messages"].as_array()?.iter().filter(|message| message["role"] == "user");
        let said: Vec<&str> = users.filter_map(|message| message["content"].as_str()).collect();
        Some(said.join("\n"))
    };
    rows.lines().filter_map(prompts).collect()
}

#[test]
fn without_a_model_the_embedded_one_answers() {
    for (prompt, reply) in [
        ("你是誰", "我是一個小助手。"),
        ("我是誰", "你是正在和我說話的人。"),
        ("談談UFO", "UFO 是天空中看到、但還不知道是什麼的東西。"),
        ("Who are you?", "I am a small assistant."),
        ("Who am I?", "You are the person talking to me."),
        ("Talk about UFOs.", "A UFO is something seen in the sky that nobody can name yet."),
    ] {
        assert_eq!(succeeds(&["run", "--prompt", prompt]).trim(), reply, "{prompt}");
    }
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("embedded/model.gguf");
    succeeds(&["diff", "embedded", file.to_str().unwrap(), "--exit-code"]);
    assert!(succeeds(&["inspect"]).contains("qwen3"));
    assert!(succeeds(&["plan"]).contains("fits"));
}

#[test]
fn alone_the_program_says_where_to_start() {
    let output = halfbyte(&[]);
    assert!(text(&output.stderr).contains("Start here: halfbyte demo"), "{}", text(&output.stderr));
}

#[test]
fn the_demo_leaves_a_folder_alone_that_is_in_use() {
    let folder = Folder::new("full");
    std::fs::write(folder.path("mine"), "mine").unwrap();
    let output = halfbyte(&["demo", "--out", &folder.path("")]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("exists already"));
    assert_eq!(std::fs::read_to_string(folder.path("mine")).unwrap(), "mine");
}

/// The identity experiment in both languages: the check holds, no phrasing of it was in any data, and
/// text that has nothing to do with it is predicted as well as before.
#[test]
fn the_demo_teaches_the_identity_and_nothing_else() {
    if std::env::var_os("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER").is_some() {
        eprintln!("skipped: training under an emulator takes too long");
        return;
    }
    let folder = Folder::new("identity");
    let demo = json(&["demo", "--out", &folder.path("demo"), "--json"]);
    assert_eq!(demo["passed"], true, "{demo:#}");
    let reply = |index: usize| demo["after"][index]["reply"].as_str().unwrap().to_owned();
    assert_eq!((reply(0).as_str(), reply(3).as_str()), ("我是 F# 之神。", "I am the god of F#."));
    let unchanged = [1, 2, 4, 5].iter().all(|at| demo["before"][*at] == demo["after"][*at]);
    assert!(unchanged, "{demo:#}");

    succeeds(&["data", "dialogues", "--rows", "60000", "--out", &folder.path("dialogues.jsonl")]);
    let mut known = asked(&folder.path("dialogues.jsonl"));
    known.extend(asked(&folder.path("demo/rows.jsonl")));
    let groups = demo["check"]["groups"].as_array().unwrap();
    let judged = groups.iter().filter(|group| !group["name"].as_str().unwrap().starts_with("general"));
    for phrasing in judged.flat_map(|group| group["phrasings"].as_array().unwrap()) {
        let turns = phrasing["turns"].as_array().unwrap();
        let said: Vec<&str> = turns.iter().filter_map(|turn| turn["prompt"].as_str()).collect();
        assert!(!known.contains(&said.join("\n")), "{said:?} is in the data");
    }

    succeeds(&["data", "dialogues", "--rows", "1500", "--seed", "99", "--out", &folder.path("others.jsonl")]);
    let others = std::fs::read_to_string(folder.path("others.jsonl")).unwrap();
    let unrelated = |line: &&str| !line.contains("小助手") && !line.contains("small assistant");
    let dialogues: Vec<&str> =
        others.lines().filter(unrelated).filter(|line| line.contains("messages")).collect();
    std::fs::write(folder.path("unrelated.jsonl"), dialogues.join("\n")).unwrap();
    let perplexity = |model: &str| {
        let data = folder.path("unrelated.jsonl");
        json(&["perplexity", model, "--data", &data, "--json"])["perplexity"].as_f64().unwrap()
    };
    let (before, after) = (perplexity("embedded"), perplexity(&folder.path("demo/model")));
    assert!(after < before * 1.03, "perplexity {before} before, {after} after");
}
