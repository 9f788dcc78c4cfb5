//! Text -> ids by the `tokenizers` library, ids -> bytes by a table of our own.
//!
//! The table holds the bytes of every token in one block, so decoding and streaming share one rule and
//! a token that is half a character stays what it is: bytes.

use tokenizers::models::bpe::{BPE, Vocab};
use tokenizers::{
    AddedToken, DecoderWrapper, ModelWrapper, NormalizerWrapper, PostProcessorWrapper, PreTokenizerWrapper,
    TokenizerImpl,
};

use crate::byte_level::Alphabet;
use crate::definition::{Decoding, Definition};
use crate::error::Error;
use crate::gguf_vocabulary::GgufVocabulary;
use crate::stream::Stream;

type Library =
    TokenizerImpl<ModelWrapper, NormalizerWrapper, PreTokenizerWrapper, PostProcessorWrapper, DecoderWrapper>;

/// Models round their vocabulary up, at most to a multiple of this; such rows have no text.
const PADDING: usize = 1024;

/// A byte-level or SentencePiece-style BPE tokenizer.
pub struct Tokenizer {
    library: Library,
    file: String,
    /// Bytes of token i are `bytes[starts[i]..starts[i + 1]]`.
    bytes: Vec<u8>,
    starts: Vec<u32>,
    special: Vec<bool>,
    strips_first_space: bool,
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Tokenizer({}, {} tokens)", self.file, self.vocab_size())
    }
}

impl Tokenizer {
    /// Reads a tokenizer.json; `file` is the name used in errors.
    pub fn from_json(bytes: &[u8], file: &str) -> Result<Self, Error> {
        Self::build(Definition::from_json(bytes, file)?, file)
    }

    /// Builds the tokenizer a GGUF file describes; `file` is the name used in errors.
    pub fn from_gguf(vocabulary: &GgufVocabulary, file: &str) -> Result<Self, Error> {
        Self::build(vocabulary.definition(file)?, file)
    }

    fn build(definition: Definition, file: &str) -> Result<Self, Error> {
        let decoding = definition.decoding(file)?;
        let (bytes, starts) = token_bytes(&definition, decoding, file)?;
        let mut special = vec![false; definition.id_count()];
        for added in definition.added.iter().filter(|added| added.special) {
            special[added.id as usize] = true;
        }
        Ok(Tokenizer {
            library: build_library(definition, file)?,
            file: file.to_owned(),
            bytes,
            starts,
            special,
            strips_first_space: decoding == Decoding::SentencePiece { strip: true },
        })
    }

    /// Ids of a text. Special tokens written in the text are matched; none is added.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, Error> {
        let encoding = self
            .library
            .encode_fast(text, false)
            .map_err(|error| Error::Encode { file: self.file.clone(), problem: error.to_string() })?;
        Ok(encoding.get_ids().to_vec())
    }

    /// Ids of a text that goes on behind a line break: not as one that begins, which some tokenizers put a space before.
    pub(crate) fn encode_further(&self, text: &str) -> Result<Vec<u32>, Error> {
        if !self.strips_first_space {
            return self.encode(text);
        }
        let (before, mut ids) = (self.encode("\n")?, self.encode(&format!("\n{text}"))?);
        if ids.starts_with(&before) {
            ids.drain(..before.len());
        }
        Ok(ids)
    }

    /// Text of ids; bytes that are no UTF-8 become U+FFFD. `skip_special` leaves special tokens out.
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> Result<String, Error> {
        let mut stream = Stream::new(self, skip_special);
        let mut text = String::new();
        for &id in ids {
            text.push_str(&stream.push(id)?);
        }
        text.push_str(&stream.finish());
        Ok(text)
    }

    /// Id of a token written as in the vocabulary.
    pub fn id(&self, token: &str) -> Option<u32> {
        self.library.token_to_id(token)
    }

    /// The token of an id, written as in the vocabulary (bytes in their stand-in characters).
    pub fn token(&self, id: u32) -> Option<String> {
        self.library.id_to_token(id)
    }

    /// One past the highest id. The model's own vocabulary may be larger (padding rows), never smaller.
    pub fn vocab_size(&self) -> usize {
        self.special.len()
    }

    /// Whether this is a special (control) token.
    pub fn is_special(&self, id: u32) -> bool {
        self.special.get(id as usize).copied().unwrap_or(false)
    }

    /// Refuses a tokenizer with ids the model has no row for.
    pub fn check_model_vocabulary(&self, rows: usize) -> Result<(), Error> {
        if self.vocab_size() <= rows {
            return Ok(());
        }
        let problem = format!("ids go up to {}, the model has {rows} rows", self.vocab_size() - 1);
        let remedy = "Tokenizer and weights belong to different models; use the model's own tokenizer.";
        Err(Error::file(&self.file, "vocabulary", problem, remedy))
    }

    /// Bytes a token stands for; empty for a padding row.
    pub(crate) fn bytes_of(&self, id: u32) -> Result<&[u8], Error> {
        let index = id as usize;
        if index < self.vocab_size() {
            let range = self.starts[index] as usize..self.starts[index + 1] as usize;
            return Ok(&self.bytes[range]);
        }
        if index < self.vocab_size().next_multiple_of(PADDING) {
            return Ok(&[]);
        }
        Err(Error::UnknownId { file: self.file.clone(), id, size: self.vocab_size() })
    }

    pub(crate) fn strips_first_space(&self) -> bool {
        self.strips_first_space
    }
}

