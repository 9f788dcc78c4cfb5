//! Turns cost their own tokens only; what happens to a conversation, the cache follows.

use std::sync::atomic::{AtomicBool, Ordering};

use halfbyte_generate::{Error, Event, Finish, OnFull};

use crate::toy;

#[test]
fn the_sequence_grows_by_exactly_the_new_tokens() {
    let mut conversation = toy::conversation(1024, 12);
    let mut length = 0;
    for text in ["first", "and second", "the third"] {
        let reply = toy::say(&mut conversation, text);
        let timing = reply.timing;
        // <|im_end|>, line end, <|im_start|>user, line end, text, and so on: bytes and special tokens.
        let opening = ["<|im_start|>user\n", text, "<|im_end|>\n<|im_start|>assistant\n"].concat();
        let closing = if length == 0 { "" } else { "<|im_end|>\n" };
        let new = conversation.tokenizer.encode(&(closing.to_owned() + &opening)).unwrap().len();
        assert_eq!(timing.prompt_tokens, length + new, "{text}");
        // The last token of a reply that was cut at its limit is not in the cache yet.
        let unfed = usize::from(length > 0);
        assert_eq!(timing.computed_tokens, new + unfed, "{text}: later turns cost their own tokens only");
        assert_eq!(reply.finish, Finish::MaxTokens);
        length = timing.prompt_tokens + reply.ids.len();
        assert_eq!(conversation.decoder.tokens().len(), length - 1);
    }
}

#[test]
fn a_conversation_gives_the_bits_of_its_tokens_computed_at_once() {
    let mut conversation = toy::conversation(1024, 20);
    for text in ["one", "two", "three 你好"] {
        toy::say(&mut conversation, text);
    }
    let tokens = conversation.decoder.tokens().to_vec();
    let probe = [65];
    let talked = toy::bits(&conversation.decoder.last_logits(&probe).unwrap());
    conversation.decoder.keep(0);
    let fresh = [&tokens[..], &probe].concat();
    assert_eq!(toy::bits(&conversation.decoder.last_logits(&fresh).unwrap()), talked);
}

#[test]
fn retry_repeats_a_greedy_reply_and_computes_one_token() {
    let mut conversation = toy::conversation(1024, 15);
    toy::say(&mut conversation, "one");
    let first = toy::say(&mut conversation, "two");
    let text = conversation.undo().unwrap();
    assert_eq!((text.as_str(), conversation.messages().len()), ("two", 2));
    let again = toy::say(&mut conversation, &text);
    assert_eq!(again.ids, first.ids);
    assert_eq!(again.timing.computed_tokens, 1);
}

#[test]
fn undo_without_a_turn_is_refused() {
    let mut conversation = toy::conversation(128, 4);
    conversation.set_system("be brief");
    assert!(matches!(conversation.undo(), Err(Error::NoTurn)));
}

#[test]
fn an_interrupt_keeps_the_partial_reply() {
    let mut conversation = toy::conversation(1024, 50);
    let flag = AtomicBool::new(false);
    let mut pieces = 0;
    let reply = conversation
        .say("tell", &flag, &mut |event| {
            if let Event::Text(_) = event {
                pieces += 1;
                flag.store(pieces == 5, Ordering::Relaxed);
            }
        })
        .unwrap();
    assert_eq!(reply.finish, Finish::Interrupted);
    assert!(reply.ids.len() < 50 && !reply.text.is_empty());
    assert_eq!(conversation.messages().last().unwrap().content, reply.text);
    let next = toy::say(&mut conversation, "go on");
    assert!(next.timing.computed_tokens < next.timing.prompt_tokens / 2, "the partial reply is in the cache");
}

#[test]
fn an_interrupt_before_the_reply_leaves_the_conversation_as_it_was() {
    let mut conversation = toy::conversation(1024, 5);
    toy::say(&mut conversation, "one");
    let reply = conversation.say("two", &AtomicBool::new(true), &mut |_| ()).unwrap();
    assert_eq!((reply.finish, reply.ids.len()), (Finish::Interrupted, 0));
    assert_eq!(conversation.messages().len(), 2);
}

#[test]
fn too_long_a_message_is_refused_with_the_numbers() {
    let mut conversation = toy::conversation(128, 5);
    toy::say(&mut conversation, "one");
    let held = conversation.messages().to_vec();
    let error = conversation.say(&"x".repeat(200), &AtomicBool::new(false), &mut |_| ()).unwrap_err();
    let text = error.to_string();
    assert!(text.contains("128") && text.contains("--on-full shift"), "{text}");
    assert_eq!(conversation.messages(), held);
    toy::say(&mut conversation, "two");
}

#[test]
fn a_full_context_ends_the_reply() {
    let mut conversation = toy::conversation(64, 1000);
    conversation.limits.ignore_end = true;
    let reply = toy::say(&mut conversation, "hello");
    assert_eq!(reply.finish, Finish::ContextFull);
    assert_eq!(conversation.decoder.tokens().len(), 64);
}

#[test]
fn shifting_drops_the_oldest_turns_and_keeps_the_system_message() {
    let mut conversation = toy::conversation(256, 30);
    conversation.on_full = OnFull::Shift;
    conversation.set_system("be brief");
    for turn in 0..12 {
        let reply = toy::say(&mut conversation, &format!("turn {turn}"));
        assert!(reply.timing.prompt_tokens + 30 <= 256, "turn {turn} leaves room");
    }
    let messages = conversation.messages();
    assert_eq!((messages[0].role.as_str(), messages[1].role.as_str()), ("system", "user"));
    assert!(conversation.dropped() > 0 && messages.len() + conversation.dropped() == 25);
    let tokens = conversation.decoder.tokens().to_vec();
    let shifted = toy::bits(&conversation.decoder.last_logits(&[65]).unwrap());
    let mut fresh = toy::decoder(256, halfbyte_ops::CacheFormat::Bf16, 1);
    let expected = fresh.last_logits(&[&tokens[..], &[65]].concat()).unwrap();
    assert_eq!(shifted, toy::bits(&expected));
}

#[test]
fn shifting_cannot_help_one_message_that_is_too_long() {
    let mut conversation = toy::conversation(128, 5);
    conversation.on_full = OnFull::Shift;
    toy::say(&mut conversation, "one");
    let result = conversation.say(&"x".repeat(200), &AtomicBool::new(false), &mut |_| ());
    assert!(matches!(result, Err(Error::Model(halfbyte_model::Error::TooLong { .. }))));
    assert_eq!((conversation.messages().len(), conversation.dropped()), (2, 0));
}

#[test]
fn a_value_that_is_no_number_names_its_stage() {
    let mut conversation = toy::conversation(128, 5);
    conversation.decoder = toy::broken_decoder();
    let error = conversation.say("hello", &AtomicBool::new(false), &mut |_| ()).unwrap_err().to_string();
    assert!(error.contains("layer 1, stage post_norm, position 0"), "{error}");
}
