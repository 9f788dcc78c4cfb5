//! `halfbyte data dialogues`: the rows that the embedded model was made from.

use std::path::PathBuf;

use clap::Args;
use halfbyte_text::Message;
use halfbyte_text::dataset::{Content, dialogues};
use serde_json::json;

use super::generate::{free, write};
use crate::failure::{Failure, Result};
use crate::output::{self, grouped};

/// Many times what there is to say.
const MOST_ROWS: usize = 1_000_000;

/// Write small dialogues in English and Traditional Chinese, as the embedded model learnt them
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  halfbyte data dialogues --out dialogues.jsonl
  halfbyte data dialogues --rows 500 --seed 7 --out others.jsonl

No row comes twice. The same seed writes the same file.")]
pub(crate) struct DialoguesArgs {
    /// The file to write, a .jsonl
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// Rows to write
    #[arg(long, default_value_t = 40_000, value_name = "N")]
    rows: usize,
    /// Chooses topics and wordings
    #[arg(long, default_value_t = 0, value_name = "N")]
    seed: u64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &DialoguesArgs) -> Result<()> {
    if args.rows > MOST_ROWS {
        return Err(Failure::misuse(format!("--rows takes at most {MOST_ROWS}")));
    }
    free(&args.out)?;
    let rows = dialogues::dialogues(args.rows, args.seed);
    let lines: String = rows.iter().map(line).collect();
    write(&args.out, &lines)?;
    match args.json {
        true => output::json(&json!({ "out": args.out.display().to_string(), "rows": rows.len() })),
        false => println!("{} rows in {}", grouped(rows.len() as u64), args.out.display()),
    }
    Ok(())
}

fn line(row: &Content) -> String {
    let message = |message: &Message| json!({ "role": message.role, "content": message.content });
    let row = match row {
        Content::Chat(messages) => json!({ "messages": messages.iter().map(message).collect::<Vec<_>>() }),
        Content::Text(text) | Content::Piece { text, .. } => json!({ "text": text }),
    };
    format!("{row}\n")
}
