//! `run` and `chat` as a person calls them: a toy model that the test writes, and SmolLM2 where it is at hand.

mod program;
mod toy;

use std::io::Write;
use std::path::Path;
use std::process::{Output, Stdio};

use serde_json::{Value, json};
use toy::{Toy, text};

fn halfbyte(arguments: &[&str], input: &str) -> Output {
    let mut child = program::halfbyte()
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // A command that refuses its flags does not read.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    child.wait_with_output().unwrap()
}

fn json_of(arguments: &[&str]) -> Value {
    let output = halfbyte(arguments, "");
    assert!(output.status.success(), "{}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("one JSON object")
}

const FEW: [&str; 3] = ["--max-tokens", "6", "--ignore-eos"];

#[test]
fn run_prints_the_reply_and_nothing_else() {
    let toy = Toy::new("talk-reply");
    let model = toy.path("model");
    let arguments = [&["run", &model, "--prompt", "hello"][..], &FEW].concat();
    let plain = halfbyte(&arguments, "");
    assert!(plain.status.success(), "{}", text(&plain.stderr));
    assert_eq!(text(&plain.stderr), "");
    let report = json_of(&[&arguments[..], &["--json"]].concat());
    assert_eq!(
        text(&plain.stdout).trim_end_matches('\n'),
        report["reply"].as_str().unwrap().trim_end_matches('\n')
    );
    assert_eq!(report["tokens"].as_array().unwrap().len(), 6);
    assert_eq!(report["finish"], "max_tokens");
    assert!(report["memory"]["planned_peak_bytes"].as_u64() > Some(0));
    let piped = halfbyte(&[&["run", &model, "--prompt", "-"][..], &FEW].concat(), "hello\n");
    assert_eq!(piped.stdout, plain.stdout);
}

#[test]
fn later_turns_compute_only_their_own_tokens() {
    let toy = Toy::new("talk-turns");
    let model = toy.path("model");
    let turns = ["run", &model, "--prompt", "one", "--followup", "two", "--turns", "3", "--json"];
    let report = json_of(&[&turns[..], &FEW].concat());
    let turns = report["turns"].as_array().unwrap();
    let computed = |i: usize| turns[i]["timings"]["computed_tokens"].as_u64().unwrap();
    let prompt = |i: usize| turns[i]["timings"]["prompt_tokens"].as_u64().unwrap();
    assert_eq!((turns.len(), turns[2]["prompt"].as_str()), (3, Some("two")));
    assert_eq!(prompt(0), computed(0));
    for turn in 1..3 {
        assert_eq!(prompt(turn), prompt(turn - 1) + 6 - 1 + computed(turn), "turn {turn}");
    }
    assert_eq!(computed(1), computed(2));
}

#[test]
fn a_session_goes_on_as_if_it_had_not_been_closed() {
    let toy = Toy::new("talk-session");
    let (model, file) = (toy.path("model"), toy.path("talk.session"));
    let say = |text: &str, more: &[&str]| {
        json_of(&[&["run", &model, "--prompt", text, "--json"][..], &FEW, more].concat())
    };
    let together = say("one", &["--followup", "two"]);
    say("one", &["--session", &file]);
    let apart = say("two", &["--session", &file, "--threads", "1"]);
    assert_eq!(apart["tokens"], together["tokens"]);
    assert_eq!(apart["timings"]["computed_tokens"], together["timings"]["computed_tokens"]);
    let arguments = ["run", &model, "--prompt", "x", "--session", &file, "--cache", "f32"];
    let refused = halfbyte(&arguments, "");
    assert!(!refused.status.success());
    assert!(text(&refused.stderr).contains("--cache bf16"), "{}", text(&refused.stderr));
}

#[test]
fn chat_reads_a_pipe_logs_and_replays() {
    let toy = Toy::new("talk-chat");
    let (model, log) = (toy.path("model"), toy.path("chat.jsonl"));
    let arguments = [&["chat", &model, "--log", &log][..], &FEW].concat();
    let lines = "/system be brief\nfirst \\\nline\n\nsecond\n/undo\n/stats\nthird\n/quit\nnever\n";
    let talked = halfbyte(&arguments, lines);
    assert!(talked.status.success(), "{}", text(&talked.stderr));
    assert!(text(&talked.stdout).contains("prompt"), "statistics were asked for");
    let log_text = std::fs::read_to_string(&log).unwrap();
    let turns: Vec<Value> = log_text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(turns.len(), 3);
    assert_eq!(turns[0]["messages"][0], json!({"role": "system", "text": "be brief"}));
    assert_eq!(turns[0]["messages"][1], json!({"role": "user", "text": "first \nline"}));
    assert_eq!(turns[2]["messages"].as_array().unwrap().len(), 4, "the second turn was taken back");
    let replayed = halfbyte(&[&["chat", &model, "--replay", &log][..], &FEW].concat(), "");
    assert!(replayed.status.success(), "{}", text(&replayed.stderr));
    let transcript = text(&replayed.stdout);
    assert!(transcript.starts_with("> first \n> line\n"), "{transcript}");
    assert!(transcript.contains(turns[0]["output"].as_str().unwrap().trim()), "{transcript}");
    std::fs::write(&log, "{\"messages\": 3}\n").unwrap();
    let refused = halfbyte(&["chat", &model, "--replay", &log], "");
    assert!(text(&refused.stderr).contains("line 1"), "{}", text(&refused.stderr));
}

#[test]
fn saving_and_loading_in_chat_restores_the_conversation() {
    let toy = Toy::new("talk-save");
    let (model, file) = (toy.path("model"), toy.path("kept"));
    let arguments = [&["chat", &model, "--json"][..], &FEW].concat();
    let first = halfbyte(&arguments, &format!("one\n/save {file}\ntwo\n"));
    let second = halfbyte(&arguments, &format!("else\n/load {file}\ntwo\n"));
    let last = |output: &Output| -> Value {
        let line = text(&output.stdout).lines().last().unwrap_or_default().to_owned();
        serde_json::from_str(&line).unwrap_or_else(|_| panic!("{line}\n{}", text(&output.stderr)))
    };
    assert_eq!(last(&first)["tokens"], last(&second)["tokens"]);
}

#[test]
fn what_cannot_be_is_refused_with_its_exit_code() {
    let toy = Toy::new("talk-refused");
    let model = toy.path("model");
    let code = |arguments: &[&str]| halfbyte(arguments, "").status.code();
    assert_eq!(code(&["run", &model, "--prompt", "x", "--turns", "2"]), Some(2));
    assert_eq!(code(&["run", &model, "--prompt", "x", "--temperature", "nan"]), Some(2));
    let long = "x".repeat(600);
    let output = halfbyte(&["run", &model, "--prompt", &long], "");
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("512"), "{}", text(&output.stderr));
    std::fs::remove_file(toy.path("model/tokenizer_config.json")).unwrap();
    let output = halfbyte(&["run", &model, "--prompt", "x"], "");
    assert!(text(&output.stderr).contains("--raw"), "{}", text(&output.stderr));
}

