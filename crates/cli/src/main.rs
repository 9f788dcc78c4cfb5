//! halfbyte: run and train language models in NVFP4 on the machine you own.
//!
//! raw flags (clap) -> one file per command -> exit code. Only this crate prints.
#![forbid(unsafe_code)]

mod commands;
mod device;
mod failure;
mod language;
mod output;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use failure::Result;

/// Run language models in NVFP4 on the machine you own
#[derive(Parser, Debug)]
#[command(name = "halfbyte", version, max_term_width = 100)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    Plan(commands::plan::PlanArgs),
    Perplexity(commands::perplexity::PerplexityArgs),
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match dispatch(&arguments.command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("{failure}");
            ExitCode::from(failure.code as u8)
        }
    }
}

fn dispatch(command: &Command) -> Result<()> {
    match command {
        Command::Plan(args) => commands::plan::run(args),
        Command::Perplexity(args) => commands::perplexity::run(args),
    }
}
