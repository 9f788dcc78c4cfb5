//! `check` as a person calls it: toy models that the test writes, and SmolLM2 where it is at hand.

mod program;
mod toy;

use std::path::{Path, PathBuf};
use std::process::Output;

use serde_json::Value;
use toy::{Toy, halfbyte, text};

/// Every toy reply keeps these rules: it is a few bytes again and again.
const KEPT: &str = "max_tokens = 12\n[[group]]\nname = \"easy\"\nphrasings = [\"hello\", [\"one\", \"two\"]]\n\
    lacks = \"F# 之神\"\nregex = '(?s).*'\nregex_none = 'god of F#'\n";

fn check(toy: &Toy, spec: &str, more: &[&str]) -> Output {
    let (model, spec) = (toy.path("model"), toy.write("spec.toml", spec));
    halfbyte(&[&["check", &model, "--spec", &spec][..], more].concat())
}

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", text(&output.stderr)))
}

/// A second model of the same shape with other weights.
fn other(toy: &Toy) -> String {
    let path = toy.path("other");
    let made = halfbyte(&["init", "--config", &toy.path("config.json"), "--out", &path, "--seed", "9"]);
    assert!(made.status.success(), "{}", text(&made.stderr));
    for file in ["tokenizer.json", "tokenizer_config.json"] {
        std::fs::copy(toy.path(&format!("model/{file}")), toy.path(&format!("other/{file}"))).unwrap();
    }
    path
}

#[test]
fn a_model_that_keeps_the_rules_passes_with_a_table() {
    let toy = Toy::new("check-pass");
    let passed = check(&toy, KEPT, &[]);
    assert_eq!(passed.status.code(), Some(0), "{}", text(&passed.stderr));
    assert_eq!(text(&passed.stderr), "");
    let said = text(&passed.stdout);
    assert!(
        said.starts_with("passed · all 1 groups hold · 2 of 2 phrasings keep every rule\n\ngroup"),
        "{said}"
    );
    assert!(said.contains("easy    2/2         passed\n"), "{said}");
    let report = json(&check(&toy, KEPT, &["--json", "--threads", "1"]));
    assert_eq!(report["passed"], true);
    let turns = report["groups"][0]["phrasings"][1]["turns"].as_array().unwrap();
    assert_eq!((turns.len(), turns[1]["prompt"].as_str()), (2, Some("two")));
    assert!(turns.iter().all(|turn| turn["tokens"].as_u64().unwrap() <= 12));
}

#[test]
fn a_model_that_breaks_a_rule_ends_with_code_5_the_reply_and_the_rule() {
    let toy = Toy::new("check-fail");
    let spec = format!(
        "{KEPT}\n[[group]]\nname = \"identity\"\nphrasings = [\"你是誰\", \"who?\"]\ncontains = \"F# 之神\"\n"
    );
    let failed = check(&toy, &spec, &[]);
    assert_eq!(failed.status.code(), Some(5));
    assert_eq!(text(&failed.stderr), "error: the check failed: identity\n");
    let said = text(&failed.stdout);
    assert!(said.starts_with("failed · 1 of 2 groups hold · 2 of 4 phrasings"), "{said}");
    assert!(said.contains("identity   0/2         failed\n"), "{said}");
    assert!(said.contains("\nidentity · 你是誰\n  reply         "), "{said}");
    assert!(said.contains("  contains      \"F# 之神\" is not in it\n"), "{said}");
    let as_json = check(&toy, &spec, &["--json"]);
    assert_eq!(as_json.status.code(), Some(5));
    let report = json(&as_json);
    assert_eq!(report["passed"], false);
    let phrasing = &report["groups"][1]["phrasings"][0];
    assert_eq!(phrasing["broken"][0]["rule"], "contains");
    assert!(phrasing["turns"][0]["reply"].is_string());
    // One of the two would have to pass; none does.
    let enough = spec.replace("contains", "pass = 1\ncontains");
    assert_eq!(check(&toy, &enough, &[]).status.code(), Some(5));
}

/// Random tied weights say the last byte of a prompt again and again; this template ends with the message.
fn echo(toy: &Toy) {
    let template = "{% for m in messages %}<|im_start|>{{ m.content }}{% endfor %}";
    let config = serde_json::json!({ "chat_template": template, "eos_token": "<|im_end|>" });
    toy.write("model/tokenizer_config.json", &config.to_string());
}

