//! What surrounds the steps of a training run: its plan, samples and check, settings as a file, numbers
//! that are none, export of checkpoints, the phases of one step.

mod program;
mod toy;

use std::fs;
use std::path::Path;
use std::process::Output;

use serde_json::Value;
use toy::{Toy, halfbyte, text};

const ROWS: &str = "hello\tgood day\nwho are you\tI am a toy\n你是誰\t我是玩具\nbye\tsee you\n";

fn train(toy: &Toy, out: &str, more: &[&str]) -> Output {
    let (model, data, out) = (toy.path("model"), toy.write("rows.tsv", ROWS), toy.path(out));
    let fixed = ["train", "--model", &model, "--data", &data, "--out", &out];
    let usual = ["--seq", "--batch", "--lr", "--steps", "--save-every"].into_iter();
    let usual = usual.zip(["64", "2", "3e-3", "12", "4"]);
    let usual = usual.filter(|(flag, _)| !more.contains(flag)).flat_map(|(flag, value)| [flag, value]);
    halfbyte(&[&fixed[..], &usual.collect::<Vec<_>>(), more].concat())
}

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", text(&output.stderr)))
}

fn ended(output: &Output, code: i32) -> String {
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{said}");
    said
}

fn lines(path: &str) -> Vec<Value> {
    fs::read_to_string(path).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn the_plan_is_the_one_that_training_uses() {
    let toy = Toy::new("run-plan");
    let config = toy.path("config.json");
    let sizes = ["--train", "--batch", "2", "--seq", "64", "--threads", "2"];
    let planned = json(&halfbyte(&[&["plan", &config, "--json"][..], &sizes].concat()));
    let run = json(&train(&toy, "run", &["--threads", "2", "--json"]));
    assert_eq!(planned["peak_bytes"], run["peak_bytes_planned"]);
    assert_eq!(planned["state_bytes"], run["state_bytes"]);
    let bytes = |group: &str| -> u64 {
        let buffers = planned["buffers"].as_array().unwrap().iter();
        buffers
            .filter(|buffer| buffer["group"] == group)
            .map(|buffer| buffer["bytes"].as_u64().unwrap())
            .sum()
    };
    assert_eq!(bytes("weights") + bytes("state"), planned["state_bytes"].as_u64().unwrap());
    let table = halfbyte(&[&["plan", &toy.path("model")][..], &sizes].concat());
    let said = text(&table.stdout);
    for label in ["weights", "remainder", "moments", "activations", "scratch", "logits chunk", "peak", "fits"]
    {
        assert!(said.lines().any(|line| line.starts_with(label)), "{label} is missing in\n{said}");
    }
}

#[test]
fn what_does_not_fit_is_refused_with_a_change_that_does() {
    let toy = Toy::new("run-large");
    let config = toy.path("config.json");
    let plan =
        |batch: &str| halfbyte(&["plan", &config, "--train", "--batch", batch, "--seq", "512", "--json"]);
    let planned = plan("65536");
    if json(&planned)["budget_bytes"].is_null() {
        println!("skipped: this system does not say how much memory it has");
        return;
    }
    assert!(ended(&planned, 3).contains("Smallest change that fits: --batch "));
    let changes = json(&planned)["changes_that_fit"].clone();
    let flag = changes[0]["flag"].as_str().unwrap();
    let batch: usize = flag.strip_prefix("--batch ").unwrap().parse().unwrap();
    // Memory comes and goes between two calls.
    ended(&plan(&(batch / 2).to_string()), 0);
    let refused = ended(&train(&toy, "run", &["--batch", "65536", "--seq", "512"]), 3);
    assert!(refused.contains("does not fit") && refused.contains("--batch "), "{refused}");
    assert!(refused.contains("activations"), "{refused}");
    assert!(!Path::new(&toy.path("run")).exists(), "nothing is left behind");
    assert!(ended(&plan("65537"), 2).contains("65536"));
    let peak = |what: &str| {
        let flags =
            ["plan", &config, "--train", "--batch", "4", "--seq", "64", "--json", "--recompute", what];
        json(&halfbyte(&flags))["peak_bytes"].as_u64().unwrap()
    };
    assert!(peak("none") > peak("feed-forward") && peak("feed-forward") > peak("layer"));
    ended(&halfbyte(&["plan", &config, "--train", "--context", "64"]), 2);
}

#[test]
fn samples_are_what_the_model_says_and_change_nothing() {
    let toy = Toy::new("run-samples");
    let spec = "[[group]]\nname = \"polite\"\nphrasings = [\"hello\"]\ncontains = \"good day\"\nmax_kl = 100.0\n\
        [[group]]\nname = \"silent\"\nphrasings = [\"hello\"]\nlacks = \"good day\"\n";
    let spec = toy.write("spec.toml", spec);
    let asked =
        ["--steps", "120", "--seq", "128", "--sample", "hello", "--sample", "bye", "--sample-every", "90"];
    let run = train(&toy, "run", &[&asked[..], &["--check", &spec, "--json"]].concat());
    // The toy has learnt to say it, so that one of the two groups fails.
    assert!(ended(&run, 5).contains("the check failed: silent"));
    let said = json(&run);
    assert_eq!(said["checks"][0]["passed"], true, "{said}");
    assert_eq!(said["samples"][0]["after"], "good day", "{said}");
    let steps: Vec<u64> =
        lines(&toy.path("run/samples.jsonl")).iter().filter_map(|s| s["step"].as_u64()).collect();
    assert_eq!(steps, [0, 0, 90, 90, 120, 120]);
    for pair in said["samples"].as_array().unwrap() {
        let prompt = pair["prompt"].as_str().unwrap();
        for (model, reply) in [("model", "before"), ("run/model", "after")] {
            let talk = ["run", &toy.path(model), "--prompt", prompt, "--max-tokens", "48", "--json"];
            assert_eq!(json(&halfbyte(&talk))["reply"], pair[reply], "{model}");
        }
    }
    let page = fs::read_to_string(toy.path("run/report.html")).unwrap();
    assert!(page.contains("1 of 2 checks fail") && page.contains("Before and after"));
    ended(&train(&toy, "quiet", &["--steps", "120", "--seq", "128"]), 0);
    let bytes = |run: &str| fs::read(toy.path(&format!("{run}/model/model.safetensors"))).unwrap();
    assert!(bytes("run") == bytes("quiet"), "samples change what is learnt");
    let long = "long ".repeat(40);
    assert!(ended(&train(&toy, "long", &["--sample", &long]), 2).contains("--sample"));
}

/// The step that a run stopped at.
fn stopped_at(said: &str) -> u64 {
    let number = said.split("stopped at step ").nth(1).and_then(|rest| rest.split(':').next());
    number.and_then(|number| number.parse().ok()).unwrap_or_else(|| panic!("{said}"))
}

/// Goes on with a stopped run as its message says; gives what it said and its records.
fn skip(toy: &Toy, stopped: &str, code: i32) -> (Value, String, Vec<Value>) {
    let settings = toy.path("run/settings.toml");
    assert!(stopped.contains(&format!("--config {settings} --resume --on-nan skip")), "{stopped}");
    let passed = halfbyte(&["train", "--config", &settings, "--resume", "--on-nan", "skip", "--json"]);
    let said = ended(&passed, code);
    (json(&passed), said, lines(&toy.path("run/log.jsonl")))
}

#[test]
fn a_loss_that_is_no_number_stops_with_the_state_before_it_and_can_be_passed() {
    let toy = Toy::new("run-nan");
    // Norms are thrown out of all bounds, everything else stays.
    let thrown =
        ["--lr", "1e30", "--warm-up", "0", "--lr-scale", "*=0", "--lr-scale", "*post_attention_layernorm*=1"];
    let stopped = ended(&train(&toy, "run", &thrown), 1);
    let step = stopped_at(&stopped);
    assert!(step > 1 && stopped.contains("the loss is not a number"), "{stopped}");
    assert!(stopped.contains("rows.tsv line "), "{stopped}");
    assert!(stopped.contains(&format!("the last good state is step {}, saved", step - 1)), "{stopped}");
    assert!(Path::new(&toy.path(&format!("run/checkpoints/{:06}", step - 1))).exists());
    // It never recovers, and says so.
    let (result, said, records) = skip(&toy, &stopped, 1);
    assert!(said.contains("the last loss is not a number"), "{said}");
    assert!(said.contains(&format!("step {step}: the loss is not a number; skipped")), "{said}");
    let skipped = records.iter().filter(|record| record["loss"].is_null()).count() as u64;
    assert_eq!((records.len(), skipped), (12, 13 - step));
    assert_eq!((&result["non_finite"], &records[11]["non_finite"]), (&skipped.into(), &skipped.into()));
}

#[test]
fn an_update_that_is_no_number_stops_and_its_tensors_can_be_left_out() {
    let toy = Toy::new("run-nan-update");
    let stopped = ended(&train(&toy, "run", &["--lr", "1e30"]), 1);
    assert!(stopped.contains("the update of model.") && stopped.contains("rows.tsv line "), "{stopped}");
    assert!(stopped.contains("nothing was saved yet"), "{stopped}");
    let (result, _, records) = skip(&toy, &stopped, 0);
    assert_eq!(records.len(), 12);
    assert!(result["non_finite"].as_u64().unwrap() > 0, "{result}");
}

#[test]
fn settings_as_a_file_are_the_flags_and_flags_win() {
    let toy = Toy::new("run-config");
    ended(&train(&toy, "one", &["--lr-scale", "*mlp*=0.5", "--held-out", "25%"]), 0);
    let settings = toy.path("one/settings.toml");
    // Given back, the settings make the same run; what stands on the command line wins.
    let again = |more: &[&str]| halfbyte(&[&["train", "--config", &settings][..], more].concat());
    ended(&again(&["--out", &toy.path("two")]), 0);
    // Keeping layers instead of computing them again changes no byte either.
    ended(&again(&["--out", &toy.path("half"), "--recompute", "feed-forward"]), 0);
    ended(&again(&["--out", &toy.path("kept"), "--recompute", "none"]), 0);
    let bytes = |run: &str| fs::read(toy.path(&format!("{run}/checkpoints/000012/state"))).unwrap();
    assert!(["two", "half", "kept"].into_iter().all(|run| bytes(run) == bytes("one")));
    let written = |run: &str| fs::read_to_string(toy.path(&format!("{run}/settings.toml"))).unwrap();
    assert_eq!(written("one").replace("/one\"", "/two\""), written("two"));
    ended(&again(&["--out", &toy.path("short"), "--steps", "3"]), 0);
    assert_eq!(lines(&toy.path("short/log.jsonl")).len(), 3);
    for (wrong, code, place, remedy) in [
        ("batc = 2\n", 4, "line 1: \"batc\" is no key", "did you mean batch?"),
        ("steps = 3\nwarm_up = 2\n", 4, "line 2", "did you mean warm-up?"),
        ("steps = \n", 4, "line 1", "not TOML"),
        ("skip-empty = \"yes\"\n", 4, "skip-empty: this is", "true or false"),
        ("[steps]\na = 1\n", 4, "steps: this is a table", "write steps"),
        ("batch = 2\nsteps = -3\n", 4, "line 2: steps: invalid value '-3'", "help train"),
        ("data = [\"a\",\n\"b:0\"]\n", 4, "line 2: data: invalid", "the weight 0 is not above 0"),
        ("state = \"tiny\"\n", 4, "line 1: state: invalid", "possible values: default, lean"),
        ("config = \"x.toml\"\n", 4, "no key", "there are"),
    ] {
        let file = toy.write("wrong.toml", wrong);
        let said = ended(&halfbyte(&["train", "--config", &file]), code);
        assert!(said.contains(place) && said.contains(remedy), "{wrong}{said}");
    }
    let said = ended(&halfbyte(&["train", "--config", &toy.path("none.toml")]), 4);
    assert!(said.contains("none.toml"), "{said}");
}

#[test]
fn a_run_goes_on_with_the_date_it_began_with() {
    let toy = Toy::new("run-date");
    let template = "{{ strftime_now('%Y-%m-%d') }}{% for m in messages %}<|im_start|>{{ m.role }}\n\
        {{ m.content }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
    let config = serde_json::json!({ "chat_template": template, "eos_token": "<|im_end|>" });
    toy.write("model/tokenizer_config.json", &config.to_string());
    ended(&train(&toy, "run", &["--date", "2001-02-03"]), 0);
    fs::remove_dir_all(toy.path("run/checkpoints/000012")).unwrap();
    ended(&train(&toy, "run", &["--resume"]), 0);
    let report = fs::read_to_string(toy.path("run/report.html")).unwrap();
    assert!(
        report.contains("run/settings.toml --out ANOTHER"),
        "the report repeats the command that only goes on"
    );
    assert!(
        ended(&train(&toy, "run", &["--resume", "--date", "2002-02-03"]), 2).contains("data: fingerprint")
    );
    assert!(ended(&train(&toy, "run", &["--date", "2001-02-30"]), 2).contains("no such day"));
}

#[test]
fn checkpoints_are_exported_in_every_format() {
    let toy = Toy::new("run-export");
    ended(&train(&toy, "run", &[]), 0);
    // A .dat wants a folder of its own.
    ["dat", "converted/dat"].iter().for_each(|folder| fs::create_dir_all(toy.path(folder)).unwrap());
    for (to, name) in [("modelopt", "modelopt"), ("hf", "hf"), ("gguf", "toy.gguf"), ("dat", "dat/toy.dat")] {
        let out = toy.path(name);
        ended(&halfbyte(&["export", &toy.path("run"), &out, "--to", to]), 0);
        ended(&halfbyte(&["inspect", &out]), 0);
        let converted = toy.path(&format!("converted/{name}"));
        ended(
            &halfbyte(&["convert", &toy.path("run/model"), &converted, "--to", to, "--weights", "keep"]),
            0,
        );
        ended(&halfbyte(&["diff", &converted, &out, "--exit-code"]), 0);
    }
    let bytes = |path: &str| fs::read(toy.path(path)).unwrap();
    assert!(bytes("modelopt/model.safetensors") == bytes("run/model/model.safetensors"));
    let earlier = toy.path("run/checkpoints/000008");
    ended(&halfbyte(&["export", &earlier, &toy.path("earlier"), "--to", "modelopt"]), 0);
    assert!(bytes("earlier/model.safetensors") != bytes("run/model/model.safetensors"));
    let hidden = |entry: &fs::DirEntry| entry.file_name().to_string_lossy().ends_with(".export");
    assert!(!fs::read_dir(toy.path("")).unwrap().any(|entry| hidden(&entry.unwrap())));
}

#[test]
fn what_cannot_be_exported_is_refused_by_name() {
    let toy = Toy::new("run-export-bad");
    ended(&train(&toy, "run", &[]), 0);
    let export = |from: &str, more: &[&str]| {
        let (from, out) = (toy.path(from), toy.path("out"));
        halfbyte(&[&["export", &from, &out, "--to", "modelopt"][..], more].concat())
    };
    assert!(ended(&export("model", &[]), 4).contains("no run was begun here"));
    assert!(ended(&export("nothing", &[]), 4).contains("no run was begun here"));
    // The newest is damaged: by name it is refused, the run falls back on the one before.
    let state = toy.path("run/checkpoints/000012/state");
    let mut bytes = fs::read(&state).unwrap();
    bytes[1000] ^= 1;
    fs::write(&state, &bytes).unwrap();
    let said = ended(&export("run/checkpoints/000012", &[]), 4);
    assert!(said.contains("000012") && said.contains("checksum"), "{said}");
    assert!(ended(&export("run", &["--force"]), 0).contains("passed over"));
    // Another model, and none.
    let other = ["init", "--config", &toy.path("config.json"), "--seed", "3", "--out", &toy.path("other")];
    ended(&halfbyte(&other), 0);
    let said = ended(&export("run", &["--force", "--model", &toy.path("other")]), 4);
    assert!(said.contains("not the model that the run began with"), "{said}");
    fs::rename(toy.path("model"), toy.path("moved")).unwrap();
    assert!(ended(&export("run", &["--force"]), 4).contains("--model"));
    ended(&export("run", &["--force", "--model", &toy.path("moved")]), 0);
}

#[test]
fn one_step_tells_the_memory_of_its_phases_and_leaves_nothing() {
    let toy = Toy::new("run-one-step");
    let (model, data) = (toy.path("model"), toy.write("rows.tsv", ROWS));
    let before = fs::read_dir(toy.path("")).unwrap().count();
    let step = halfbyte(&["train", "--model", &model, "--data", &data, "--seq", "64", "--one-step"]);
    let said = json(&step);
    let phases: Vec<&str> =
        said["phases"].as_array().unwrap().iter().filter_map(|phase| phase["phase"].as_str()).collect();
    let all = "start model_loaded state_initialized batch_ready zero_grad_done backward_done \
               optimizer_step_done cleanup_done";
    assert_eq!(phases.join(" "), all);
    assert!(said["loss"].as_f64().unwrap() > 0.0);
    if cfg!(target_os = "linux") {
        assert!(said["phases"][0]["resident_bytes"].as_u64().unwrap() > 0);
    }
    assert_eq!(fs::read_dir(toy.path("")).unwrap().count(), before);
    assert!(ended(&halfbyte(&["train", "--model", &model, "--data", &data]), 2).contains("--out"));
}