/// A file that is not in the repository, if its folder is known.
fn asset(name: &str) -> Option<String> {
    let path = std::env::var_os("HALFBYTE_ASSETS")
        .map(|folder| Path::new(&folder).join(name))
        .filter(|path| path.exists());
    if path.is_none() {
        eprintln!("skipped: HALFBYTE_ASSETS has no {name}");
    }
    Some(path?.to_str()?.to_owned())
}

fn smollm2() -> Option<String> {
    asset("SmolLM2-135M-Instruct.Q4_1.gguf")
}

/// Greedy ids equal the reference's, up to a step where its best two logits are closer than `noise`.
fn follows_reference(model: &str, list: &str, flags: &[&str], noise: f64) {
    let golden = include_str!("golden/smollm2-chat.json");
    let golden: Value = serde_json::from_str(golden).unwrap();
    for chat in golden[list].as_array().unwrap() {
        let prompt = chat["prompt"].as_str().unwrap();
        let arguments = ["run", model, "--prompt", prompt, "--max-tokens", "64", "--json"];
        let report = json_of(&[&arguments[..], flags].concat());
        let (ids, expected) = (report["tokens"].as_array().unwrap(), chat["greedy_ids"].as_array().unwrap());
        let gap = |step: usize| chat["top1_minus_top2"][step].as_f64().unwrap();
        let common = ids.iter().zip(expected).take_while(|(a, b)| a == b).count();
        eprintln!("{list} {prompt}: {common} of {} ids equal", expected.len());
        if common < expected.len() {
            assert!(gap(common) <= noise, "{prompt}: step {common} differs at a gap of {}", gap(common));
        }
    }
}

#[test]
fn smollm2_continues_as_the_reference_does() {
    let Some(model) = smollm2() else { return };
    // f32 sums in another order move a logit by some 1e-4.
    follows_reference(&model, "chats", &["--weights", "f32", "--cache", "f32"], 1e-3);
    // The reference keeps activations and embedding in f32. Noise is one step of bf16 at a logit of 16 to 32.
    follows_reference(&model, "nvfp4_layers", &["--weights", "nvfp4"], 0.125);
}

