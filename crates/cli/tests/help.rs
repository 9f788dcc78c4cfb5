//! The help texts are files that people review. `HALFBYTE_UPDATE_HELP=1 cargo test --test help`
//! writes them anew.

mod program;

use std::path::PathBuf;

const COMMANDS: [&str; 21] = [
    "",
    "inspect",
    "convert",
    "diff",
    "init",
    "plan",
    "run",
    "chat",
    "perplexity",
    "compare",
    "check",
    "data",
    "data inspect",
    "data generate",
    "data dialogues",
    "data tokenizer",
    "train",
    "export",
    "bench",
    "demo",
    "doctor",
];

fn help(command: &str) -> String {
    let output = program::halfbyte().args(command.split_whitespace()).arg("--help").output().unwrap();
    assert!(output.status.success());
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn help_is_the_reviewed_text_and_ends_with_examples() {
    for command in COMMANDS {
        let name = if command.is_empty() { "halfbyte".to_owned() } else { command.replace(' ', "-") };
        let file = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("tests/help/{name}.txt"));
        let text = help(command);
        if std::env::var_os("HALFBYTE_UPDATE_HELP").is_some() {
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(&file, &text).unwrap();
        }
        assert!(command.is_empty() || text.contains("Examples:"), "{command} --help has no examples");
        let reviewed = std::fs::read_to_string(&file).unwrap_or_default();
        assert_eq!(text, reviewed, "{} is not what `halfbyte {command} --help` prints", file.display());
    }
}

#[test]
fn a_mistyped_flag_names_the_nearest() {
    let output = program::halfbyte().args(["plan", "x.gguf", "--contxt", "5"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("--context"));
}
