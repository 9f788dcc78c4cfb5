//! AdamW as gradients arrive: each tensor learns at once, in the state that the plan gave it.

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::time::Duration;

use halfbyte_checkpoint::TensorName;
use halfbyte_formats::state::{Average, SQUARES_PER_ONE, adamw};
use halfbyte_model::training::{Learner, Learnt, Training as Model, learn_in_parts};
use halfbyte_ops::learn::Factors;
use halfbyte_ops::panels::{HEADER, Panels, Plane};
use halfbyte_ops::update::{Kept, Recipe, Step};
use halfbyte_ops::{Backend, Buffer, Luck, Rows, Tally};
use halfbyte_plan::{Name, Plan};

use crate::groups::Training;

/// A piece of a buffer on its way to a file.
const PIECE: usize = 1 << 20;

#[derive(Clone, Copy)]
struct Entry {
    learnt: Learnt,
    kept: Kept,
    /// Its number, for random words.
    number: u64,
    training: Training,
}

/// The optimizer of a run.
pub struct Adam {
    entries: HashMap<TensorName, Entry>,
    names: Vec<TensorName>,
    settings: adamw::Settings,
    recipe: Recipe,
    seed: u64,
    step: u64,
    rate: f64,
    /// Tensors of the calls whose tallies are not read yet.
    called: Vec<TensorName>,
    tally: Tally,
    codes: u64,
    time: Duration,
    /// Whether every gradient is looked at before it is used.
    careful: bool,
    /// The first tensor of this step whose gradient is not finite.
    bad: Option<TensorName>,
    /// A piece of a gradient that is looked at.
    piece: Vec<f32>,
}

impl Adam {
    /// For the tensors of a planned model; `training` says of each, in order, how it learns.
    pub fn new<B: Backend>(
        model: &Model<B>,
        plan: &Plan,
        training: &[Training],
        settings: adamw::Settings,
        recipe: Recipe,
        seed: u64,
    ) -> Adam {
        let names = model.architecture().tensor_names();
        let buffer = |name| plan.buffer(name).unwrap_or_default();
        let entry = |(number, (name, training)): (usize, (&TensorName, &Training))| {
            let kept = Kept {
                remainder: buffer(Name::Remainder(*name)),
                moment: buffer(Name::Moment(*name)),
                second: buffer(Name::Second(*name)),
            };
            let learnt = model.tensor(*name)?;
            Some((*name, Entry { learnt, kept, number: number as u64, training: *training }))
        };
        let entries = names.iter().zip(training).enumerate().filter_map(entry).collect();
        Adam {
            entries,
            names,
            settings,
            recipe,
            seed,
            step: 0,
            rate: 0.0,
            called: Vec::new(),
            tally: Tally::default(),
            codes: 0,
            time: Duration::ZERO,
            careful: false,
            bad: None,
            piece: Vec::new(),
        }
    }

    /// Looks at every gradient before it is used: a tensor whose gradient is not finite is left as
    /// it is (of a large one, the rows that are made together). Otherwise such a gradient is noticed
    /// when it has already reached the moments.
    pub fn look_first(&mut self) {
        self.careful = true;
    }

    /// The first tensor of this step whose gradient is not finite.
    pub fn bad(&self) -> Option<TensorName> {
        self.bad
    }

