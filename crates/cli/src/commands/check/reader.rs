//! TOML with places: every value is asked for by name and type, and every refusal names the line.

use std::fs::File;
use std::io::Read;
use std::ops::Range;
use std::path::Path;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::failure::{Code, Failure, Result};

/// Most bytes of a file.
const LARGEST: u64 = 1 << 20;

/// A text file, if it is one and not too large.
pub(crate) fn text(path: &Path) -> Result<String> {
    at_most(path, LARGEST)
}

/// The text of a file, which may say any size, or none, before it is read.
pub(crate) fn at_most(path: &Path, largest: u64) -> Result<String> {
    let failed = |error| Failure::file(path, "read", error);
    let mut bytes = Vec::new();
    File::open(path).and_then(|file| file.take(largest + 1).read_to_end(&mut bytes)).map_err(failed)?;
    if bytes.len() as u64 > largest {
        let text = format!("{}\ntoo large: such a file has at most {largest} bytes", path.display());
        return Err(Failure::new(Code::BadInput, format!("{text}\nis this the right file?")));
    }
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        let line = 1 + error.as_bytes()[..at].iter().filter(|&&byte| byte == b'\n').count();
        let text = format!("{} line {line}: not UTF-8 at byte {at}", path.display());
        Failure::new(Code::BadInput, format!("{text}\nsave the file as UTF-8"))
    })
}

/// Where values come from, for refusals.
#[derive(Clone, Copy)]
pub(crate) struct Source<'a> {
    pub(crate) file: &'a str,
    pub(crate) text: &'a str,
}

impl<'a> Source<'a> {
    /// All of the file.
    pub(crate) fn parse(self) -> Result<Spanned<DeTable<'a>>> {
        let bad = |error: toml::de::Error| {
            let remedy = "this is not TOML: texts stand in quotes, lists in brackets, a spec's groups begin with [[group]]";
            self.bad(error.span().unwrap_or(0..0), error.message(), remedy)
        };
        DeTable::parse(self.text).map_err(bad)
    }

    /// A refusal: file, line, what is wrong, what to change.
    pub(crate) fn bad(self, at: Range<usize>, problem: &str, remedy: &str) -> Failure {
        let before = self.text.as_bytes().get(..at.start).unwrap_or_default();
        let line = 1 + before.iter().filter(|&&byte| byte == b'\n').count();
        Failure::new(Code::BadInput, format!("{} line {line}: {problem}\n{remedy}", self.file))
    }
}

