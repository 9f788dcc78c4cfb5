//! halfbyte: run and train language models in NVFP4 on the machine you own.
//!
//! raw flags (clap) -> one file per command -> exit code. Only this crate prints.
#![forbid(unsafe_code)]

mod chat_log;
mod checked;
mod coding;
mod commands;
mod config;
mod corpus;
mod date;
mod device;
mod embedded;
mod failure;
mod language;
mod output;
mod place;
mod random;
mod rows;
mod signals;
mod summary;
mod talk;

use std::io::Write as _;
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

use failure::Result;

/// Run and train language models in NVFP4 on the machine you own
#[derive(Parser, Debug)]
#[command(
    name = "halfbyte",
    version,
    term_width = 100,
    arg_required_else_help = true,
    after_help = "Start here: halfbyte demo"
)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    Inspect(commands::inspect::InspectArgs),
    Convert(commands::convert::ConvertArgs),
    Diff(commands::diff::DiffArgs),
    Init(commands::init::InitArgs),
    Plan(commands::plan::PlanArgs),
    Run(commands::run::RunArgs),
    Chat(commands::chat::ChatArgs),
    Perplexity(commands::perplexity::PerplexityArgs),
    Compare(commands::compare::CompareArgs),
    Check(commands::check::CheckArgs),
    Data(commands::data::DataArgs),
    Train(Box<commands::train::TrainArgs>),
    Export(commands::export::ExportArgs),
    Bench(commands::bench::BenchArgs),
    Demo(commands::demo::DemoArgs),
    Doctor(commands::doctor::DoctorArgs),
    /// Print completions for a shell
    #[command(after_help = "Examples:
  halfbyte completions bash > ~/.local/share/bash-completion/completions/halfbyte
  halfbyte completions fish > ~/.config/fish/completions/halfbyte.fish")]
    Completions {
        /// bash, zsh, fish, elvish or powershell
        shell: clap_complete::Shell,
    },
}

fn main() -> ExitCode {
    leave_with_the_reader();
    let words = config::expand(std::env::args_os().collect(), &Arguments::command());
    match words.and_then(|words| dispatch(&Arguments::parse_from(words).command)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("{failure}");
            ExitCode::from(failure.code as u8)
        }
    }
}

/// Printing into a pipe whose reader has gone, as `| head` has, ends the program without a word; onto a
/// full disk, with one.
fn leave_with_the_reader() {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        let text = panic.payload_as_str().unwrap_or_default();
        if text.starts_with("failed printing to") {
            let gone = text.contains("Broken pipe");
            if !gone {
                let _ = writeln!(std::io::stderr(), "error: {text}");
            }
            std::process::exit(if gone { 0 } else { failure::Code::Failed as i32 });
        }
        usual(panic);
    }));
}

fn dispatch(command: &Command) -> Result<()> {
    match command {
        Command::Inspect(args) => commands::inspect::run(args),
        Command::Convert(args) => commands::convert::run(args),
        Command::Diff(args) => commands::diff::run(args),
        Command::Init(args) => commands::init::run(args),
        Command::Plan(args) => commands::plan::run(args),
        Command::Run(args) => commands::run::run(args),
        Command::Chat(args) => commands::chat::run(args),
        Command::Perplexity(args) => commands::perplexity::run(args),
        Command::Compare(args) => commands::compare::run(args),
        Command::Check(args) => commands::check::run(args),
        Command::Data(args) => commands::data::run(args),
        Command::Train(args) => commands::train::run(args),
        Command::Export(args) => commands::export::run(args),
        Command::Bench(args) => commands::bench::run(args),
        Command::Demo(args) => commands::demo::run(args),
        Command::Doctor(args) => commands::doctor::run(args),
        Command::Completions { shell } => {
            clap_complete::generate(*shell, &mut Arguments::command(), "halfbyte", &mut std::io::stdout());
            Ok(())
        }
    }
}