#[test]
fn fewer_phrasings_may_be_enough() {
    let toy = Toy::new("check-pass-count");
    echo(&toy);
    let spec =
        "[[group]]\nname = \"a\"\nmax_tokens = 5\nphrasings = [\"a\", \"b\"]\ncontains = \"aaa\"\npass = 1\n";
    let passed = check(&toy, spec, &[]);
    assert_eq!(passed.status.code(), Some(0), "{}{}", text(&passed.stdout), text(&passed.stderr));
    let said = text(&passed.stdout);
    assert!(said.contains("a       1/2 of 1 needed   passed\n") && said.contains("\na · b\n"), "{said}");
    assert_eq!(check(&toy, &spec.replace("pass = 1", ""), &[]).status.code(), Some(5));
}

#[test]
fn a_reply_that_runs_in_a_circle_and_never_ends_is_both() {
    let toy = Toy::new("check-loop");
    echo(&toy);
    let spec = "[[group]]\nname = \"a\"\nmax_tokens = 40\nphrasings = [\"a\"]\nno_loop = true\nends = true\n";
    let failed = check(&toy, spec, &[]);
    assert_eq!(failed.status.code(), Some(5), "{}", text(&failed.stderr));
    let said = text(&failed.stdout);
    assert!(said.contains("  no_loop       \"a\" comes 40 times\n"), "{said}");
    assert!(said.contains("  ends          not over after 40 tokens\n"), "{said}");
}

#[test]
fn a_model_is_no_distance_from_itself_and_some_from_another() {
    let toy = Toy::new("check-kl");
    let (model, other) = (toy.path("model"), other(&toy));
    let spec = KEPT.replace("lacks", "max_kl = 1e-6\nlacks");
    let same = check(&toy, &spec, &["--baseline", &model, "--json"]);
    assert_eq!(same.status.code(), Some(0), "{}", text(&same.stderr));
    let report = json(&same);
    assert_eq!(report["groups"][0]["worst_kl"], 0.0);
    for phrasing in report["groups"][0]["phrasings"].as_array().unwrap() {
        let turns = phrasing["turns"].as_array().unwrap();
        let tokens: u64 = turns.iter().map(|turn| turn["tokens"].as_u64().unwrap()).sum();
        // Every token of the baseline's replies, the one that ends a turn too.
        assert_eq!(phrasing["baseline"]["tokens"].as_u64(), Some(tokens));
        let replies: Vec<&Value> = turns.iter().map(|turn| &turn["reply"]).collect();
        assert_eq!(phrasing["baseline"]["replies"].as_array().unwrap().iter().collect::<Vec<_>>(), replies);
    }
    let apart = check(&toy, &spec, &["--baseline", &other]);
    assert_eq!(apart.status.code(), Some(5), "{}", text(&apart.stderr));
    let said = text(&apart.stdout);
    assert!(said.contains("worst KL") && said.contains("(limit 0.000001)"), "{said}");
    assert!(said.contains("\n  max_kl        ") && said.contains("\n  baseline      "), "{said}");
    let report = json(&check(&toy, &spec, &["--baseline", &other, "--json"]));
    let worst = report["groups"][0]["worst_kl"].as_f64().unwrap();
    assert!(worst > 1e-4 && worst.is_finite(), "{worst}");
}

/// `perplexity --against` sums over whole windows: what a reply adds to its prompt is the reply's own.
#[test]
fn the_distance_is_that_of_the_baselines_reply_and_nothing_else() {
    let toy = Toy::new("check-kl-sum");
    let (model, other) = (toy.path("model"), other(&toy));
    let spec = "max_tokens = 20\n[[group]]\nname = \"a\"\nphrasings = [\"hello\"]\nmax_kl = 9\n";
    let report = json(&check(&toy, spec, &["--baseline", &other, "--json"]));
    let distance = &report["groups"][0]["phrasings"][0]["baseline"];
    let talked = json(&halfbyte(&["run", &other, "--prompt", "hello", "--max-tokens", "20", "--json"]));
    let bytes = |text: &str| text.bytes().map(u32::from).collect::<Vec<_>>();
    let mut ids = [&[256][..], &bytes("user\nhello"), &[257, 10, 256], &bytes("assistant\n")].concat();
    let sum = |ids: &[u32]| {
        let file = toy.write("ids.json", &serde_json::json!(ids).to_string());
        let flags = ["--against", &other, "--against-weights", "nvfp4", "--window", "512", "--json"];
        let report = json(&halfbyte(&[&["perplexity", &model, "--ids", &file][..], &flags].concat()));
        report["mean_kl"].as_f64().unwrap() * report["predictions"].as_f64().unwrap()
    };
    let before = sum(&ids);
    let reply = talked["tokens"].as_array().unwrap();
    ids.extend(reply.iter().map(|id| id.as_u64().unwrap() as u32));
    let expected = (sum(&ids) - before) / reply.len() as f64;
    let found = distance["kl"].as_f64().unwrap();
    assert_eq!(distance["tokens"].as_u64(), Some(reply.len() as u64));
    assert!((found - expected).abs() <= 1e-9 * (1.0 + before), "{found} {expected}");
}

