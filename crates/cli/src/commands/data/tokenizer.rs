//! `halfbyte data tokenizer`: a vocabulary of its own for a model that begins from nothing.

use std::path::PathBuf;

use clap::Args;
use halfbyte_text::dataset::{Content, Item, Reader, Source};
use halfbyte_text::{Tokenizer, train_tokenizer};
use serde_json::json;

use super::generate::{free, write};
use crate::failure::{Failure, Result};
use crate::output::{self, Progress, grouped};

/// More than any tokenizer in use.
const MOST_TOKENS: usize = 1 << 20;
/// In this order, after the learnt ones: text ends, a message begins, a message ends.
const SPECIAL: [&str; 3] = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"];
const TEMPLATE: &str = "{% for message in messages %}<|im_start|>{{ message.role }}\n\
    {{ message.content }}<|im_end|>\n{% endfor %}\
    {% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

/// Learn a byte-level BPE tokenizer from data
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  halfbyte data tokenizer --data dialogues.jsonl --size 4096 --out model
  halfbyte data tokenizer --data book.txt chats.jsonl --size 16384 --out model

The folder, which must be there, gets tokenizer.json and tokenizer_config.json with a ChatML template:
with `halfbyte init` beside it, a model that `halfbyte train` can teach from nothing.")]
pub(crate) struct TokenizerArgs {
    /// Data: .tsv, .jsonl or .txt, as train reads it
    #[arg(long, value_name = "FILE", required = true, num_args = 1..)]
    data: Vec<Source>,
    /// Most tokens, three special ones included
    #[arg(long, default_value_t = 4096, value_name = "N")]
    size: usize,
    /// The model's folder
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &TokenizerArgs) -> Result<()> {
    let least = 256 + SPECIAL.len();
    if args.size < least {
        return Err(Failure::misuse(format!(
            "--size {}: every byte has a token; at least {least}",
            args.size
        )));
    }
    if args.size > MOST_TOKENS {
        return Err(Failure::misuse(format!("--size takes at most {MOST_TOKENS} tokens")));
    }
    let [file, config_file] = ["tokenizer.json", "tokenizer_config.json"].map(|name| args.out.join(name));
    free(&file)?;
    free(&config_file)?;
    let waiting = Progress::waiting(format!("learning {} tokens", grouped(args.size as u64)));
    let texts = texts(&args.data)?;
    let learnt = train_tokenizer(&texts, args.size, &SPECIAL)?;
    let tokenizer = Tokenizer::from_json(learnt.as_bytes(), "tokenizer.json")?;
    let [text_end, _, message_end] = SPECIAL;
    let config = json!({
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_bos_token": false,
        "bos_token": null,
        "eos_token": message_end,
        "pad_token": text_end,
        "chat_template": TEMPLATE,
        "clean_up_tokenization_spaces": false,
    });
    write(&file, &learnt)?;
    write(&config_file, &format!("{config:#}\n"))?;
    let bytes: usize = texts.iter().map(String::len).sum();
    let mut tokens = 0;
    for text in &texts {
        tokens += tokenizer.encode(text)?.len();
    }
    drop(waiting);
    match args.json {
        true => output::json(&json!({
            "out": args.out.display().to_string(),
            "size": tokenizer.vocab_size(),
            "bytes": bytes,
            "tokens": tokens,
        })),
        false => println!(
            "{} tokens in {} · {:.2} bytes of the data a token",
            grouped(tokenizer.vocab_size() as u64),
            file.display(),
            bytes as f64 / tokens.max(1) as f64,
        ),
    }
    Ok(())
}

/// Everything that is said or written in the files.
fn texts(sources: &[Source]) -> Result<Vec<String>> {
    let mut texts = Vec::new();
    for source in sources {
        let mut reader = Reader::open(&source.path)?;
        while let Some(item) = reader.next_item()? {
            match item {
                Item::Header { .. } => {}
                Item::Row(row) => match row.content {
                    Content::Chat(messages) => {
                        texts
                            .extend(messages.into_iter().flat_map(|message| [message.role, message.content]));
                    }
                    Content::Text(text) | Content::Piece { text, .. } => texts.push(text),
                },
            }
        }
    }
    Ok(texts)
}
