//! A data file on the command line: its path, how it is read, and its weight.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use crate::error::Error;

/// Largest weight; a row more often than that an epoch is a mistake.
const HEAVIEST: f64 = 1000.0;

/// A data file and how often its rows come.
#[derive(Clone, Debug, PartialEq)]
pub struct Source {
    /// Where it is.
    pub path: PathBuf,
    /// How often each row comes in an epoch; 0.5 takes every second row, drawn anew each epoch.
    pub weight: f64,
}

impl Source {
    /// A file whose rows come once an epoch.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Source { path: path.into(), weight: 1.0 }
    }
}

/// As it is read back.
impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.weight {
            1.0 => write!(f, "{}", self.path.display()),
            weight => write!(f, "{}:{weight}", self.path.display()),
        }
    }
}

impl FromStr for Source {
    type Err = String;

    /// `PATH` or `PATH:WEIGHT`; an existing file whose name looks like that is a path.
    fn from_str(text: &str) -> Result<Self, String> {
        let named = Path::new(text);
        let weighted = text.rsplit_once(':').filter(|_| !named.exists());
        let Some((path, weight)) = weighted.and_then(|(path, tail)| Some((path, tail.parse::<f64>().ok()?)))
        else {
            return Ok(Source::new(text));
        };
        if !(weight > 0.0 && weight <= HEAVIEST) {
            return Err(format!("the weight {weight} is not above 0 and at most {HEAVIEST}"));
        }
        Ok(Source { path: path.into(), weight })
    }
}

/// How a data file is written, by the ending of its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// `prompt<TAB>target`.
    Tsv,
    /// One JSON object a line.
    Jsonl,
    /// Documents of plain text.
    Text,
}

impl Format {
    /// The format of a file, or what its name could be.
    pub fn of(path: &Path) -> Result<Self, Error> {
        let ending = path.extension().and_then(|ending| ending.to_str()).unwrap_or_default();
        match ending.to_ascii_lowercase().as_str() {
            "tsv" => Ok(Format::Tsv),
            "jsonl" | "ndjson" | "json" => Ok(Format::Jsonl),
            "txt" | "text" | "md" => Ok(Format::Text),
            _ => Err(Error::file(
                &path.display().to_string(),
                "name",
                "the ending says no format we know",
                "Use .tsv (prompt, tab, target), .jsonl (one object a line) or .txt (plain text).",
            )),
        }
    }

    /// As written in reports.
    pub fn name(self) -> &'static str {
        match self {
            Format::Tsv => "tsv",
            Format::Jsonl => "jsonl",
            Format::Text => "text",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_weight_stands_after_the_last_colon() {
        let read = |text: &str| text.parse::<Source>();
        assert_eq!(read("a.tsv").unwrap(), Source::new("a.tsv"));
        assert_eq!(read("a.tsv:2").unwrap(), Source { path: "a.tsv".into(), weight: 2.0 });
        assert_eq!(read("c:a.tsv:0.25").unwrap(), Source { path: "c:a.tsv".into(), weight: 0.25 });
        assert_eq!(read("c:a.tsv").unwrap(), Source::new("c:a.tsv"));
        for text in ["a.tsv", "a.tsv:2", "c:a.tsv:0.25"] {
            assert_eq!(read(text).unwrap().to_string(), text);
        }
        for weight in ["0", "-1", "nan", "inf", "1e9"] {
            assert!(read(&format!("a.tsv:{weight}")).unwrap_err().contains("weight"), "{weight}");
        }
    }

    #[test]
    fn the_ending_names_the_format() {
        let of = |name: &str| Format::of(Path::new(name));
        assert_eq!(of("a.TSV").unwrap(), Format::Tsv);
        assert_eq!(of("a.jsonl").unwrap(), Format::Jsonl);
        assert_eq!(of("b/a.txt").unwrap(), Format::Text);
        assert!(of("a.parquet").unwrap_err().to_string().contains(".jsonl"));
    }
}
