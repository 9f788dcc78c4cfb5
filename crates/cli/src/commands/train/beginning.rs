//! The model that a run begins with: from a file, or random.

use std::path::{Path, PathBuf};

use halfbyte_checkpoint::Checkpoint;

use super::TrainArgs;
use crate::commands::check::Spec;
use crate::embedded;
use crate::failure::{Failure, Result};
use crate::random;

impl TrainArgs {
    /// It itself; one that has to answer needs words.
    pub(crate) fn open(&self) -> Result<Checkpoint> {
        let Some(config) = &self.random else { return embedded::open(&self.model) };
        let model = random::open(config, self.seed)?;
        let asking = [(!self.sample.is_empty(), "--sample"), (self.check.is_some(), "--check")];
        match asking.into_iter().find(|(given, _)| *given && !random::speaks(&model)) {
            None => Ok(model),
            Some((_, flag)) => Err(Failure::misuse(format!(
                "{flag}: most tokens of {} have no words in this program's own tokenizer\n\
                 put the model's tokenizer.json beside it",
                config.display()
            ))),
        }
    }

    /// What it is named by.
    pub(crate) fn beginning(&self) -> &Path {
        self.random.as_deref().unwrap_or(&self.model)
    }

    /// It is named by this now.
    pub(crate) fn begin_with(&mut self, path: PathBuf) {
        *self.random.as_mut().unwrap_or(&mut self.model) = path;
    }
}

/// Whether nobody has to write down that this is the model.
pub(super) fn goes_without_saying(model: &Path) -> bool {
    model == Path::new(embedded::NAME)
}

/// Refuses a check that compares with the beginning, where that is no model.
pub(super) fn check(args: &TrainArgs, spec: Option<&Spec>) -> Result<()> {
    match spec.and_then(Spec::needs_baseline) {
        Some(_) if args.random.is_some() => Err(Failure::misuse(
            "--check: the spec has max_kl, a distance from the model of the beginning, and that is random here\n\
             leave max_kl out",
        )),
        _ => Ok(()),
    }
}
