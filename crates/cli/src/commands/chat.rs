//! `halfbyte chat`: a conversation at the terminal, from a pipe, or replayed from a file.

use std::io::{BufRead, IsTerminal, stdin};
use std::path::{Path, PathBuf};

use clap::Args;
use halfbyte_generate::{Finish, Timing};
use halfbyte_ops::Backend;
use rustyline::DefaultEditor;
use rustyline::error::ReadlineError;

use crate::chat_log::{self, ChatLog, Said};
use crate::failure::{Code, Failure, Result};
use crate::output::grouped;
use crate::talk::{self, Talk, TalkArgs};

const HELP: &str = "/new            start again (the system message stays)
/system TEXT    set the system message; alone: show it
/retry          take the last reply back and answer again
/undo           take the last turn back
/save FILE      keep the conversation and its cache in a file
/load FILE      go on with a saved conversation
/stats          what the last turn took, and memory
/quit           end (also Ctrl-D)
A line that ends in \\ goes on in the next. // says a line that begins with /.
Ctrl-C stops a reply; what was said of it stays.";

/// Talk with a model
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  halfbyte chat SmolLM2.gguf
  halfbyte chat Qwen3-4B --system 'Answer briefly.' --temperature 0.7 --top-p 0.9 --log chat.jsonl

Inside, /help lists the commands. Standard input may be a pipe: one message a line.")]
pub(crate) struct ChatArgs {
    #[command(flatten)]
    talk: TalkArgs,
    /// Append every turn to this file as JSON lines
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,
    /// Say the user messages of such a log, or the lines of a text, and print the transcript
    #[arg(long, value_name = "FILE")]
    replay: Option<PathBuf>,
    /// Print every turn as a line of JSON
    #[arg(long)]
    json: bool,
}

struct Chat {
    talk: Talk,
    log: Option<ChatLog>,
    json: bool,
    last: Option<Timing>,
}

/// Whether the conversation goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    GoOn,
    Quit,
}

pub(crate) fn run(args: &ChatArgs) -> Result<()> {
    let replay = args.replay.as_deref().map(chat_log::read).transpose()?;
    let log = args.log.as_deref().map(ChatLog::open).transpose()?;
    let mut chat = Chat { talk: Talk::open(&args.talk)?, log, json: args.json, last: None };
    let result = match replay {
        Some(said) => chat.replay(said, args.talk.system.is_some()),
        None if stdin().is_terminal() && !args.json => chat.at_terminal(&args.talk.model.model),
        None => chat.read_lines(),
    };
    // What was said is kept even if the last turn failed.
    chat.talk.keep().and(result)
}

impl Chat {
    /// Reads lines with history and editing; errors are shown and the conversation goes on.
    fn at_terminal(&mut self, model: &Path) -> Result<()> {
        let broken = |error: ReadlineError| Failure::new(Code::Failed, format!("the terminal: {error}"));
        let mut editor = DefaultEditor::new().map_err(broken)?;
        let history = history_file();
        if let Some(path) = &history {
            // The first conversation has no history yet.
            let _ = editor.load_history(path);
        }
        self.greet(model);
        let mut asked_to_leave = false;
        loop {
            match read_message(&mut editor) {
                Ok(line) => {
                    asked_to_leave = false;
                    if line.trim().is_empty() {
                        continue;
                    }
                    let _ = editor.add_history_entry(&line);
                    match self.take(&line) {
                        Ok(Next::GoOn) => {}
                        Ok(Next::Quit) => break,
                        Err(failure) => eprintln!("{failure}"),
                    }
                }
                Err(ReadlineError::Interrupted) if asked_to_leave => break,
                Err(ReadlineError::Interrupted) => {
                    asked_to_leave = true;
                    eprintln!("Ctrl-C again, or Ctrl-D, to quit");
                }
                Err(ReadlineError::Eof) => break,
                Err(error) => return Err(broken(error)),
            }
        }
        if let Some(path) = &history {
            // A history that cannot be kept is no reason to fail.
            let _ = editor.save_history(path);
        }
        Ok(())
    }

    fn greet(&self, model: &Path) {
        let conversation = &self.talk.conversation;
        let name = model.file_name().unwrap_or(model.as_os_str()).to_string_lossy();
        let said = match conversation.messages().len() {
            0 => String::new(),
            count => format!(" · {count} messages so far"),
        };
        println!(
            "{name} · {} · context {}{said} · /help for commands",
            conversation.decoder.backend.describe(),
            grouped(conversation.decoder.context() as u64),
        );
    }

    /// One message a line, replies plain; the first failure ends it.
    fn read_lines(&mut self) -> Result<()> {
        let mut message = String::new();
        for line in stdin().lock().lines() {
            let line = line.map_err(|error| {
                Failure::new(Code::BadInput, format!("standard input\ncannot be read as text: {error}"))
            })?;
            if let Some(part) = line.strip_suffix('\\') {
                message.push_str(part);
                message.push('\n');
                continue;
            }
            message.push_str(&line);
            let message = std::mem::take(&mut message);
            if !message.trim().is_empty() && self.take(&message)? == Next::Quit {
                return Ok(());
            }
        }
        match message.trim_end_matches('\n') {
            "" => Ok(()),
            rest => self.take(rest).map(|_| ()),
        }
    }