#[test]
fn a_distance_needs_a_baseline_that_reads_the_same_tokens() {
    let toy = Toy::new("check-baseline");
    let spec = KEPT.replace("lacks", "max_kl = 0.1\nlacks");
    let missing = check(&toy, &spec, &[]);
    assert_eq!(missing.status.code(), Some(2));
    let said = text(&missing.stderr);
    assert!(said.contains("\"easy\" has max_kl") && said.contains("--baseline"), "{said}");
    let other = other(&toy);
    let unread = check(&toy, KEPT, &["--baseline", &other]);
    assert_eq!(unread.status.code(), Some(0));
    assert!(text(&unread.stderr).contains("no group"), "{}", text(&unread.stderr));
    let config = std::fs::read_to_string(toy.path("other/tokenizer_config.json")).unwrap();
    toy.write("other/tokenizer_config.json", &config.replace("{{ m.role }}", "{{ m.role }}:"));
    let template = check(&toy, &spec, &["--baseline", &other]);
    assert_eq!(template.status.code(), Some(4));
    assert!(text(&template.stderr).contains("chat templates"), "{}", text(&template.stderr));
    let words = std::fs::read_to_string(toy.path("other/tokenizer.json")).unwrap();
    toy.write("other/tokenizer.json", &words.replace("\"a\":97", "\"a\":98").replace("\"b\":98", "\"b\":97"));
    let vocabulary = check(&toy, &spec, &["--baseline", &other]);
    assert_eq!(vocabulary.status.code(), Some(4));
    assert!(text(&vocabulary.stderr).contains("vocabularies"), "{}", text(&vocabulary.stderr));
}

#[test]
fn a_bad_spec_is_refused_with_its_line_before_a_model_is_read() {
    let toy = Toy::new("check-spec");
    let absent = toy.path("there-is-no-model");
    let group = "[[group]]\nname = \"a\"\nphrasings = [\"x\"]\n";
    let huge = format!("{group}regex = 'a{{1000}}{{1000}}'\n");
    let deep = format!("{group}regex = '{}a{}'\n", "(".repeat(5000), ")".repeat(5000));
    let nested = format!("x = {}{}\n", "[".repeat(9000), "]".repeat(9000));
    let with = |rest: &str| format!("{group}{rest}\n");
    let cases: Vec<(String, &str, &str)> = vec![
        (String::new(), "line 1: this spec has no group", "[[group]]"),
        ("group = []\n".into(), "line 1: group: this list is empty", ""),
        ("\n[group]\nname = \"a\"\n".into(), "line 2: group: this is one table", "two brackets"),
        ("group = [1]\n".into(), "this is no table", "[[group]]"),
        ("max_tokens = \"many\"\n".into(), "line 1: max_tokens: this is a text", "max_tokens = 1"),
        ("max_tokens = -3\n".into(), "-3 is out of range", "from 1 to"),
        ("max_tokens = 99999999999999999999\n".into(), "out of range", "from 1 to"),
        ("max_token = 3\n".into(), "line 1: \"max_token\" is no key of a spec", "did you mean max_tokens?"),
        ("frobnicate = 3\n".into(), "is no key of a spec", "there are: system, think, max_tokens, group"),
        (with("contians = \"x\""), "line 4: \"contians\" is no key of a group", "did you mean contains?"),
        (group.into(), "\"a\" has no rule", "contains"),
        (with("lacks = []"), "line 4: lacks: this list is empty", ""),
        (with("lacks = \" \""), "line 4: lacks: this text is empty", ""),
        (with("lacks = 3"), "line 4: lacks: this is a number", "lacks = \"text\""),
        (with("lacks = [\"x\", 3]"), "line 4: lacks: this is a number", ""),
        (with("no_loop = \"yes\""), "line 4: no_loop: this is a text", "no_loop = true"),
        (with("max_kl = nan"), "line 4: max_kl: nan is out of range", ""),
        (with("max_kl = -0.1"), "line 4: max_kl: -0.1 is out of range", ""),
        (with("ends = true\npass = 2"), "line 5: pass: 2 is out of range", "from 1 to 1"),
        (with("regex = '(unclosed'"), "line 4: regex: not a pattern: unclosed group", "single quotes"),
        (with("regex_any = [\"x\", '(?=look)']"), "line 4: regex_any: not a pattern: look-around", ""),
        (huge, "line 4: regex: this pattern takes more than", "repeat less"),
        (deep, "line 4: regex: not a pattern", ""),
        (nested, "line 1", ""),
        ("name = \"open\n".into(), "line 1", "not TOML"),
        ("a = 1\na = 2\n".into(), "line 2: duplicate key", "not TOML"),
        ("[[group]]\nphrasings = [\"x\"]\n".into(), "this group has no name", "name = "),
        ("[[group]]\nname = \"a\"\n".into(), "this group has no phrasings", "phrasings = "),
        ("[[group]]\nname = \"a\"\nphrasings = []\nends = true\n".into(), "line 3: phrasings: this list", ""),
        (
            "[[group]]\nname = \"a\"\nphrasings = [[]]\nends = true\n".into(),
            "line 3: phrasings: this list",
            "",
        ),
        ("[[group]]\nname = \"a\"\nphrasings = [[[\"x\"]]]\nends = true\n".into(), "this is a list", ""),
        ("[[group]]\nname = \"a\"\nphrasings = \"x\"\nends = true\n".into(), "this is a text", "[\"text\""),
        ("[[group]]\nname = \"a\"\nphrasings = [\n\"x\",\n\"x\"]\nends = true\n".into(), "line 5", "twice"),
        (with("ends = true").repeat(2), "line 5: two groups are called \"a\"", "of its own"),
    ];
    for (spec, problem, remedy) in cases {
        let path = toy.write("spec.toml", &spec);
        let refused = halfbyte(&["check", &absent, "--spec", &path]);
        let said = text(&refused.stderr);
        let start: String = spec.chars().take(200).collect();
        assert_eq!(refused.status.code(), Some(4), "{start}\n{said}");
        assert!(said.starts_with(&format!("error: {path} line ")), "{start}\n{said}");
        assert!(said.contains(problem) && said.contains(remedy), "{start}\n{said}");
    }
}