fn token_bytes(
    definition: &Definition,
    decoding: Decoding,
    file: &str,
) -> Result<(Vec<u8>, Vec<u32>), Error> {
    let mut tokens: Vec<&str> = vec![""; definition.id_count()];
    for (token, id) in &definition.vocabulary {
        tokens[*id as usize] = token;
    }
    for added in &definition.added {
        tokens[added.id as usize] = &added.content;
    }
    let alphabet = Alphabet::new();
    let mut bytes = Vec::new();
    let mut starts = vec![0];
    for token in tokens {
        match decoding {
            Decoding::ByteLevel => alphabet.append(token, &mut bytes),
            Decoding::SentencePiece { .. } => append_piece(token, &mut bytes),
        }
        let end = u32::try_from(bytes.len()).map_err(|_| {
            let remedy = crate::definition::COPY_AGAIN;
            Error::file(file, "model.vocab", "the tokens together exceed 4 GiB", remedy)
        })?;
        starts.push(end);
    }
    Ok((bytes, starts))
}

fn append_piece(token: &str, out: &mut Vec<u8>) {
    match byte_token(token) {
        Some(byte) => out.push(byte),
        None => out.extend_from_slice(token.replace('▁', " ").as_bytes()),
    }
}

/// The byte of a fallback token, `<0x0A>`.
pub(crate) fn byte_token(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
    let hexadecimal = digits.len() == 2 && digits.bytes().all(|b| b.is_ascii_hexdigit());
    hexadecimal.then(|| u8::from_str_radix(digits, 16).ok()).flatten()
}

fn build_library(definition: Definition, file: &str) -> Result<Library, Error> {
    let failed = |place: &str, error: String| Error::file(file, place, error, crate::definition::COPY_AGAIN);
    let normalizer: Option<NormalizerWrapper> =
        serde_json::from_value(definition.normalizer).map_err(|e| failed("normalizer", e.to_string()))?;
    let pre_tokenizer: Option<PreTokenizerWrapper> = serde_json::from_value(definition.pre_tokenizer)
        .map_err(|e| failed("pre_tokenizer", e.to_string()))?;
    // An added token keeps the id the file gives it only if the model knows the token too;
    // the library would otherwise number it by its own count.
    let mut vocabulary = definition.vocabulary;
    vocabulary.extend(definition.added.iter().map(|added| (added.content.clone(), added.id)));
    let mut model = BPE::builder()
        .vocab_and_merges(vocabulary.into_iter().collect::<Vocab>(), definition.merges)
        .fuse_unk(definition.fuse_unknown)
        .byte_fallback(definition.byte_fallback)
        .ignore_merges(definition.ignore_merges);
    if let Some(unknown) = definition.unknown {
        model = model.unk_token(unknown);
    }
    if let Some(prefix) = definition.subword_prefix {
        model = model.continuing_subword_prefix(prefix);
    }
    if let Some(suffix) = definition.word_suffix {
        model = model.end_of_word_suffix(suffix);
    }
    let model = model.build().map_err(|e| failed("model", e.to_string()))?;
    let mut library = Library::new(ModelWrapper::BPE(model));
    library.with_normalizer(normalizer).map_err(|e| failed("normalizer", e.to_string()))?;
    library.with_pre_tokenizer(pre_tokenizer);
    let added = definition.added.into_iter().map(|added| {
        AddedToken::from(added.content, added.special)
            .single_word(added.single_word)
            .lstrip(added.lstrip)
            .rstrip(added.rstrip)
            .normalized(added.normalized)
    });
    library.add_tokens(added).map_err(|e| failed("added_tokens", e.to_string()))?;
    Ok(library)
}
