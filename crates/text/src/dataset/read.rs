//! Sources -> samples: renders each row, keeps what fits, and says what became of the rest.
//!
//! Samples are held in memory, four bytes a token; files are read a line or a piece at a time.

use std::collections::HashSet;

use super::hash::Hash;
use super::lines::Fault;
use super::{Content, Item, Reader, Rendered, Renderer, Row, Sample, Source, SourceReport};
use crate::chat_template::Message;
use crate::error::{Error, shown};

/// How rows become samples.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Positions of a sequence; no sample needs more.
    pub length: usize,
    /// Leave out rows without a reply to learn from, instead of refusing them.
    pub skip_empty: bool,
}

/// All samples of some sources.
#[derive(Clone, Debug, PartialEq)]
pub struct Dataset {
    /// In the order of the files.
    pub samples: Vec<Sample>,
    /// One for each source.
    pub sources: Vec<SourceReport>,
    /// Positions of a sequence.
    pub length: usize,
}

impl Dataset {
    /// Reads all sources; `progress` gets bytes as they are read.
    pub fn read(
        sources: &[Source],
        renderer: &Renderer<'_>,
        settings: &Settings,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Self, Error> {
        if settings.length < 2 {
            let remedy = "Give at least 2 tokens.";
            return Err(Error::file("sequences", "length", "nothing can be predicted", remedy));
        }
        let mut reading =
            Reading { renderer, settings, seen: HashSet::new(), empty: None, samples: Vec::new() };
        let mut reports = Vec::new();
        for (index, source) in sources.iter().enumerate() {
            reports.push(reading.source(index, source, progress)?);
        }
        if let Some((file, line, reason)) = reading.empty {
            let count: usize = reports.iter().map(|report: &SourceReport| report.empty.count).sum();
            let rows = if count == 1 { "1 row" } else { &format!("{count} rows") };
            let remedy = format!("{reason}\n({rows} like this; leave them out with --skip-empty)");
            return Err(Fault::new("no token of this row would be trained", remedy).at(&file, line));
        }
        let data = Dataset { samples: reading.samples, sources: reports, length: settings.length };
        if data.samples.is_empty() {
            return Err(data.nothing());
        }
        Ok(data)
    }

    fn nothing(&self) -> Error {
        let dropped: usize = self.sources.iter().map(|source| source.dropped.count).sum();
        let file = self.sources.first().map(|source| source.path.display().to_string()).unwrap_or_default();
        match dropped {
            0 => Error::file(&file, "data", "there is no row to learn from", "Add rows."),
            _ => {
                let problem = format!("none of {dropped} conversations fits into {} tokens", self.length);
                Error::file(&file, "data", problem, "Give longer sequences.")
            }
        }
    }

    /// A number that changes with any token, span, weight or length: the same data, or not.
    pub fn fingerprint(&self) -> u64 {
        let mut hash = Hash::new();
        hash.number(self.length as u64);
        self.sources.iter().for_each(|source| hash.number(source.weight.to_bits()));
        for sample in &self.samples {
            hash.number(sample.source as u64);
            hash.ids(&sample.tokens);
            for range in &sample.trained {
                hash.number(range.start as u64);
                hash.number(range.end as u64);
            }
        }
        hash.finish()
    }
}

/// Reading in progress.
struct Reading<'a> {
    renderer: &'a Renderer<'a>,
    settings: &'a Settings,
    /// Hashes of rows seen.
    seen: HashSet<u64>,
    /// The first row without a reply, if that is refused: file, line, reason.
    empty: Option<(String, usize, &'static str)>,
    samples: Vec<Sample>,
}

/// A plain text that is being read.
#[derive(Default)]
struct Document {
    /// Those that are in no window yet.
    tokens: Vec<u32>,
    /// Line of the first of them.
    line: usize,
}

impl Reading<'_> {
    fn source(
        &mut self,
        index: usize,
        source: &Source,
        progress: &mut dyn FnMut(u64),
    ) -> Result<SourceReport, Error> {
        let mut reader = Reader::open(&source.path)?;
        let mut report = SourceReport::new(source.path.clone(), reader.format(), source.weight);
        let first = self.samples.len();
        let mut document = Document::default();
        let mut bytes = 0;
        while let Some(item) = reader.next_item()? {
            match item {
                Item::Header { line, text } => report.headers.push((line, text)),
                Item::Row(row) => {
                    self.row(index, &row, reader.file(), &mut document, &mut report)
                        .map_err(|error| placed(error, reader.file(), row.line))?;
                }
            }
            progress(reader.bytes() - bytes);
            bytes = reader.bytes();
        }
        for sample in &self.samples[first..] {
            report.samples += 1;
            report.tokens += sample.tokens.len();
            report.trained += sample.targets();
        }
        Ok(report)
    }

