//! A loss or a gradient that is not a number: where it began, what is left on the disk, how to go on.

use clap::ValueEnum;
use halfbyte_checkpoint::TensorName;
use halfbyte_model::training::Batch;
use halfbyte_plan::Stage;
use halfbyte_text::dataset::Position;
use halfbyte_text::packing::Sequence;
use serde::Serialize;

use super::course::{Course, resume, save};
use super::setup::Setup;
use super::{TrainArgs, batch, clear_line};
use crate::failure::{Code, Failure, Result};

/// What is done about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum OnNan {
    /// Stop; the last good state is on the disk
    Stop,
    /// Leave out the step, or the tensors whose gradient it is; count it and go on. Looks at every
    /// gradient before it is used, which takes a little time
    Skip,
}

/// What was not finite, and the sequences of that step.
pub(super) enum NotFinite {
    /// Seen before anything was learnt.
    Loss(Vec<Sequence>),
    /// Seen before anything was learnt, where gradients are stored.
    Gradient(Vec<Sequence>),
    /// Of this tensor first; those before it in the backward pass have learnt already.
    Update(TensorName, Vec<Sequence>),
}

impl NotFinite {
    pub(super) fn what(&self) -> String {
        match self {
            NotFinite::Loss(_) => "the loss is not a number".into(),
            NotFinite::Gradient(_) => "the gradient is not a number".into(),
            NotFinite::Update(name, _) => format!("the update of {name} is not a number"),
        }
    }

    fn sequences(&self) -> &[Sequence] {
        match self {
            NotFinite::Loss(sequences) | NotFinite::Gradient(sequences) | NotFinite::Update(_, sequences) => {
                sequences
            }
        }
    }
}

/// Sees to it that the last good state is on the disk; gives the failure that says so.
pub(super) fn stop(
    args: &TrainArgs,
    setup: &mut Setup,
    course: &mut Course,
    before: Position,
    trouble: NotFinite,
) -> Result<Failure> {
    clear_line();
    let place = place(args, setup, &trouble)?;
    // Where nothing has changed yet, the step before this one can still be saved.
    if !matches!(trouble, NotFinite::Update(..)) && course.saved < course.step {
        setup.feed.seek(before)?;
        save(course, setup)?;
    }
    let good = match course.saved {
        0 => "nothing was saved yet: the last good state is the model itself".to_owned(),
        saved => format!("the last good state is step {saved}, saved in {}", args.out.display()),
    };
    let go_on = resume(args);
    Ok(Failure::new(
        Code::Failed,
        format!(
            "stopped at step {}: {}\n{place}\n{good}\ngo on without what is no number: {go_on} --on-nan skip\n\
             or begin again with a smaller --lr (it was {:e}) in another --out folder",
            course.step + 1,
            trouble.what(),
            args.lr
        ),
    ))
}

/// The first bad value on the way there, or else where the batch is from.
fn place(args: &TrainArgs, setup: &mut Setup, trouble: &NotFinite) -> Result<String> {
    let places = |setup: &Setup, sequences: &[Sequence]| -> Vec<String> {
        let samples = sequences.iter().flat_map(|sequence| &sequence.samples);
        samples.map(|(sample, _)| setup.feed.place_of(*sample)).collect()
    };
    // After an update the weights are no longer those of this step.
    let looked_at = if matches!(trouble, NotFinite::Loss(_)) { trouble.sequences() } else { &[] };
    for sequences in looked_at.chunks(args.batch) {
        let batch = batch(sequences);
        if let Some(found) = setup.model.first_bad(&batch)? {
            return Ok(first_bad(found, &batch, &places(setup, sequences)));
        }
    }
    let first = places(setup, trouble.sequences());
    Ok(format!("in a batch that begins with {}", first[..first.len().min(4)].join(", ")))
}

fn first_bad(
    (layer, stage, token): (Option<usize>, Stage, usize),
    batch: &Batch,
    places: &[String],
) -> String {
    let ends = batch.lengths.iter().scan(0, |end, length| {
        *end += length;
        Some(*end)
    });
    let place = places.iter().zip(ends).find(|(_, end)| token < *end);
    let place = place.map_or(String::new(), |(place, _)| format!(", in {place}"));
    let layer = layer.map_or(String::new(), |layer| format!("layer {layer}, "));
    format!("first bad value: {layer}stage {}{place}", stage.name())
}
