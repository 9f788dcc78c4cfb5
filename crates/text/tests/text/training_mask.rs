//! What is trained equals transformers' mask for four families, and prompts are what chat feeds.

use halfbyte_text::dataset::Renderer;
use halfbyte_text::{ChatTemplate, Message, Tokenizer};
use serde_json::{Map, Value};

use crate::assets;
use crate::chat_template::model_template;
use crate::tokenizer::small;

fn model_tokenizer(model: &str) -> Option<Tokenizer> {
    if model == "smollm2" {
        let file = "SmolLM2-135M-Instruct.Q4_1.gguf";
        return Some(Tokenizer::from_gguf(&assets::vocabulary(file)?, file).unwrap());
    }
    let bytes = assets::bytes(&format!("tok/{model}/package/models/tokenizer.json"))?;
    Some(Tokenizer::from_json(&bytes, model).unwrap())
}

fn renderer<'a>(tokenizer: &'a Tokenizer, template: &'a ChatTemplate, extra: &Value) -> Renderer<'a> {
    let ends = ["<|im_end|>", "<|eot_id|>"];
    Renderer {
        tokenizer,
        template: Some(template),
        extra: extra.as_object().cloned().unwrap_or_default(),
        end_ids: ends.iter().filter_map(|token| tokenizer.id(token)).collect(),
        start: None,
        document_end: None,
    }
}

fn messages(conversation: &Value) -> Vec<Message> {
    serde_json::from_value(conversation["messages"].clone()).unwrap()
}

#[test]
fn trained_tokens_are_those_of_transformers() {
    let golden = assets::golden("training_mask.json");
    for model in ["qwen3", "qwen2_5", "llama3_2", "smollm2"] {
        let (Some(tokenizer), Some(template)) = (model_tokenizer(model), model_template(model)) else {
            continue;
        };
        let replies = golden["models"][model]["replies"].as_array().unwrap();
        for (conversation, expected) in golden["conversations"].as_array().unwrap().iter().zip(replies) {
            let renderer = renderer(&tokenizer, &template, &conversation["extra"]);
            let chat = renderer.chat(&messages(conversation), 10_000).unwrap();
            assert_eq!((chat.too_long, chat.unended), (0, 0), "{model}");
            let spans = chat.samples.iter().flat_map(|sample| {
                sample.trained.iter().map(|span| (&sample.tokens[..span.end], span.start))
            });
            let expected: Vec<(Vec<u32>, usize)> = expected
                .as_array()
                .unwrap()
                .iter()
                .map(|reply| (assets::ids(&reply["ids"]), reply["start"].as_u64().unwrap() as usize))
                .collect();
            let spans: Vec<(Vec<u32>, usize)> = spans.map(|(ids, start)| (ids.to_vec(), start)).collect();
            assert_eq!(spans, expected, "{model}: {conversation}");
        }
    }
}

#[test]
fn thoughts_are_refused_where_chat_would_not_let_the_model_think() {
    let (Some(tokenizer), Some(template)) = (model_tokenizer("qwen3"), model_template("qwen3")) else {
        return;
    };
    let thoughts = messages(&assets::golden("training_mask.json")["conversations"][3]);
    let off = serde_json::json!({"enable_thinking": false});
    let error = renderer(&tokenizer, &template, &off).chat(&thoughts, 10_000).unwrap_err().to_string();
    assert!(error.contains("thinking turned off"), "{error}");
}

#[test]
fn replies_share_a_sample_unless_the_template_rewrites_old_ones() {
    let golden = assets::golden("training_mask.json");
    let turns = messages(&golden["conversations"][4]);
    for (model, samples) in [("qwen3", 3), ("qwen2_5", 1), ("llama3_2", 1), ("smollm2", 1)] {
        let (Some(tokenizer), Some(template)) = (model_tokenizer(model), model_template(model)) else {
            continue;
        };
        let chat = renderer(&tokenizer, &template, &Value::Null).chat(&turns, 10_000).unwrap();
        assert_eq!(chat.samples.len(), samples, "{model}");
        assert_eq!(chat.samples.iter().map(|sample| sample.trained.len()).sum::<usize>(), 3, "{model}");
    }
}

