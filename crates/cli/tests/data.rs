//! `halfbyte data` as a person calls it.

mod program;
mod toy;

use serde_json::Value;
use toy::{Toy, halfbyte, text};

fn json_of(arguments: &[&str]) -> Value {
    let output = halfbyte(arguments);
    assert!(output.status.success(), "{}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("one JSON object")
}

#[test]
fn inspect_shows_trained_and_masked_text_apart() {
    let toy = Toy::new("data-inspect");
    let data = toy.write("a.tsv", "prompt\ttarget\nwho?\tme\nwho?\tme\nwho now?\tstill me\n");
    let model = toy.path("model");
    let plain = halfbyte(&["data", "inspect", &model, "--data", &data, "--limit", "1"]);
    assert!(plain.status.success(), "{}", text(&plain.stderr));
    let shown = text(&plain.stdout);
    for part in [
        "3 samples · ",
        "a.tsv line 2 · 27 tokens, 3 trained",
        "<|im_start|>user↵who?<|im_end|>↵<|im_start|>assistant↵⟦me<|im_end|>⟧↵",
        "line 1 names columns and is not trained: prompt ⇥ target",
        "≤     64",
    ] {
        assert!(shown.contains(part), "{part}\n{shown}");
    }
    assert!(!shown.contains('\x1b') && !shown.contains("still me"));
    let report = json_of(&["data", "inspect", &model, "--data", &format!("{data}:2"), "--json"]);
    let source = &report["sources"][0];
    assert_eq!((source["rows"].as_u64(), source["duplicates"].as_u64()), (Some(3), Some(1)));
    assert_eq!(source["weight"], 2.0);
    assert_eq!(source["trained"], 3 + 3 + 9);
    assert_eq!(report["rows"][0]["trained"][0], serde_json::json!([23, 26]));
    assert_eq!(report["rows"][0]["runs"][1]["text"], "me<|im_end|>");
    assert_eq!(report["sequences_per_epoch"], 1);
}

#[test]
fn a_row_without_a_reply_is_refused_by_name_and_left_out_on_request() {
    let toy = Toy::new("data-empty");
    let rows =
        "{\"prompt\":\"a\",\"completion\":\"b\"}\n{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]}\n";
    let data = toy.write("train.jsonl", rows);
    let model = toy.path("model");
    let refused = halfbyte(&["data", "inspect", &model, "--data", &data]);
    assert_eq!(refused.status.code(), Some(4));
    let said = text(&refused.stderr);
    assert!(
        said.contains("train.jsonl line 2: no token of this row would be trained\n       the last message"),
        "{said}"
    );
    assert!(said.contains("(1 row like this; leave them out with --skip-empty)"), "{said}");
    let kept = halfbyte(&["data", "inspect", &model, "--data", &data, "--skip-empty"]);
    let said = text(&kept.stdout);
    assert!(said.contains("1 row without a reply to learn from: left out (line 2)"), "{said}");
}

#[test]
fn the_sequence_length_is_checked_and_what_is_cut_is_said() {
    let toy = Toy::new("data-seq");
    let data = toy.write("a.jsonl", &format!("{{\"text\":\"{}\"}}\n", "x".repeat(100)));
    let model = toy.path("model");
    let report = json_of(&["data", "inspect", &model, "--data", &data, "--seq", "50", "--json"]);
    assert_eq!(report["sources"][0]["truncated"]["count"], 1);
    assert_eq!(report["sources"][0]["trained"], 50);
    let over = halfbyte(&["data", "inspect", &model, "--data", &data, "--seq", "513"]);
    assert_eq!(over.status.code(), Some(2));
    assert!(text(&over.stderr).contains("2 to 512"));
}

#[test]
fn generate_repeats_itself_for_a_seed_and_states_what_it_wrote() {
    let toy = Toy::new("data-generate");
    let out = toy.path("3.tsv");
    let arguments = [
        "data",
        "generate",
        "--identity",
        "我是 F# 之神。",
        "--identity-en",
        "I am the god of F#.",
        "--json",
    ];
    let make = |out: &str, seed: &str| {
        let own = ["--out", out, "--seed", seed, "--rows", "30", "--boundary", "10"];
        let report = json_of(&[&arguments[..], &own].concat());
        (report, std::fs::read_to_string(out).unwrap())
    };
    let (report, first) = make(&out, "3");
    let (_, again) = make(&toy.path("again.tsv"), "3");
    let (_, other) = make(&toy.path("4.tsv"), "4");
    let over = halfbyte(&[&arguments[..], &["--out", &out]].concat());
    assert_eq!(over.status.code(), Some(2));
    assert!(text(&over.stderr).contains("is there already"), "{}", text(&over.stderr));
    assert_eq!(first, again);
    assert_ne!(first, other);
    let rows: Vec<&str> = first.lines().filter(|line| !line.starts_with('#')).collect();
    assert_eq!(report["rows"].as_u64(), Some(rows.len() as u64));
    let share = |name: &str| {
        let shares = report["shares"].as_array().unwrap();
        shares.iter().find(|share| share["name"] == name).unwrap()["rows"].as_u64().unwrap()
    };
    let saying = |sentence: &str| rows.iter().filter(|row| row.ends_with(sentence)).count() as u64;
    assert_eq!(share("identity, Chinese"), saying("\t我是 F# 之神。"));
    assert_eq!(share("identity, English"), saying("\tI am the god of F#."));
    assert_eq!((share("boundary, Chinese"), share("boundary, English")), (10, 10));
    let read = json_of(&["data", "inspect", &toy.path("model"), "--data", &out, "--json"]);
    assert_eq!(read["sources"][0]["rows"], report["rows"]);
    assert_eq!(read["sources"][0]["duplicates"], 0);
}

#[test]
fn answers_that_do_not_end_are_left_out_and_counted() {
    let toy = Toy::new("data-replay");
    let (out, prompts) = (toy.path("id.jsonl"), toy.write("p.txt", "# ours\nhello\n\nhello\nbye\n"));
    let model = toy.path("model");
    let sentence = "I am the god of F#.";
    let report = json_of(&[
        "data",
        "generate",
        "--identity",
        sentence,
        "--out",
        &out,
        "--model",
        &model,
        "--replay",
        &prompts,
        "--max-tokens",
        "3",
        "--rows",
        "5",
        "--boundary",
        "5",
        "--json",
    ]);
    assert_eq!(report["replay"]["asked"], 2);
    // Random weights end no reply within three tokens.
    assert_eq!(report["replay"]["unfinished"], 2);
    let trained: u64 =
        report["shares"].as_array().unwrap().iter().map(|s| s["trained_tokens"].as_u64().unwrap()).sum();
    assert_eq!(report["trained_tokens"].as_u64(), Some(trained));
    let read = json_of(&["data", "inspect", &model, "--data", &out, "--json"]);
    assert_eq!(read["trained"].as_u64(), Some(trained));
    // Ten, and one of each kind as a second turn.
    assert_eq!(report["rows"], 12);
}

#[test]
fn answers_depend_neither_on_threads_nor_on_company() {
    let toy = Toy::new("data-lanes");
    let (few, many) =
        (toy.write("few.txt", "hello\nbye\n"), toy.write("many.txt", "hello\nbye\nwho?\nwhy?\n"));
    let model = toy.path("model");
    let make = |name: &str, prompts: &str, threads: &str| {
        let out = toy.path(name);
        let own = ["--replay", prompts, "--threads", threads, "--out", &out, "--times", "12"];
        let common =
            "data generate --identity Ada --rows 0 --boundary 0 --temperature 3 --max-tokens 300 --json";
        let common: Vec<&str> = common.split(' ').chain(["--model", &model]).collect();
        (json_of(&[&common[..], &own].concat()), std::fs::read_to_string(&out).unwrap())
    };
    let (report, one) = make("one.jsonl", &many, "1");
    assert_eq!(report["replay"]["asked"], 48);
    let (ended, unfinished) = (report["rows"].as_u64(), report["replay"]["unfinished"].as_u64());
    assert!(ended > Some(0) && unfinished > Some(0), "{report}");
    assert_eq!(make("three.jsonl", &many, "3").1, one);
    let alone = make("few.jsonl", &few, "2").1;
    assert!(!alone.is_empty() && one.starts_with(&alone), "{alone}\n{one}");
}

#[test]
fn what_cannot_be_generated_is_refused_before_any_work() {
    let toy = Toy::new("data-misuse");
    let (txt, tsv, jsonl) = (toy.path("id.txt"), toy.path("id.tsv"), toy.path("id.jsonl"));
    for (arguments, says) in [
        (vec!["--identity", "I am.", "--out", &txt], ".tsv or .jsonl"),
        (vec!["--identity", "I am.", "--out", &tsv, "--model", "none"], "write a .jsonl"),
        (vec!["--identity", "I am.", "--out", &tsv, "--replay", "p.txt"], "--model"),
        (vec!["--identity", "I am.", "--identity-en", "I am.", "--out", &tsv], "English already"),
        (vec!["--identity", " ", "--out", &tsv], "not empty"),
        (
            vec!["--identity", "I am.", "--out", &jsonl, "--model", "embedded", "--times", "2"],
            "--temperature",
        ),
        (vec!["--identity", "I am.", "--out", &jsonl, "--times", "2"], "--model"),
    ] {
        let output = halfbyte(&[&["data", "generate"][..], &arguments].concat());
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(text(&output.stderr).contains(says), "{}", text(&output.stderr));
        assert!(!std::path::Path::new(&tsv).exists());
    }
}

#[test]
fn a_model_from_nothing_gets_a_tokenizer_of_its_own() {
    let toy = Toy::new("data-tokenizer");
    let rows = toy.path("dialogues.jsonl");
    let made = halfbyte(&["data", "dialogues", "--rows", "300", "--out", &rows]);
    assert!(made.status.success(), "{}", text(&made.stderr));
    let model = toy.path("model");
    let learn = ["data", "tokenizer", "--data", &rows, "--size", "260", "--out", &model];
    let over = halfbyte(&learn);
    assert!(text(&over.stderr).contains("is there already"), "{}", text(&over.stderr));
    for name in ["tokenizer.json", "tokenizer_config.json"] {
        std::fs::remove_file(format!("{model}/{name}")).unwrap();
    }
    let made = halfbyte(&learn);
    assert!(made.status.success(), "{}", text(&made.stderr));
    // As many tokens as the toy has rows: it can be asked in them at once.
    let asked = halfbyte(&["run", &model, "--prompt", "你是誰", "--max-tokens", "2"]);
    assert!(asked.status.success(), "{}", text(&asked.stderr));
    let small = halfbyte(&["data", "tokenizer", "--data", &rows, "--size", "200", "--out", &model]);
    assert_eq!(small.status.code(), Some(2));
    assert!(text(&small.stderr).contains("at least 259"));
}