/// A value and its name.
pub(crate) type Entry<'a, 'i> = (&'a str, &'a Spanned<DeValue<'i>>);

/// A table that is read key by key.
pub(crate) struct Table<'a, 'i> {
    pub(crate) source: Source<'a>,
    pub(crate) table: &'a DeTable<'i>,
    /// "a group" or so.
    pub(crate) what: &'a str,
}

impl<'a, 'i> Table<'a, 'i> {
    /// Refuses keys that nobody reads.
    pub(crate) fn only(&self, known: &[&str]) -> Result<()> {
        for key in self.table.keys() {
            let name: &str = key.get_ref();
            if !known.contains(&name) {
                let remedy = match nearest(name, known) {
                    Some(near) => format!("did you mean {near}?"),
                    None => format!("there are: {}", known.join(", ")),
                };
                let problem = format!("{name:?} is no key of {}", self.what);
                return Err(self.source.bad(key.span(), &problem, &remedy));
            }
        }
        Ok(())
    }

    pub(crate) fn get(&self, key: &'a str) -> Option<Entry<'a, 'i>> {
        self.table.get(key).map(|value| (key, value))
    }

    /// A refusal of a value.
    pub(crate) fn bad(&self, (key, value): Entry<'_, '_>, problem: &str, remedy: &str) -> Failure {
        self.source.bad(value.span(), &format!("{key}: {problem}"), remedy)
    }

    fn mistyped(&self, entry: Entry<'_, '_>, wanted: &str) -> Failure {
        let problem = format!("this is {}, not {wanted}", kind(entry.1.get_ref()));
        self.bad(entry, &problem, &format!("write {} = {wanted}", entry.0))
    }

    /// A text that says something.
    pub(crate) fn as_text(&self, entry: Entry<'_, '_>) -> Result<String> {
        let text = entry.1.get_ref().as_str().ok_or_else(|| self.mistyped(entry, "\"text\""))?;
        match text.trim().is_empty() {
            true => Err(self.bad(entry, "this text is empty", "write something, or leave it out")),
            false => Ok(text.to_owned()),
        }
    }

    pub(crate) fn text(&self, key: &'a str) -> Result<Option<String>> {
        self.get(key).map(|entry| self.as_text(entry)).transpose()
    }

    /// A text, or a list of texts; nothing where there is no key.
    pub(crate) fn texts(&self, key: &'a str) -> Result<Vec<(String, Range<usize>)>> {
        let Some(entry) = self.get(key) else {
            return Ok(Vec::new());
        };
        match entry.1.get_ref() {
            DeValue::String(_) => Ok(vec![(self.as_text(entry)?, entry.1.span())]),
            DeValue::Array(_) => {
                self.list(entry)?.iter().map(|one| Ok((self.as_text((key, one))?, one.span()))).collect()
            }
            _ => Err(self.mistyped(entry, "\"text\" or [\"text\", \"text\"]")),
        }
    }

    /// A list that is not empty.
    pub(crate) fn list(&self, entry: Entry<'a, 'i>) -> Result<&'a [Spanned<DeValue<'i>>]> {
        let list =
            entry.1.get_ref().as_array().ok_or_else(|| self.mistyped(entry, "[\"text\", \"text\"]"))?;
        match list.is_empty() {
            true => Err(self.bad(entry, "this list is empty", "write something, or leave it out")),
            false => Ok(list),
        }
    }

    pub(crate) fn flag(&self, key: &'a str) -> Result<Option<bool>> {
        let read =
            |entry: Entry<'a, 'i>| entry.1.get_ref().as_bool().ok_or_else(|| self.mistyped(entry, "true"));
        self.get(key).map(read).transpose()
    }

    /// A count from 1 to `most`.
    pub(crate) fn count(&self, key: &'a str, most: usize) -> Result<Option<usize>> {
        let read = |entry: Entry<'a, 'i>| {
            let number = entry.1.get_ref().as_integer().ok_or_else(|| self.mistyped(entry, "1"))?;
            let value = usize::from_str_radix(number.as_str(), number.radix()).ok();
            value.filter(|value| (1..=most).contains(value)).ok_or_else(|| {
                self.bad(
                    entry,
                    &format!("{number} is out of range"),
                    &format!("write a number from 1 to {most}"),
                )
            })
        };
        self.get(key).map(read).transpose()
    }

    /// A number that is not negative.
    pub(crate) fn amount(&self, key: &'a str) -> Result<Option<f64>> {
        let read = |entry: Entry<'a, 'i>| {
            let digits = match entry.1.get_ref() {
                DeValue::Float(number) => number.as_str(),
                DeValue::Integer(number) => number.as_str(),
                _ => return Err(self.mistyped(entry, "0.1")),
            };
            let value = digits.parse::<f64>().ok().filter(|value| value.is_finite() && *value >= 0.0);
            value.ok_or_else(|| {
                self.bad(entry, &format!("{digits} is out of range"), "write a number such as 0.1")
            })
        };
        self.get(key).map(read).transpose()
    }
}

fn kind(value: &DeValue<'_>) -> &'static str {
    match value {
        DeValue::String(_) => "a text",
        DeValue::Integer(_) | DeValue::Float(_) => "a number",
        DeValue::Boolean(_) => "true or false",
        DeValue::Datetime(_) => "a date",
        DeValue::Array(_) => "a list",
        DeValue::Table(_) => "a table",
    }
}

/// The known name that takes the fewest changes, if they are few.
fn nearest<'n>(name: &str, known: &[&'n str]) -> Option<&'n str> {
    let most = (name.chars().count() / 3).max(2);
    let near = known.iter().map(|known| (changes(name, known), *known)).min()?;
    (near.0 <= most).then_some(near.1)
}

/// Characters to insert, remove or replace to make one text the other.
fn changes(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, c) in a.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, d) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(c != *d);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_name_is_near() {
        let known = ["contains", "lacks", "max_kl"];
        assert_eq!(nearest("contians", &known), Some("contains"));
        assert_eq!(nearest("maxkl", &known), Some("max_kl"));
        assert_eq!(nearest("frobnicate", &known), None);
        assert_eq!((changes("", "abc"), changes("abc", "abc"), changes("kitten", "sitting")), (3, 0, 3));
    }
}