#[test]
fn the_tokens_before_a_reply_are_what_chat_feeds() {
    let golden = assets::golden("training_mask.json");
    // A reply that begins with a line break would grow together with the prompt's last token.
    let straddling = [Message::new("user", "go"), Message::new("assistant", "\n\n \tyes")];
    let mut rows: Vec<Vec<Message>> =
        golden["conversations"].as_array().unwrap().iter().map(messages).collect();
    rows.push(straddling.to_vec());
    for model in ["qwen3", "qwen2_5", "llama3_2", "smollm2"] {
        let (Some(tokenizer), Some(template)) = (model_tokenizer(model), model_template(model)) else {
            continue;
        };
        let renderer = renderer(&tokenizer, &template, &Value::Null);
        for row in &rows {
            let chat = renderer.chat(row, 10_000).unwrap();
            let mut spans = chat.samples.iter().flat_map(|s| s.trained.iter().map(move |span| (s, span)));
            for (index, _) in row.iter().enumerate().filter(|(_, message)| message.role == "assistant") {
                let rendered = template.render(&row[..index], true, &Map::new()).unwrap();
                let fed = tokenizer.encode(&rendered).unwrap();
                let (sample, span) = spans.next().unwrap();
                assert_eq!(sample.tokens[..span.start], fed, "{model}");
                assert_eq!(fed, renderer.prompt(&row[..index]).unwrap());
                let last = tokenizer.token(sample.tokens[span.end - 1]).unwrap();
                assert!(["<|im_end|>", "<|eot_id|>"].contains(&last.as_str()), "{model}: {last}");
            }
            assert!(spans.next().is_none());
        }
    }
}

/// Ours, in the manner of Qwen3: old replies lose their thoughts, the newest gets an empty one.
const THINKING: &str = "{% for m in messages %}<|im_start|>{{ m.role }}\n\
    {% if m.role == 'assistant' and loop.last %}<think>\n\n</think>\n\n{% endif %}{{ m.content }}<|im_end|>\n\
    {% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% if quick %}<think>\n\n</think>\n\n{% endif %}{% endif %}";

fn turns() -> Vec<Message> {
    [("user", "a"), ("assistant", "b"), ("user", "c"), ("assistant", "d")]
        .map(|(role, content)| Message::new(role, content))
        .to_vec()
}

#[test]
fn a_rewritten_reply_is_learned_as_chat_meets_it() {
    let (tokenizer, template) = (small(), ChatTemplate::new(THINKING, "", "").unwrap());
    let shown = |extra: Value| -> Vec<String> {
        let chat = renderer(&tokenizer, &template, &extra).chat(&turns(), 1000).unwrap();
        let show = |s: &halfbyte_text::dataset::Rendered| {
            assert_eq!(s.trained.len(), 1);
            let (start, end) = (s.trained[0].start, s.trained[0].end);
            let text = |ids: &[u32]| tokenizer.decode(ids, false).unwrap();
            format!("{}[{}]{}", text(&s.tokens[..start]), text(&s.tokens[start..end]), text(&s.tokens[end..]))
        };
        chat.samples.iter().map(show).collect()
    };
    let user = |text: &str| format!("<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n");
    let empty = "<think>\n\n</think>\n\n";
    let old = format!("{}b<|im_end|>\n", user("a"));
    assert_eq!(
        shown(Value::Null),
        [format!("{}[{empty}b<|im_end|>]\n", user("a")), format!("{old}{}[{empty}d<|im_end|>]\n", user("c"))]
    );
    assert_eq!(
        shown(serde_json::json!({"quick": true})),
        [format!("{}{empty}[b<|im_end|>]\n", user("a")), format!("{old}{}{empty}[d<|im_end|>]\n", user("c"))]
    );
}

#[test]
fn a_reply_past_the_limit_is_left_out_with_its_end() {
    let source = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>{% endfor %}\
        {% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
    let (tokenizer, template) = (small(), ChatTemplate::new(source, "", "").unwrap());
    let renderer = renderer(&tokenizer, &template, &Value::Null);
    let whole = renderer.chat(&turns(), 1000).unwrap();
    let spans = whole.samples[0].trained.clone();
    assert_eq!((whole.samples.len(), spans.len(), whole.too_long), (1, 2, 0));
    // The last token is only predicted: it needs no position.
    for most in 1..whole.samples[0].tokens.len() + 1 {
        let chat = renderer.chat(&turns(), most).unwrap();
        let expected = spans.iter().filter(|span| span.end <= most + 1).count();
        let got: usize = chat.samples.iter().map(|sample| sample.trained.len()).sum();
        assert_eq!((got, chat.too_long), (expected, 2 - expected), "{most}");
        if let Some(sample) = chat.samples.last() {
            assert_eq!(sample.trained, spans[..expected]);
            assert!(sample.tokens.len() <= most + 1, "{most}");
        }
    }
}

#[test]
fn a_template_that_contradicts_its_own_prompt_is_refused() {
    let tokenizer = small();
    let source = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{% if add_generation_prompt %}<assistant><think>{% endif %}";
    let template = ChatTemplate::new(source, "", "").unwrap();
    let renderer = renderer(&tokenizer, &template, &Value::Null);
    let error = renderer.chat(&turns(), 1000).unwrap_err().to_string();
    assert!(error.contains("differently from its own prompt"), "{error}");
    let backwards = [Message::new("assistant", "hi")];
    assert!(renderer.chat(&backwards, 1000).unwrap_err().to_string().contains("begins with a reply"));
}
