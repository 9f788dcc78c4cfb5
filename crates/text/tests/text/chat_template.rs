//! Prompts equal jinja2's with transformers' settings, and hostile templates end in an error.

use halfbyte_text::{ChatTemplate, Error, Message};
use serde_json::{Map, Value};

use crate::assets::{self, Meta};

fn source(model: &str) -> Option<String> {
    if model == "smollm2" {
        let mut fields = assets::metadata("SmolLM2-135M-Instruct.Q4_1.gguf")?;
        return match fields.remove("tokenizer.chat_template") {
            Some(Meta::Text(text)) => Some(text),
            _ => None,
        };
    }
    let bytes = assets::bytes(&format!("tok/{model}/package/models/tokenizer_config.json"))?;
    let config: Value = serde_json::from_slice(&bytes).unwrap();
    config["chat_template"].as_str().map(str::to_owned)
}

/// A real model's template, at the time of the golden file.
pub(crate) fn model_template(model: &str) -> Option<ChatTemplate> {
    let golden = assets::golden("chat_template.json");
    let expected = &golden["models"][model];
    let (bos, eos) = (expected["bos"].as_str().unwrap(), expected["eos"].as_str().unwrap());
    let template = ChatTemplate::new(&source(model)?, bos, eos).unwrap();
    Some(template.with_time(golden["time"].as_u64().unwrap()))
}

fn render(template: &ChatTemplate, conversation: &Value) -> Result<String, Error> {
    let messages: Vec<Message> = serde_json::from_value(conversation["messages"].clone()).unwrap();
    let extra = conversation["extra"].as_object().cloned().unwrap_or_default();
    template.render(&messages, conversation["prompt"].as_bool().unwrap(), &extra)
}

#[test]
fn our_templates_print_what_jinja2_prints() {
    let golden = assets::golden("chat_template.json");
    let conversations = golden["conversations"].as_array().unwrap();
    for own in golden["own"].as_array().unwrap() {
        let source = own["source"].as_str().unwrap();
        let template = ChatTemplate::new(source, "<s>", "</s>").unwrap();
        let template = template.with_time(golden["time"].as_u64().unwrap());
        for (conversation, output) in conversations.iter().zip(own["outputs"].as_array().unwrap()) {
            let printed = render(&template, conversation).unwrap_or_else(|e| panic!("{source}: {e}"));
            assert_eq!(printed, output.as_str().unwrap(), "{source}");
        }
    }
}

#[test]
fn real_templates_print_what_jinja2_prints() {
    let golden = assets::golden("chat_template.json");
    for model in ["qwen3", "qwen2_5", "llama3_2", "smollm2"] {
        let Some(template) = model_template(model) else {
            continue;
        };
        let outputs = golden["models"][model]["outputs"].as_array().unwrap();
        for (conversation, output) in golden["conversations"].as_array().unwrap().iter().zip(outputs) {
            assert_eq!(render(&template, conversation).unwrap(), output.as_str().unwrap(), "{model}");
        }
    }
}

fn run(source: &str) -> Result<String, Error> {
    let template = ChatTemplate::new(source, "", "")?;
    template.render(&[Message::new("user", "x")], true, &Map::new())
}

#[test]
fn raise_exception_is_told_from_an_error_in_the_template() {
    let error = run("{{ raise_exception('roles must alternate') }}").unwrap_err();
    assert_eq!(error, Error::Refused("roles must alternate".to_owned()));
    let error = run("a\n{{ 1 + }}").unwrap_err();
    assert!(matches!(&error, Error::Template { line: 2, .. }), "{error}");
    let error = run("a\n\n{{ missing.attribute }}").unwrap_err();
    assert!(matches!(&error, Error::Template { line: 3, .. }), "{error}");
}