    fn replay(&mut self, said: Vec<Said>, own_system: bool) -> Result<()> {
        for said in said {
            match said {
                Said::New(system) => {
                    self.talk.conversation.reset();
                    if !own_system {
                        self.talk.conversation.set_system(system.as_deref().unwrap_or_default());
                    }
                }
                Said::User(text) => {
                    if !self.json {
                        println!("> {}", text.replace('\n', "\n> "));
                    }
                    if self.say(&text)? == Finish::Interrupted {
                        return Err(Failure::new(Code::Interrupted, "the replay was interrupted"));
                    }
                }
            }
        }
        Ok(())
    }

    /// A message or a command.
    fn take(&mut self, line: &str) -> Result<Next> {
        let Some(command) = line.strip_prefix('/') else {
            return self.say(line).map(|_| Next::GoOn);
        };
        if command.starts_with('/') {
            return self.say(command).map(|_| Next::GoOn);
        }
        let (name, rest) = command.split_once(char::is_whitespace).unwrap_or((command, ""));
        self.command(name, rest.trim())
    }

    fn command(&mut self, name: &str, rest: &str) -> Result<Next> {
        let conversation = &mut self.talk.conversation;
        match name {
            "help" => println!("{HELP}"),
            "quit" | "exit" => return Ok(Next::Quit),
            "new" => {
                conversation.reset();
                eprintln!("a new conversation");
            }
            "system" if rest.is_empty() => match conversation.messages().first() {
                Some(message) if message.role == "system" => println!("{}", message.content),
                _ => println!("no system message of yours; the model's template may add its own"),
            },
            "system" => conversation.set_system(rest),
            "undo" => {
                let text = conversation.undo()?;
                eprintln!("taken back: {}", shortened(&text));
            }
            "retry" => {
                if conversation.sampler.settings().temperature == 0.0 {
                    eprintln!("replies are greedy: expect the same again (--temperature 0.7 varies them)");
                }
                let text = conversation.undo()?;
                self.say(&text)?;
            }
            "stats" => self.statistics(),
            "save" | "load" if rest.is_empty() => {
                return Err(Failure::misuse(format!("/{name} needs a file name")));
            }
            "save" => {
                self.talk.save(Path::new(rest))?;
                eprintln!("saved in {rest}");
            }
            "load" => {
                self.talk.load(Path::new(rest))?;
                self.show_last();
            }
            _ => return Err(Failure::misuse(format!("/{name}: no such command; /help lists them"))),
        }
        Ok(Next::GoOn)
    }

    fn say(&mut self, text: &str) -> Result<Finish> {
        let json = self.json;
        let dropped = self.talk.conversation.dropped();
        let reply = self.talk.say(text, &mut |piece| {
            if !json {
                talk::show(piece);
            }
        })?;
        if json {
            println!("{}", talk::turn_json(text, &reply));
        } else if !reply.text.is_empty() || reply.finish != Finish::Interrupted {
            println!("{}", if reply.text.ends_with('\n') { "" } else { "\n" });
        }
        match reply.finish {
            Finish::Interrupted if reply.text.is_empty() => eprintln!("\nstopped before the reply began"),
            Finish::Interrupted => eprintln!("stopped; the reply so far stays"),
            Finish::ContextFull => {
                eprintln!("the context is full: /new starts again, --on-full shift forgets old turns")
            }
            _ => {}
        }
        let now_dropped = self.talk.conversation.dropped();
        if now_dropped > dropped {
            eprintln!("the context was full: {} old messages were let go", now_dropped - dropped);
        }
        self.last = Some(reply.timing);
        if let Some(log) = &mut self.log
            && !(reply.finish == Finish::Interrupted && reply.text.is_empty())
        {
            log.add(self.talk.conversation.messages(), &reply.text)?;
        }
        Ok(reply.finish)
    }

    fn statistics(&self) {
        match &self.last {
            Some(timing) => {
                println!("{}", talk::statistics(timing, self.talk.conversation.decoder.context()));
            }
            None => println!("no turn yet"),
        }
        println!("{}", self.talk.memory_line());
    }

    /// After a load: where the conversation stands.
    fn show_last(&self) {
        let messages = self.talk.conversation.messages();
        eprintln!("{} messages", messages.len());
        for message in messages.iter().rev().take(2).rev() {
            println!("{}: {}", message.role, shortened(&message.content));
        }
    }
}

/// A line, or several joined where each but the last ends in a backslash.
fn read_message(editor: &mut DefaultEditor) -> std::result::Result<String, ReadlineError> {
    let mut message = editor.readline("> ")?;
    while message.ends_with('\\') {
        message.pop();
        message.push('\n');
        message.push_str(&editor.readline(". ")?);
    }
    Ok(message)
}

fn shortened(text: &str) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(100) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line,
    }
}

/// A place of the user's own for the history; `None` where there is no home.
fn history_file() -> Option<PathBuf> {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let state = set("XDG_STATE_HOME").or_else(|| Some(set("HOME")?.join(".local/state")))?;
    let folder = state.join("halfbyte");
    std::fs::create_dir_all(&folder).ok()?;
    Some(folder.join("chat-history"))
}
