//! A conversation in a file: messages, tokens and cache, so that going on costs no computing.
//!
//! A session belongs to one model held in one way. Kernels and thread counts may differ: they give the
//! same bits.

use std::path::Path;

use halfbyte_checkpoint::Error as FileError;
use halfbyte_ops::Backend;
use halfbyte_text::Message;
use serde::{Deserialize, Serialize};

use crate::conversation::Conversation;
use crate::error::Result;
use crate::session_file::{Reader, Sizes, Writer};
use crate::transcript::Transcript;

/// What a session is bound to. A file that differs in one of these is refused, by its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Binding {
    /// The checkpoint's fingerprint.
    pub fingerprint: u64,
    /// How weights are held.
    pub weights: String,
    /// How block scales are chosen.
    pub scales: String,
    /// How keys and values are held.
    pub cache: String,
    /// Positions of the cache.
    pub context: usize,
}

impl Binding {
    fn lines(&self) -> [(&'static str, String); 5] {
        [
            ("model", format!("{:016x}", self.fingerprint)),
            ("weights", self.weights.clone()),
            ("scales", self.scales.clone()),
            ("cache", self.cache.clone()),
            ("context", self.context.to_string()),
        ]
    }

    fn text(&self) -> String {
        self.lines().iter().map(|(key, value)| format!("{key}={value}\n")).collect()
    }

    /// Refuses a binding other than this one, naming the first difference.
    fn check(&self, path: &Path, found: &str) -> std::result::Result<(), FileError> {
        let mut lines = found.lines();
        for (key, own) in self.lines() {
            let theirs = lines.next().and_then(|line| line.strip_prefix(key)?.strip_prefix('='));
            let Some(theirs) = theirs else {
                let remedy = "the file is damaged or of another version; start again without it";
                return Err(FileError::input(path, "binding", format!("does not name {key}"), remedy));
            };
            if theirs == own {
                continue;
            }
            let theirs: String = theirs.chars().take(40).flat_map(char::escape_debug).collect();
            let (problem, remedy) = match key {
                "model" => (
                    "this session was made with another model".to_string(),
                    "open it with the model it was made with, or give another file".to_string(),
                ),
                _ => (
                    format!("this session was made with --{key} {theirs}, this run has {own}"),
                    format!("run with --{key} {theirs}, or give another file"),
                ),
            };
            return Err(FileError::request(path, key, problem, remedy));
        }
        Ok(())
    }
}

/// What is in the file besides the cache.
#[derive(Serialize, Deserialize)]
struct Note {
    messages: Vec<Message>,
    transcript: Transcript,
    draws: u64,
}

impl<B: Backend> Conversation<B> {
    fn sizes(&self) -> Sizes {
        Sizes {
            layers: self.decoder.architecture().layers,
            layer_bytes: self.decoder.cache_bytes(),
            context: self.decoder.context(),
        }
    }

    /// Writes messages, tokens and cache; whole or not at all.
    pub fn save(&mut self, path: &Path, binding: &Binding) -> Result<()> {
        let note = Note {
            messages: self.messages().to_vec(),
            transcript: self.transcript.clone(),
            draws: self.sampler.draws(),
        };
        let note = serde_json::to_vec(&note).map_err(|error| {
            FileError::request(path, "note", error.to_string(), "report this: a conversation has a JSON form")
        })?;
        let sizes = self.sizes();
        let ids = self.decoder.tokens().to_vec();
        let mut writer = Writer::create(path, &binding.text(), &note, &ids, sizes)?;
        let mut cache = vec![0; sizes.layer_bytes];
        for layer in 0..sizes.layers {
            self.decoder.read_cache(layer, &mut cache)?;
            writer.layer(&cache)?;
        }
        Ok(writer.finish()?)
    }

    /// Goes on with a saved conversation. A file that is refused leaves this one's messages alone;
    /// at worst its cache is empty and will be computed again.
    pub fn load(&mut self, path: &Path, binding: &Binding) -> Result<()> {
        let (mut reader, found) = Reader::open(path)?;
        binding.check(path, &reader.binding)?;
        let sizes = self.sizes();
        reader.expect(found, sizes)?;
        let note: Note =
            serde_json::from_slice(&reader.note).map_err(|error| reader.bad("note", error.to_string()))?;
        let vocabulary = self.decoder.architecture().vocab_size;
        if let Some(id) = reader.ids.iter().find(|&&id| id as usize >= vocabulary) {
            let problem = format!("token {id} is past the vocabulary of {vocabulary}");
            return Err(reader.bad("ids", problem).into());
        }
        if !note.transcript.holds_together(vocabulary) {
            return Err(reader.bad("note", "its marks do not fit its text").into());
        }
        self.decoder.keep(0);
        let mut cache = vec![0; sizes.layer_bytes];
        for layer in 0..sizes.layers {
            reader.layer(layer, &mut cache)?;
            self.decoder.write_cache(layer, &cache)?;
        }
        reader.finish()?;
        self.decoder.restore_tokens(&reader.ids)?;
        self.sampler = self.sampler.clone().continue_from(note.draws);
        self.set_messages(note.messages);
        self.transcript = note.transcript;
        Ok(())
    }
}