    fn row(
        &mut self,
        source: usize,
        row: &Row,
        file: &str,
        document: &mut Document,
        report: &mut SourceReport,
    ) -> Result<(), Error> {
        let place = (source, row.line);
        match &row.content {
            Content::Chat(messages) => {
                report.rows += 1;
                report.duplicates += usize::from(!self.seen.insert(row.content.hash()));
                if let Some(reason) = without_reply(messages) {
                    report.empty.add(row.line);
                    if !self.settings.skip_empty && self.empty.is_none() {
                        self.empty = Some((file.to_owned(), row.line, reason));
                    }
                    return Ok(());
                }
                self.chat(place, row.content.hash(), messages, report)
            }
            Content::Text(text) => {
                report.rows += 1;
                report.duplicates += usize::from(!self.seen.insert(row.content.hash()));
                self.text(place, row.content.hash(), text, file, report)
            }
            Content::Piece { text, begins, ends } => {
                if *begins {
                    report.rows += 1;
                    *document = Document { tokens: self.renderer.text_start(), line: row.line };
                }
                let tokenizer = self.renderer.tokenizer;
                let ids = if *begins { tokenizer.encode(text) } else { tokenizer.encode_further(text) }?;
                if ids.iter().any(|&id| tokenizer.is_special(id)) {
                    report.controls.add(row.line);
                }
                document.tokens.extend(ids);
                if *ends {
                    document.tokens.extend(self.renderer.document_end);
                }
                self.windows(source, document, *ends, report);
                Ok(())
            }
        }
    }

    fn chat(
        &mut self,
        (source, line): (usize, usize),
        hash: u64,
        messages: &[Message],
        report: &mut SourceReport,
    ) -> Result<(), Error> {
        self.refuse_controls(messages)?;
        let chat = self.renderer.chat(messages, self.settings.length)?;
        if chat.unended > 0 {
            report.unended.add(line);
        }
        match (chat.too_long, chat.samples.is_empty()) {
            (0, _) => {}
            (_, true) => report.dropped.add(line),
            (_, false) => report.shortened.add(line),
        }
        let sample = |Rendered { tokens, trained }| Sample { source, line, hash, tokens, trained };
        self.samples.extend(chat.samples.into_iter().map(sample));
        Ok(())
    }

    /// A message that writes a control token would end its own turn and begin another's.
    fn refuse_controls(&self, messages: &[Message]) -> Result<(), Error> {
        let tokenizer = self.renderer.tokenizer;
        for (index, message) in messages.iter().enumerate() {
            let ids = tokenizer.encode(&message.content)?;
            if let Some(&id) = ids.iter().find(|&&id| tokenizer.is_special(id)) {
                let token = shown(&tokenizer.token(id).unwrap_or_default());
                return Err(Error::Refused(format!(
                    "message {} has the control token {token} written in its text; take it out",
                    index + 1
                )));
            }
        }
        Ok(())
    }

    fn text(
        &mut self,
        (source, line): (usize, usize),
        hash: u64,
        text: &str,
        file: &str,
        report: &mut SourceReport,
    ) -> Result<(), Error> {
        let Rendered { mut tokens, .. } = self.renderer.text(text)?;
        let body = tokens.len() - usize::from(self.renderer.document_end.is_some());
        let first = usize::from(self.renderer.start.is_some());
        if text.trim().is_empty() || tokens.len() < 2 {
            report.empty.add(line);
            if !self.settings.skip_empty && self.empty.is_none() {
                self.empty = Some((file.to_owned(), line, "the text is empty"));
            }
            return Ok(());
        }
        if tokens[first..body].iter().any(|&id| self.renderer.tokenizer.is_special(id)) {
            report.controls.add(line);
        }
        if tokens.len() > self.settings.length + 1 {
            tokens.truncate(self.settings.length + 1);
            report.truncated.add(line);
        }
        let all = 0..tokens.len();
        self.samples.push(Sample { source, line, hash, tokens, trained: vec![all] });
        Ok(())
    }

    /// Takes whole windows off a document, and the rest at its end. A window begins with the token
    /// that the one before it ended with, so every token but the first is predicted once.
    fn windows(&mut self, source: usize, document: &mut Document, ends: bool, report: &mut SourceReport) {
        let length = self.settings.length;
        let all = std::mem::take(&mut document.tokens);
        let mut at = 0;
        while all.len() - at > length || ends && all.len() - at > 1 {
            let tokens = all[at..all.len().min(at + length + 1)].to_vec();
            let next = at + tokens.len() - 1;
            let mut hash = Hash::new();
            hash.ids(&tokens);
            let hash = hash.finish();
            report.duplicates += usize::from(!self.seen.insert(hash));
            let whole = 0..tokens.len();
            let line = document.line;
            self.samples.push(Sample { source, line, hash, tokens, trained: vec![whole] });
            document.line += self.line_breaks(&all[at..next]);
            at = next;
        }
        if !ends {
            document.tokens = all[at..].to_vec();
        }
    }

    fn line_breaks(&self, ids: &[u32]) -> usize {
        let bytes = |&id: &u32| self.renderer.tokenizer.bytes_of(id).unwrap_or_default();
        ids.iter().flat_map(bytes).filter(|&&byte| byte == b'\n').count()
    }
}

/// Why no reply of these messages can be learned, if so.
fn without_reply(messages: &[Message]) -> Option<&'static str> {
    let replies = || messages.iter().filter(|message| message.role == "assistant");
    if replies().any(|reply| !reply.content.trim().is_empty()) {
        return None;
    }
    Some(match messages.last() {
        _ if replies().next().is_some() => "the reply is empty; a row needs one to learn from",
        Some(last) if last.role == "user" => {
            "the last message is from the user; a row needs an assistant reply to learn from"
        }
        _ => "a row needs an assistant reply to learn from",
    })
}

/// An error of a row, with its file and line.
fn placed(error: Error, file: &str, line: usize) -> Error {
    let (problem, remedy) = match error {
        Error::Refused(reason) => ("this conversation cannot be trained on".to_owned(), reason),
        Error::Template { .. } => (error.to_string(), "is the template this model's own?".to_owned()),
        other => return other,
    };
    Fault::new(problem, remedy).at(file, line)
}
