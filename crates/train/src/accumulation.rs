//! Gradients of a step's batches, stored in four bits until all are known; then the norm over all
//! tensors, the clip, and every tensor learns.
//!
//! ```text
//! batch 1, 2 .. N -> gradients, weighted by trained tokens -> stored -> norm -> factor -> Adam
//! ```
//! Nothing has changed before the norm is known: a gradient that is not finite stops the step whole.

use halfbyte_checkpoint::TensorName;
use halfbyte_model::training::{Batch, Learner, Training as Model};
use halfbyte_ops::accumulate::{Share, Storage, Stored};
use halfbyte_ops::tensor::PANEL;
use halfbyte_ops::{Backend, Buffer, Luck, Rows};
use halfbyte_plan::{Name, Plan, Value, stored_gradient};

use crate::adam::Adam;
use crate::groups::Training;

/// How gradients of matrices are stored.
pub const STORAGE: Storage = Storage::Four;

/// A step that was taken, or stopped because its gradient is not finite.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Taken {
    /// Mean over the trained tokens of all batches.
    pub loss: f64,
    /// Of the gradient over all tensors that learn, before it was clipped; not finite if a value is
    /// not. Then nothing was learnt.
    pub norm: f64,
}

/// The stored gradients of a run.
pub struct Accumulation {
    /// Those that learn, each at the number of its tensor.
    stored: Vec<(TensorName, Option<Stored>)>,
    /// Where a gradient is f32 again.
    gradient: Buffer,
    clip: Option<f64>,
    share: Share,
    lost: u64,
}

impl Accumulation {
    /// For a model whose plan stores gradients; `training` says of each tensor how it learns.
    pub fn new<B: Backend>(
        model: &Model<B>,
        plan: &Plan,
        training: &[Training],
        clip: Option<f64>,
        seed: u64,
    ) -> Accumulation {
        let a = model.architecture();
        let entry = |(name, training): (TensorName, &Training)| {
            let learns = matches!(training, Training::Rate(_));
            let buffer = plan.buffer(Name::Gradient(name)).filter(|_| learns);
            (name, buffer.map(|buffer| Stored { buffer, ..stored_gradient(a, name, STORAGE) }))
        };
        Accumulation {
            stored: a.tensor_names().into_iter().zip(training).map(entry).collect(),
            gradient: plan.buffer(Name::Value(Value::Gradient)).unwrap_or_default(),
            clip,
            share: Share { seed, number: 0, tensor: 0, fresh: true },
            lost: 0,
        }
    }

    /// Takes a step, the number of which decides its roundings. The gradient is that of the mean over the
    /// trained tokens of all batches.
    pub fn step<B: Backend>(
        &mut self,
        model: &mut Model<B>,
        number: u64,
        batches: &[Batch],
        adam: &mut Adam,
    ) -> halfbyte_model::Result<Taken> {
        let trained: usize = batches.iter().map(Batch::trained).sum();
        let (mut loss, first) = (0.0, number * batches.len() as u64);
        self.lost = 0;
        for (index, batch) in (0..).zip(batches) {
            self.share = Share { number: first + index, fresh: index == 0, ..self.share };
            let mean = model.part_of_step(batch, trained, self)?;
            loss += mean * (batch.trained() as f64 / trained as f64);
        }
        let norm = self.norm(&mut model.backend)?;
        if norm.is_finite() {
            let factor = self.clip.map_or(1.0, |clip| if norm > clip { clip / norm } else { 1.0 });
            self.learn_all(&mut model.backend, factor as f32, adam)?;
        }
        Ok(Taken { loss, norm })
    }

    /// Tensors in order, each summed in an order of its own: the same bits on any device.
    fn norm<B: Backend>(&self, backend: &mut B) -> halfbyte_model::Result<f64> {
        if self.lost > 0 {
            return Ok(f64::NAN);
        }
        let mut squares = 0.0;
        for stored in self.stored.iter().filter_map(|(_, stored)| stored.as_ref()) {
            squares += backend.accumulated_squares(stored)?;
        }
        Ok(squares.sqrt())
    }

    /// Every tensor learns, as many rows at a time as there is room for in f32.
    fn learn_all<B: Backend>(
        &self,
        backend: &mut B,
        factor: f32,
        adam: &mut Adam,
    ) -> halfbyte_model::Result<()> {
        for (name, stored) in &self.stored {
            let Some(of) = stored else { continue };
            let room = self.gradient.bytes / 4 / of.columns;
            let run = if room < of.rows { room / PANEL * PANEL } else { of.rows };
            for first in (0..of.rows).step_by(run.max(1)) {
                let rows = Rows::new(self.gradient, run.min(of.rows - first), of.columns);
                backend.accumulated(of, first, factor, rows)?;
                adam.learn(backend, *name, first, rows)?;
            }
        }
        adam.end(backend)
    }
}

impl<B: Backend> Learner<B> for Accumulation {
    fn wants(&self, name: TensorName) -> bool {
        self.stored.iter().any(|(stored, of)| *stored == name && of.is_some())
    }

    fn luck(&self, name: TensorName) -> Option<Luck> {
        let tensor = self.stored.iter().position(|(stored, _)| *stored == name)? as u64;
        Some(Luck { seed: self.share.seed, batch: self.share.number, tensor })
    }

    fn learn(
        &mut self,
        backend: &mut B,
        name: TensorName,
        first: usize,
        gradient: Rows,
    ) -> halfbyte_model::Result<()> {
        let found = (0..).zip(&self.stored).find(|(_, (stored, _))| *stored == name);
        let Some((tensor, (_, Some(of)))) = found else { return Ok(()) };
        Ok(backend.accumulate(gradient, first, of, &Share { tensor, ..self.share })?)
    }

    fn end(&mut self, backend: &mut B) -> halfbyte_model::Result<()> {
        self.lost += backend.tallies()?.sum().refused;
        Ok(())
    }
}