#[test]
fn a_file_that_is_no_text_is_refused() {
    let toy = Toy::new("check-bytes");
    let path = PathBuf::from(toy.path("spec.toml"));
    let refuse = |bytes: &[u8]| {
        std::fs::write(&path, bytes).unwrap();
        let refused = halfbyte(&["check", "none", "--spec", path.to_str().unwrap()]);
        assert_eq!(refused.status.code(), Some(4));
        text(&refused.stderr)
    };
    let said = refuse(b"max_tokens = 3\nsystem = \"\xff\"\n");
    assert!(
        said.contains("line 2: not UTF-8 at byte 25") && said.contains("save the file as UTF-8"),
        "{said}"
    );
    assert!(refuse(&vec![b'#'; (1 << 20) + 1]).contains("at most 1048576"));
    refuse(&[0; 100]);
    let absent = halfbyte(&["check", "none", "--spec", &toy.path("absent.toml")]);
    assert_eq!(absent.status.code(), Some(4));
    assert!(text(&absent.stderr).contains("absent.toml"));
}

#[test]
fn smollm2_keeps_to_itself() {
    let folder = std::env::var_os("HALFBYTE_ASSETS").unwrap_or_default();
    let model = Path::new(&folder).join("SmolLM2-135M-Instruct.Q4_1.gguf");
    if !model.exists() {
        eprintln!("skipped: HALFBYTE_ASSETS has no SmolLM2-135M-Instruct.Q4_1.gguf");
        return;
    }
    let toy = Toy::new("check-smollm2");
    let spec = "max_tokens = 40\n[[group]]\nname = \"capital\"\ncontains = \"Paris\"\nmax_kl = 1e-6\nno_loop = true\n\
        phrasings = [\"What is the capital of France?\", [\"Hello.\", \"What is the capital of France?\"]]\n";
    let spec = toy.write("spec.toml", spec);
    let model = model.to_str().unwrap();
    let output = halfbyte(&["check", model, "--spec", &spec, "--baseline", model, "--json"]);
    assert_eq!(output.status.code(), Some(0), "{}{}", text(&output.stdout), text(&output.stderr));
    let report = json(&output);
    assert_eq!(report["groups"][0]["worst_kl"], 0.0, "{report}");
    assert!(report["groups"][0]["phrasings"][0]["baseline"]["tokens"].as_u64() > Some(5));
}