/// A conversation of three turns, greedy; the name is told in the first only.
fn quotes_turn_one(model: &str, says: [&str; 3], name: &str, flags: &[&str]) {
    let prompts = ["--prompt", says[0], "--followup", says[1], "--followup", says[2]];
    let talk = [&["run", model][..], &prompts, flags, &["--max-tokens", "120", "--json"]].concat();
    let report = json_of(&talk);
    let turns = report["turns"].as_array().unwrap();
    let number = |turn: usize, key: &str| turns[turn]["timings"][key].as_u64().unwrap();
    let reply = |turn: usize| turns[turn]["reply"].as_str().unwrap();
    let replies: Vec<&str> = (0..3).map(reply).collect();
    assert!(turns.iter().all(|turn| turn["finish"] == "stop"), "{replies:?}");
    assert!(!says[2].contains(name) && reply(2).contains(name), "{replies:?}");
    // A message by itself, with the system message and all of the template around it.
    let alone = |text: &str| {
        let one = [&["run", model, "--prompt", text][..], flags, &["--max-tokens", "1", "--json"]].concat();
        json_of(&one)["timings"]["prompt_tokens"].as_u64().unwrap()
    };
    assert_eq!((number(0, "prompt_tokens"), number(0, "computed_tokens")), (alone(says[0]), alone(says[0])));
    let mut cached = 0;
    for turn in 0..3 {
        // The last token of a reply is chosen, not yet computed: it comes with the next turn.
        assert_eq!(number(turn, "prompt_tokens"), cached + number(turn, "computed_tokens"), "turn {turn}");
        cached = number(turn, "prompt_tokens") + number(turn, "generated_tokens") - 1;
    }
    assert_eq!(report["cached_tokens"].as_u64(), Some(cached));
    // What later turns compute is their own message: two differ by as much as the messages do.
    let own = |turn: usize| number(turn, "computed_tokens") + alone(says[0]) - alone(says[turn]);
    assert_eq!(own(1), own(2));
    assert!(own(1) < alone(says[0]), "the system message is not computed again");
}

#[test]
fn smollm2_quotes_turn_one_in_turn_three() {
    let Some(model) = smollm2() else { return };
    let dog = ["My dog is called Biscuit.", "How many legs does a dog have?", "What is my dog called?"];
    quotes_turn_one(&model, dog, "Biscuit", &["--weights", "bf16"]);
    let cat = ["My cat is called Pepper.", "What is the capital of Italy?", "What is my cat called?"];
    quotes_turn_one(&model, cat, "Pepper", &["--weights", "nvfp4", "--scales", "search"]);
}

/// `hay` with the secret at the first end of a paragraph after `depth`, asked for at the end; the
/// words of scripts/check/needle.py.
fn haystack(hay: &str, depth: f64) -> String {
    let wanted = (hay.chars().count() as f64 * depth) as usize;
    let from = hay.char_indices().nth(wanted).map_or(0, |(at, _)| at);
    let (before, after) = hay.split_at(from + hay[from..].find("\n\n").expect("a paragraph"));
    let code = "The secret code of the vault is";
    format!("{before}\n\n{code} 7391. Remember it.\n\n{after}\n\n{code}")
}

/// At 8,183 tokens the reply takes the last places of the context. From 7,950 on a sentence at a
/// depth of 0.1 was not found in any of five wordings, so the depths are others there.
#[test]
fn smollm2_finds_a_sentence_in_its_full_context() {
    let (Some(model), Some(book)) = (smollm2(), asset("handbook-ch1.txt")) else { return };
    let book = std::fs::read_to_string(book).unwrap();
    for (characters, depth, tokens) in
        [(33_000, 0.1, 7_039), (33_000, 0.5, 7_039), (38_320, 0.5, 8_183), (38_320, 0.9, 8_183)]
    {
        let hay: String = book.chars().take(characters).collect();
        let flags = ["--raw", "--context", "8192", "--max-tokens", "8", "--weights", "bf16", "--json"];
        let asked = [&["run", &model, "--prompt", "-"][..], &flags].concat();
        let output = halfbyte(&asked, &haystack(&hay, depth));
        assert!(output.status.success(), "{}", text(&output.stderr));
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(report["timings"]["prompt_tokens"].as_u64(), Some(tokens), "{report}");
        assert!(report["reply"].as_str().unwrap().contains("7391"), "depth {depth}: {report}");
    }
}
