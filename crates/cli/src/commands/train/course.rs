//! Where a run is: its folder, and what is in it so far.

use halfbyte_text::dataset::Position;
use halfbyte_train::{DataPosition, Progress, Record, RunFolder, Sample};

use super::setup::Setup;
use super::{TrainArgs, note};
use crate::failure::{Failure, Result};

/// How far a run is.
pub(super) struct Course {
    pub(super) folder: RunFolder,
    pub(super) records: Vec<Record>,
    pub(super) samples: Vec<Sample>,
    /// Steps taken.
    pub(super) step: u64,
    /// The step of the newest checkpoint; 0 where there is none.
    pub(super) saved: u64,
}

/// A new folder, or one to go on with.
pub(super) fn open_folder(args: &TrainArgs, setup: &mut Setup) -> Result<Course> {
    if !args.resume {
        let model = args.out.join("model");
        // A run says itself that it is in the way.
        if model.exists() && !args.out.join("settings.toml").exists() {
            return Err(Failure::misuse(format!(
                "{} is there already\ngive another --out, or remove it first",
                model.display()
            )));
        }
        let folder = RunFolder::create(&args.out, &setup.settings(args)?, &setup.binding, args.keep)?;
        return Ok(Course { folder, records: Vec::new(), samples: Vec::new(), step: 0, saved: 0 });
    }
    let resumed = RunFolder::resume(&args.out, &setup.binding, args.keep)?;
    for passed in &resumed.passed {
        note(&format!("passed over {}: {}", passed.path.display(), passed.reason));
    }
    let (folder, records, samples) = (resumed.folder, resumed.records, resumed.samples);
    let Some(snapshot) = resumed.snapshot else {
        return Ok(Course { folder, records, samples, step: 0, saved: 0 });
    };
    let backend = &mut setup.model.backend;
    snapshot.read_part("state", |from| setup.adam.restore(backend, from))?;
    let position = snapshot.manifest().progress.position;
    let position = Position { epoch: position.epoch, sequence: position.sequence as usize };
    setup.feed.seek(position)?;
    note(&format!("going on after step {}", snapshot.step()));
    Ok(Course { folder, records, samples, step: snapshot.step(), saved: snapshot.step() })
}

/// Saves a checkpoint.
pub(super) fn save(course: &mut Course, setup: &mut Setup) -> Result<()> {
    course.folder.log.sync()?;
    let position = setup.feed.position();
    let progress = Progress {
        step: course.step,
        counters: Default::default(),
        position: DataPosition { epoch: position.epoch, sequence: position.sequence as u64 },
        schedule: setup.schedule,
        binding: setup.binding.clone(),
    };
    let (adam, backend) = (&setup.adam, &mut setup.model.backend);
    course.folder.save(progress, adam.state_bytes(), |staging| {
        staging.write_part("state", |to| adam.save(backend, &mut *to))
    })?;
    course.saved = course.step;
    Ok(())
}

/// The command that goes on with a run.
pub(super) fn resume(args: &TrainArgs) -> String {
    format!("halfbyte train --config {} --resume", args.out.join("settings.toml").display())
}
