//! `--config FILE.toml`: the settings of a command as a file. Keys are the names of its flags; what
//! stands on the command line wins. A file becomes flags, so both are checked by the same lines.

use std::ffi::{OsStr, OsString};
use std::fmt::Display;
use std::path::{Path, PathBuf};

use clap::error::ErrorKind;
use clap::{Arg, Command};
use serde::{Serialize, Serializer};
use serde_json::Value;
use toml::Spanned;
use toml::de::DeValue;

use crate::commands::check::reader::{self, Source, Table};
use crate::failure::{Code, Failure, Result};

/// Commands that take one.
const COMMANDS: [&str; 1] = ["train"];

/// A command line with the flags of its settings file put before its own.
pub(crate) fn expand(words: Vec<OsString>, program: &Command) -> Result<Vec<OsString>> {
    let name = words.get(1).and_then(|word| word.to_str()).filter(|name| COMMANDS.contains(name));
    let (Some(command), Some(path)) = (name.and_then(|name| program.find_subcommand(name)), path(&words))
    else {
        return Ok(words);
    };
    let (before, own) = words.split_at(2);
    let given = |flag: &str| own.iter().any(|word| is(word, flag));
    let from_file = flags(&path, command, &given)?;
    Ok(before.iter().cloned().chain(from_file).chain(own.iter().cloned()).collect())
}

/// What `--config` names; a run that goes on has its settings in its folder.
fn path(words: &[OsString]) -> Option<PathBuf> {
    let resumes = words.iter().any(|word| is(word, "resume"));
    let own = || value(words, "out").map(|out| out.join("settings.toml")).filter(|path| path.exists());
    value(words, "config").or_else(|| resumes.then(own).flatten())
}

/// The value of a flag on the command line.
fn value(words: &[OsString], flag: &str) -> Option<PathBuf> {
    let at = words.iter().position(|word| is(word, flag))?;
    let joined = words[at].to_str().and_then(|word| word.split_once('=')).map(|(_, value)| value.into());
    joined.or_else(|| words.get(at + 1).map(PathBuf::from))
}

/// Whether a word is this flag, alone or with its value.
fn is(word: &OsStr, flag: &str) -> bool {
    let name = word.to_str().and_then(|word| word.strip_prefix("--"));
    name.is_some_and(|name| name.split('=').next() == Some(flag))
}

/// The flags that a file stands for, without those that are `given` elsewhere.
pub(crate) fn flags(path: &Path, command: &Command, given: &dyn Fn(&str) -> bool) -> Result<Vec<OsString>> {
    let text = reader::text(path)?;
    let file = path.display().to_string();
    let source = Source { file: &file, text: text.strip_prefix('\u{feff}').unwrap_or(&text) };
    let root = source.parse()?;
    let what = format!("the settings of `halfbyte {}`", command.get_name());
    let table = Table { source, table: root.get_ref(), what: &what };
    let settable = |arg: &&Arg| arg.get_long().is_some_and(|name| !["config", "help"].contains(&name));
    let known: Vec<&Arg> = command.get_arguments().filter(settable).collect();
    let names: Vec<&str> = known.iter().filter_map(|arg| arg.get_long()).collect();
    table.only(&names)?;
    let mut words = Vec::new();
    for arg in known {
        let name = arg.get_long().unwrap_or_default();
        let Some(value) = table.table.get(name).filter(|_| !given(name)) else { continue };
        let bad = |wanted: &str| {
            let text = value.get_ref();
            table.bad((name, value), &format!("this is {}", kind(text)), &format!("write {name} = {wanted}"))
        };
        if !arg.get_action().takes_values() {
            match value.get_ref().as_bool() {
                Some(true) => words.push(format!("--{name}").into()),
                Some(false) => {}
                None => return Err(bad("true or false")),
            }
            continue;
        }
        let values = match value.get_ref() {
            DeValue::Array(list) => &list[..],
            _ => std::slice::from_ref(value),
        };
        for value in values {
            let text = scalar(value).ok_or_else(|| bad("a text or a number, or a list of them"))?;
            let word = format!("--{name}={text}");
            if let Some(problem) = refused(command, &word) {
                return Err(table.bad(
                    (name, value),
                    &problem,
                    &format!("see `halfbyte help {}`", command.get_name()),
                ));
            }
            words.push(word.into());
        }
    }
    Ok(words)
}

/// What the command says to a value by itself, if it refuses it; where flags do not fit together, all are looked at later.
fn refused(command: &Command, word: &str) -> Option<String> {
    let alone = command.clone().no_binary_name(true).mut_args(|arg| arg.required(false));
    let error = alone.try_get_matches_from([word]).err()?;
    let text = matches!(error.kind(), ErrorKind::InvalidValue | ErrorKind::ValueValidation)
        .then(|| error.to_string())?;
    let said = text.strip_prefix("error: ").unwrap_or(&text).split("\n\n").next()?;
    Some(said.trim().to_owned())
}

/// A value as it would stand on the command line.
fn scalar(value: &Spanned<DeValue<'_>>) -> Option<String> {
    match value.get_ref() {
        DeValue::String(text) => Some(text.to_string()),
        DeValue::Integer(number) if number.radix() == 10 => Some(number.as_str().to_owned()),
        DeValue::Float(number) => Some(number.as_str().to_owned()),
        DeValue::Datetime(date) => Some(date.to_string()),
        _ => None,
    }
}

fn kind(value: &DeValue<'_>) -> &'static str {
    match value {
        DeValue::Boolean(_) => "true or false",
        DeValue::Table(_) => "a table",
        DeValue::Array(_) => "a list",
        _ => "a value of another kind",
    }
}

/// Settings as such a file. Texts, numbers and lists of JSON are TOML as they are.
pub(crate) fn to_toml(settings: &impl Serialize) -> Result<String> {
    let value = serde_json::to_value(settings).map_err(|error| {
        Failure::new(Code::Failed, format!("the settings cannot be written down: {error}"))
    })?;
    let fields = value.as_object().into_iter().flatten();
    let said = fields.filter(|(_, value)| !value.is_null() && **value != Value::Array(Vec::new()));
    // The one character that JSON leaves as it is and TOML does not.
    Ok(said.map(|(key, value)| format!("{key} = {value}\n").replace('\u{7f}', "\\u007f")).collect())
}

/// For fields of settings that are texts on the command line.
pub(crate) fn text<T: Display, S: Serializer>(value: &T, to: S) -> std::result::Result<S::Ok, S::Error> {
    to.collect_str(value)
}

/// The same for those that may be left out.
pub(crate) fn maybe<T: Display, S: Serializer>(
    value: &Option<T>,
    to: S,
) -> std::result::Result<S::Ok, S::Error> {
    value.as_ref().map(T::to_string).serialize(to)
}

/// The same for those that may be given more than once.
pub(crate) fn list<T: Display, S: Serializer>(values: &[T], to: S) -> std::result::Result<S::Ok, S::Error> {
    to.collect_seq(values.iter().map(T::to_string))
}
