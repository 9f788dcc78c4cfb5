//! What ends a reply, and what of it is shown.

use halfbyte_generate::{Conversation, Finish, Style};

use crate::toy;

#[test]
fn pieces_are_whole_characters_and_add_up_to_the_reply() {
    let mut conversation = toy::conversation(1024, 200);
    conversation.sampler = toy::sampler(1.5);
    let (pieces, reply) = toy::pieces(&mut conversation, "é你");
    assert!(pieces.len() > 1 && pieces.iter().all(|piece| !piece.is_empty()));
    assert_eq!(pieces.concat(), reply.text);
}

#[test]
fn a_stop_string_is_not_shown_and_the_next_turn_goes_on_without_it() {
    let mut conversation = toy::conversation(1024, 30);
    let whole = toy::say(&mut conversation, "hello").text;
    let stop: String = whole.chars().skip(8).take(3).collect();
    conversation.undo().unwrap();
    conversation.limits.stop_strings = vec![stop.clone()];
    let reply = toy::say(&mut conversation, "hello");
    assert_eq!(reply.finish, Finish::StopString);
    assert!(whole.starts_with(&reply.text) && !reply.text.contains(&stop));
    conversation.limits.stop_strings.clear();
    let next = toy::say(&mut conversation, "go on");
    let expected = conversation
        .tokenizer
        .encode(&format!(
            "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n{}<|im_end|>\n\
             <|im_start|>user\ngo on<|im_end|>\n<|im_start|>assistant\n",
            reply.text
        ))
        .unwrap();
    assert_eq!(conversation.decoder.tokens()[..next.timing.prompt_tokens], expected);
}

#[test]
fn a_stop_id_ends_the_reply() {
    let mut conversation = toy::conversation(1024, 30);
    let whole = toy::say(&mut conversation, "hello");
    conversation.undo().unwrap();
    conversation.limits.stop_ids = vec![whole.ids[4]];
    let reply = toy::say(&mut conversation, "hello");
    assert_eq!(reply.finish, Finish::Stop);
    assert!(reply.ids.len() <= 5 && reply.ids.last() == Some(&whole.ids[4]));
}

#[test]
fn an_ignored_end_is_never_chosen() {
    let mut conversation = toy::conversation(1024, 300);
    conversation.sampler = toy::sampler(3.0);
    assert!(toy::say(&mut conversation, "a").ids.contains(&toy::END), "the toy ends its turn by itself");
    conversation.limits.ignore_end = true;
    conversation.sampler = toy::sampler(3.0);
    let reply = toy::say(&mut conversation, "a");
    assert_eq!((reply.finish, reply.ids.len()), (Finish::MaxTokens, 300));
    assert!(!reply.ids.contains(&toy::END));
}

#[test]
fn no_tokens_means_no_reply() {
    let mut conversation = toy::conversation(128, 0);
    let reply = toy::say(&mut conversation, "hello");
    assert_eq!((reply.finish, reply.text.as_str()), (Finish::MaxTokens, ""));
}

#[test]
fn raw_text_goes_on_without_a_template() {
    let decoder = toy::decoder(256, halfbyte_ops::CacheFormat::Bf16, 1);
    let style = Style::Raw(Some(toy::START));
    let mut conversation =
        Conversation::new(decoder, toy::tokenizer(), style, toy::sampler(0.0), toy::limits(3));
    let reply = toy::say(&mut conversation, "abc");
    assert_eq!(conversation.decoder.tokens()[..4], [toy::START, 97, 98, 99]);
    assert_eq!(reply.timing.prompt_tokens, 4);
}