    fn is_finite<B: Backend>(&mut self, backend: &mut B, gradient: Rows) -> halfbyte_model::Result<bool> {
        let rows = (PIECE / 4 / gradient.columns.max(1)).max(1);
        for first in (0..gradient.rows).step_by(rows) {
            let part = gradient.slice(first, rows.min(gradient.rows - first));
            self.piece.resize(part.rows * part.columns, 0.0);
            backend.read(part, &mut self.piece)?;
            if !self.piece.iter().all(|value| value.is_finite()) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// A tensor that learns, what is kept of it, and its step.
    fn learning(&self, name: TensorName) -> Option<(Learnt, Kept, Step)> {
        let entry = self.entries.get(&name)?;
        let Training::Rate(factor) = entry.training else { return None };
        let step = Step {
            recipe: self.recipe,
            adamw: adamw::Step::new(&self.settings, self.rate * factor, self.step),
            average: Average::new(self.settings.beta2),
            seed: self.seed,
            step: self.step,
            tensor: entry.number,
        };
        Some((entry.learnt, entry.kept, step))
    }

    /// Names a step, counted from 1, and its learning rate; forgets what the last one counted.
    pub fn begin(&mut self, step: u64, rate: f64) {
        (self.step, self.rate, self.tally, self.codes) = (step, rate, Tally::default(), 0);
        (self.bad, self.time) = (None, Duration::ZERO);
        self.called.clear();
    }

    /// What the step changed.
    pub fn tally(&self) -> Tally {
        self.tally
    }

    /// Time that the device took to let tensors learn.
    pub fn seconds(&self) -> f64 {
        self.time.as_secs_f64()
    }

    /// Share of the codes that the step changed.
    pub fn codes_moved(&self) -> f64 {
        self.tally.changed as f64 / self.codes.max(1) as f64
    }

    /// RMS of the step's updates of matrices and tables, decay apart, in learning rates.
    pub fn update_size(&self) -> f64 {
        (self.tally.squares as f64 / f64::from(SQUARES_PER_ONE) / self.codes.max(1) as f64).sqrt()
    }

    /// Calls for everything that a checkpoint holds, in order, with the bytes of each part: the same on every device.
    fn each_part(&self, mut work: impl FnMut(Part<'_>, usize) -> io::Result<()>) -> io::Result<()> {
        for Entry { learnt, kept, .. } in self.names.iter().filter_map(|name| self.entries.get(name)) {
            let plain = match learnt {
                Learnt::Vector(vector) => vec![vector.buffer, kept.moment, kept.second],
                Learnt::Matrix(of) => {
                    work(Part::Bytes(Buffer { bytes: HEADER, ..of.buffer }), HEADER)?;
                    let planes = [
                        (Plane::Weight, of.buffer),
                        (Plane::Remainder, kept.remainder),
                        (Plane::Moment, kept.moment),
                    ];
                    for (plane, _) in planes.into_iter().filter(|(_, buffer)| buffer.bytes > 0) {
                        let all = Panels { of, kept, recipe: &self.recipe, plane, rows: 0..of.rows };
                        for (panels, bytes) in all.parts(PIECE) {
                            work(Part::Panels(panels), bytes)?;
                        }
                    }
                    vec![kept.second]
                }
            };
            for part in plain.into_iter().flat_map(pieces) {
                work(Part::Bytes(part), part.bytes)?;
            }
        }
        Ok(())
    }

    /// Bytes that the device keeps between steps; a checkpoint has hardly fewer.
    pub fn state_bytes(&self) -> u64 {
        let of = |Entry { learnt, kept, .. }: &Entry| {
            let own = match learnt {
                Learnt::Matrix(weight) => weight.buffer,
                Learnt::Vector(vector) => vector.buffer,
            };
            [own, kept.remainder, kept.moment, kept.second]
                .map(|buffer| buffer.bytes as u64)
                .iter()
                .sum::<u64>()
        };
        self.names.iter().filter_map(|name| self.entries.get(name)).map(of).sum()
    }

    /// Writes weights and state.
    pub fn save<B: Backend>(&self, backend: &mut B, to: &mut dyn Write) -> io::Result<()> {
        let mut piece = Vec::new();
        self.each_part(|part, bytes| {
            piece.resize(bytes, 0);
            match part {
                Part::Bytes(buffer) => backend.read_bytes(buffer, &mut piece),
                Part::Panels(panels) => backend.read_panels(&panels, &mut piece),
            }
            .map_err(io::Error::other)?;
            to.write_all(&piece)
        })
    }

    /// Takes weights and state back, on whatever device they were written.
    pub fn restore<B: Backend>(&self, backend: &mut B, from: &mut dyn Read) -> io::Result<()> {
        let mut piece = Vec::new();
        self.each_part(|part, bytes| {
            piece.resize(bytes, 0);
            from.read_exact(&mut piece)?;
            match part {
                Part::Bytes(buffer) => backend.write_bytes(buffer, &piece),
                Part::Panels(panels) => backend.write_panels(&panels, &piece),
            }
            .map_err(io::Error::other)
        })
    }
}

/// What goes to a file at a time.
enum Part<'a> {
    /// Numbers that all devices keep alike.
    Bytes(Buffer),
    Panels(Panels<'a>),
}

fn pieces(buffer: Buffer) -> impl Iterator<Item = Buffer> {
    (0..buffer.bytes)
        .step_by(PIECE)
        .map(move |at| Buffer { offset: buffer.offset + at, bytes: PIECE.min(buffer.bytes - at) })
}

impl<B: Backend> Learner<B> for Adam {
    fn wants(&self, name: TensorName) -> bool {
        self.learning(name).is_some()
    }

    fn luck(&self, name: TensorName) -> Option<Luck> {
        let tensor = self.entries.get(&name)?.number;
        Some(Luck { seed: self.seed, batch: self.step, tensor })
    }

    fn learn(
        &mut self,
        backend: &mut B,
        name: TensorName,
        first: usize,
        gradient: Rows,
    ) -> halfbyte_model::Result<()> {
        let Some((learnt, kept, step)) = self.learning(name) else { return Ok(()) };
        if self.careful && !self.is_finite(backend, gradient)? {
            self.bad.get_or_insert(name);
            return Ok(());
        }
        match learnt {
            Learnt::Matrix(weight) => {
                self.codes += (gradient.rows * gradient.columns) as u64;
                backend.update(&weight, first, gradient, &kept, &step)?;
            }
            Learnt::Vector(vector) => backend.update_vector(vector, gradient, &kept, &step)?,
        }
        self.called.push(name);
        Ok(())
    }

    fn learn_from(
        &mut self,
        backend: &mut B,
        name: TensorName,
        factors: &Factors<'_>,
        room: Buffer,
    ) -> halfbyte_model::Result<()> {
        match self.learning(name) {
            Some((Learnt::Matrix(weight), kept, step)) if !self.careful => {
                self.codes += (factors.dy.columns * factors.x.columns) as u64;
                let calls = backend.learn(&weight, factors, &kept, &step, room)?;
                self.called.extend(std::iter::repeat_n(name, calls));
                Ok(())
            }
            _ => learn_in_parts(self, backend, name, factors, room),
        }
    }

    /// Reads what the step did; until now nothing waited for it.
    fn end(&mut self, backend: &mut B) -> halfbyte_model::Result<()> {
        let tallies = backend.tallies()?;
        let refused = self.called.iter().zip(&tallies.each).find(|(_, tally)| tally.refused > 0);
        self.bad = self.bad.or(refused.map(|(name, _)| *name));
        self.tally.add(tallies.sum());
        self.time += tallies.time;
        self.called.clear();
        Ok(())
    }
}