#[test]
fn hostile_templates_end_in_an_error() {
    let loops = "{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}";
    let cases = [
        ("a self-calling macro", "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}".to_owned()),
        ("two macros calling each other", "{% macro f() %}{{ g() }}{% endmacro %}{% macro g() %}{{ f() }}{% endmacro %}{{ f() }}".to_owned()),
        ("a macro that doubles its argument", "{% macro f(s) %}{{ f(s ~ s) }}{% endmacro %}{{ f('ab') }}".to_owned()),
        ("a recursive loop", "{% for a in [1] recursive %}{{ loop([1]) }}{% endfor %}".to_owned()),
        ("range(10^9)", "{% for a in range(1000000000) %}x{% endfor %}".to_owned()),
        ("range as a list", "{{ range(1000000000) | list | length }}".to_owned()),
        ("10^5 parentheses", format!("{{{{ {}1{} }}}}", "(".repeat(100_000), ")".repeat(100_000))),
        ("1,400 parentheses", format!("{{{{ {}1{} }}}}", "(".repeat(1400), ")".repeat(1400))),
        ("10^5 brackets", format!("{{{{ {} }}}}", "[".repeat(100_000))),
        ("10^5 negations", format!("{{{{ {}1 }}}}", "not ".repeat(25_000))),
        ("10^5 open blocks", "{% if 1 %}".repeat(20_000)),
        ("10^5 sums", format!("{{{{ 1{} }}}}", "+1".repeat(100_000))),
        ("10^5 elif", format!("{{% if 0 %}}{}{{% endif %}}", "{% elif 0 %}".repeat(10_000))),
        ("a source of 1 MB", " ".repeat(1 << 20)),
        ("attribute escape", "{{ ''.__class__.__mro__[1].__subclasses__() }}".to_owned()),
        ("include", "{% include '/etc/passwd' %}".to_owned()),
        ("include, missing ignored", "{%- include 'x' ignore missing -%}".to_owned()),
        ("import", "{% import 'os' as os %}{{ os }}".to_owned()),
        ("from import", "{% from 'os' import system %}".to_owned()),
        ("extends", "{% extends 'x' %}".to_owned()),
        ("output over the cap", format!("{{% for a in range(5000) %}}{}{{% endfor %}}", "x".repeat(20_000))),
        ("output in a capture", format!("{{% set y %}}{{% for a in range(5000) %}}{{{{ '{}' }}}}{{% endfor %}}{{% endset %}}", "x".repeat(20_000))),
        ("time over the cap", format!("{loops}{loops}{loops}")),
        ("a doubling string", "{% set n = namespace(s='ab') %}{% for a in range(60) %}{% set n.s = n.s ~ n.s %}{% endfor %}{{ n.s }}".to_owned()),
        ("a doubling list", "{% set n = namespace(s=[1]) %}{% for a in range(60) %}{% set n.s = n.s + n.s %}{% endfor %}{{ n.s }}".to_owned()),
        ("a doubling capture", "{% set n = namespace(s='ab') %}{% for a in range(60) %}{% set y %}{{ n.s }}{{ n.s }}{% endset %}{% set n.s = y %}{% endfor %}".to_owned()),
        ("a doubling replacement", "{% set n = namespace(s='a') %}{% for a in range(60) %}{% set n.s = n.s.replace('a', 'aa') %}{% endfor %}".to_owned()),
        ("a multiplied string", "{{ 'x' * 1000000000 }}".to_owned()),
        ("a wide format", "{{ '{:>1000000000}'.format('x') }}".to_owned()),
        ("a width as argument", "{{ '{:>{}}'.format('x', 1000000000) }}".to_owned()),
        ("a huge replacement", "{{ ('a' * 100000).replace('a', 'b' * 100000) }}".to_owned()),
        ("a huge replacement by filter", "{{ ('a' * 100000) | replace('a', 'b' * 100000) }}".to_owned()),
        ("a huge join", "{{ range(99999) | join('b' * 100000) }}".to_owned()),
        ("a huge join by method", "{{ ('b' * 100000).join(range(99999) | map('string')) }}".to_owned()),
        ("a wide percent format", "{{ '%1000000000d' % 1 }}".to_owned()),
        ("a wide format filter", "{{ '%1000000000d' | format(1) }}".to_owned()),
        ("a wide indent", "{{ 'x\ny' | indent(1000000000) }}".to_owned()),
        ("a wide tojson", "{{ [1] | tojson(indent=1000000000) }}".to_owned()),
        ("a wide centre", "{{ 'x' | center(1000000000) }}".to_owned()),
        ("many batches", "{{ [1] | batch(1000000000, 0) | list | length }}".to_owned()),
        ("many slices", "{{ [1] | slice(1000000000) | list | length }}".to_owned()),
    ];
    for (what, source) in cases {
        let begun = std::time::Instant::now();
        let result = run(&source);
        assert!(result.is_err(), "{what}: {:?}", result.map(|text| text.len()));
        eprintln!("{what}: {:?} {}", begun.elapsed(), result.unwrap_err());
    }
}

#[test]
fn allowed_depths_fit_the_stack_of_a_thread() {
    let sum = format!("{{{{ 1{} }}}}", "+1".repeat(1500));
    let attributes = format!("{{{{ a{} }}}}", "[0]".repeat(1000));
    let filters = format!("{{{{ 'a'{} }}}}", "|trim".repeat(600));
    let elifs = format!("{{% if 0 %}}{}{{% endif %}}", "{% elif 0 %}".repeat(200));
    let tests = format!("{{{{ 1{} }}}}", " is defined".repeat(270));
    let choices = format!("{{{{ {}1 }}}}", "1 if 0 else ".repeat(250));
    for source in [sum, attributes, filters, elifs, tests, choices] {
        // Only that it returns counts; a stack overflow would end the whole process.
        let _ = run(&source);
    }
}
