//! The model that is part of the program, and the one place where MODEL becomes a checkpoint.

use std::path::{Path, PathBuf};

use clap::Args;
use halfbyte_checkpoint::Checkpoint;

use crate::failure::Result;

/// Made by scripts/embedded/make.sh; embedded/README.md says how.
const MODEL: &[u8] = include_bytes!("../embedded/model.gguf");
/// The word that names it wherever a model is asked for; a file of that name is ./embedded.
pub(crate) const NAME: &str = "embedded";

/// MODEL on the command line.
#[derive(Args, Clone, Debug)]
pub(crate) struct ModelArg {
    /// A Hugging Face directory, a .gguf, a .dat with its config.json beside it, or the small model
    /// that is part of this program
    #[arg(value_name = "MODEL", default_value = NAME)]
    pub(crate) model: PathBuf,
}

/// Opens what MODEL names.
pub(crate) fn open(model: &Path) -> Result<Checkpoint> {
    match model == Path::new(NAME) {
        true => Ok(Checkpoint::embedded(model, MODEL)?),
        false => Ok(Checkpoint::open(model)?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::language;

    #[test]
    fn its_tokenizer_gives_every_text_back() {
        let checkpoint = open(Path::new(NAME)).unwrap();
        let tokenizer = language::tokenizer(&checkpoint).unwrap();
        for text in [
            "你是誰？我是 F# 之神。",
            "I am the god of F#.",
            "17 × 6 = 102\n\t  é 𝄞 龜",
            "<|im_start|>user\n",
        ] {
            let ids = tokenizer.encode(text).unwrap();
            assert_eq!(tokenizer.decode(&ids, false).unwrap(), text);
        }
        assert_eq!(tokenizer.encode("<|im_end|>").unwrap(), checkpoint.architecture.eos[..1]);
        assert!(language::template(&checkpoint, &tokenizer).unwrap().is_some());
    }
}
