//! `halfbyte data`: look at training data, or make some.

mod dialogues;
mod generate;
mod inspect;
mod show;
mod tokenizer;

use clap::{Args, Subcommand};

use crate::failure::Result;

/// Look at training data, or make some
#[derive(Args, Debug)]
#[command(
    arg_required_else_help = true,
    after_help = "Examples:
  halfbyte data inspect SmolLM2.gguf --data identity.tsv
  halfbyte data generate --identity 'I am the god of F#.' --out identity.tsv"
)]
pub(crate) struct DataArgs {
    #[command(subcommand)]
    command: DataCommand,
}

#[derive(Subcommand, Debug)]
enum DataCommand {
    Inspect(inspect::InspectDataArgs),
    Generate(generate::GenerateArgs),
    Dialogues(dialogues::DialoguesArgs),
    Tokenizer(tokenizer::TokenizerArgs),
}

pub(crate) fn run(args: &DataArgs) -> Result<()> {
    match &args.command {
        DataCommand::Inspect(args) => inspect::run(args),
        DataCommand::Generate(args) => generate::run(args),
        DataCommand::Dialogues(args) => dialogues::run(args),
        DataCommand::Tokenizer(args) => tokenizer::run(args),
    }
}
