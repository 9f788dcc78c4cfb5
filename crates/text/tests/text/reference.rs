//! Ids equal the reference ids of Qwen3, Qwen2.5 and SmolLM2, from the chat prompt on.

use halfbyte_text::{Message, Tokenizer};
use serde_json::Map;

use crate::{assets, chat_template};

fn text_of(file: &str) -> Option<String> {
    // The reference names the file inside its package; the folder holds it under a short name.
    let name = if file.contains("zh-tw") { "zh-tw.txt" } else { file };
    assets::bytes(name).map(|bytes| String::from_utf8(bytes).unwrap())
}

fn check_reference(reference: &str, model: &str) {
    let path = format!("tok/{model}/package/models/tokenizer.json");
    let Some(bytes) = assets::bytes(&path) else {
        return;
    };
    let tokenizer = Tokenizer::from_json(&bytes, &path).unwrap();
    let template = chat_template::model_template(model).unwrap();
    let golden = assets::golden(reference);
    for chat in golden["chats"].as_array().unwrap() {
        let mut extra = Map::new();
        if let Some(thinking) = chat.get("enable_thinking") {
            extra.insert("enable_thinking".to_owned(), thinking.clone());
        }
        let messages = [Message::new("user", chat["prompt"].as_str().unwrap())];
        let prompt = template.render(&messages, true, &extra).unwrap();
        assert_eq!(prompt, chat["rendered"].as_str().unwrap());
        assert_eq!(tokenizer.encode(&prompt).unwrap(), assets::ids(&chat["ids"]));
    }
    for case in golden["texts"].as_array().unwrap() {
        let Some(text) = text_of(case["file"].as_str().unwrap()) else {
            continue;
        };
        let count = case["characters"].as_u64().unwrap() as usize;
        let text: String = text.chars().take(count).collect();
        let ids = assets::ids(&case["ids"]);
        assert_eq!(tokenizer.encode(&text).unwrap(), ids, "{reference} {}", case["file"]);
        assert_eq!(tokenizer.decode(&ids, false).unwrap(), text);
    }
}

#[test]
fn qwen3_ids_equal_the_reference() {
    check_reference("qwen3-tokenizer.json", "qwen3");
}

#[test]
fn qwen25_ids_equal_the_reference() {
    check_reference("qwen25-tokenizer.json", "qwen2_5");
}

#[test]
fn smollm2_ids_equal_the_reference_from_its_gguf() {
    let name = "SmolLM2-135M-Instruct.Q4_1.gguf";
    let Some(vocabulary) = assets::vocabulary(name) else {
        return;
    };
    let tokenizer = Tokenizer::from_gguf(&vocabulary, name).unwrap();
    let golden = assets::golden("smollm2-text.json");
    if let Some(text) = text_of("handbook-ch1.txt") {
        let ids = assets::ids(&golden["ids"]);
        assert_eq!(tokenizer.encode(&text).unwrap()[..ids.len()], ids);
    }
    let template = chat_template::model_template("smollm2").unwrap();
    for chat in assets::golden("smollm2-chat.json")["chats"].as_array().unwrap() {
        let messages = [Message::new("user", chat["prompt"].as_str().unwrap())];
        let prompt = template.render(&messages, true, &Map::new()).unwrap();
        assert_eq!(prompt, chat["rendered"].as_str().unwrap());
        assert_eq!(tokenizer.encode(&prompt).unwrap(), assets::ids(&chat["prompt_ids"]));
        let reply = tokenizer.decode(&assets::ids(&chat["greedy_ids"]), true).unwrap();
        assert_eq!(reply, chat["greedy_text"].as_str().unwrap(), "{prompt}");
    }
}
