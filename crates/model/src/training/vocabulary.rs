//! Norm, head and loss over chunks of the vocabulary, and the tables' gradients.
//!
//! The logits of a chunk are computed once for the loss and the gradient of the head's input, and once more
//! where the head learns: where it is the embedding too, at the very end, when that one's share is known. So no
//! gradient of a whole table ever exists.

use halfbyte_checkpoint::TensorName;
use halfbyte_ops::learn::Factors;
use halfbyte_ops::{Backend, Matrix, Product, Rows, Weight, WeightFormat, loss};
use halfbyte_plan::Value;

use super::{Batch, Learner, Training};
use crate::block::{self, Pass};
use crate::error::{Error, Result};

impl<B: Backend> Training<B> {
    /// Mean loss of the trained tokens. If it is for the way `back`, the head's rows are summed up on the way, each
    /// with what will be its share in the gradient of the head's input.
    pub(super) fn measure(&mut self, batch: &Batch, pass: &Pass, back: bool) -> Result<f64> {
        let tokens = batch.tokens.len();
        let normed = self.final_normed(tokens);
        self.backend.rms_norm(pass.at.residual, self.final_norm, pass.norm_eps, normed)?;
        let state = self.state(tokens);
        let mut values = loss::START.repeat(tokens);
        self.backend.write(state.buffer, &values)?;
        for first in (0..self.head.rows).step_by(self.words) {
            let logits = self.logits(first, normed)?;
            if !back {
                self.backend.loss(logits, first, &batch.targets, state)?;
                continue;
            }
            let (out, sums) = (self.in_place_of(logits), self.d_normed(tokens));
            self.backend.loss_exponentials(logits, first, &batch.targets, state, out, sums)?;
            let chunk = self.chunk(self.head, first)?;
            self.backend.linear_input_gradient(out, &chunk, sums, first > 0)?;
        }
        self.backend.read(state, &mut values)?;
        let of_token = values.chunks_exact(loss::STATE).zip(&batch.targets);
        let trained = of_token.filter(|(_, target)| **target != loss::UNTRAINED);
        Ok(trained.map(|(state, _)| loss::loss(state)).sum::<f64>() / batch.trained() as f64)
    }

    /// Norm and head of one row, whole.
    pub(super) fn row_logits(&mut self, x: Rows, eps: f32) -> Result<Vec<f32>> {
        let normed = self.final_normed(1);
        self.backend.rms_norm(x, self.final_norm, eps, normed)?;
        let mut all = vec![0.0; self.head.rows];
        for first in (0..self.head.rows).step_by(self.words) {
            let logits = self.logits(first, normed)?;
            self.backend.read(logits, &mut all[first..first + logits.columns])?;
        }
        Ok(all)
    }

    /// The gradient of what enters the final norm, after [`Training::measure`]; an untied head's weights learn.
    pub(super) fn head_back(
        &mut self,
        batch: &Batch,
        pass: &Pass,
        learner: &mut dyn Learner<B>,
    ) -> Result<()> {
        let tokens = batch.tokens.len();
        let (d_normed, d_residual) = (self.d_normed(tokens), self.d_residual(tokens));
        // A token without a target needs no row: any does.
        let row = |target: &u32| if *target == loss::UNTRAINED { 0 } else { *target };
        let rows: Vec<u32> = batch.targets.iter().map(row).collect();
        self.backend.embed(&rows, &self.head, d_residual)?;
        let state = self.state(tokens);
        self.backend.loss_input_gradient(&batch.targets, state, self.weight, d_residual, d_normed)?;
        if !self.architecture.tied && learner.wants(TensorName::Head) {
            for first in (0..self.head.rows).step_by(self.words) {
                let factors = self.head_factors(first, batch)?;
                let room = self.buffer(Value::Gradient);
                learner.learn_from(&mut self.backend, TensorName::Head, &factors, room)?;
            }
        }
        self.backend.clear(d_residual)?;
        let norm = (TensorName::FinalNorm, self.final_norm);
        self.norm_back(pass.at.residual, norm, pass.norm_eps, d_normed, d_residual, learner)
    }

    /// The embedding learns, together with the head where they are one table.
    pub(super) fn tables_back(&mut self, batch: &Batch, learner: &mut dyn Learner<B>) -> Result<()> {
        if !learner.wants(TensorName::Embedding) {
            return Ok(());
        }
        let d_residual = self.d_residual(batch.tokens.len());
        for first in (0..self.embedding.rows).step_by(self.words) {
            if self.architecture.tied {
                let embedded = Some((&batch.tokens[..], d_residual));
                let factors = Factors { embedded, ..self.head_factors(first, batch)? };
                let room = self.buffer(Value::Gradient);
                learner.learn_from(&mut self.backend, TensorName::Embedding, &factors, room)?;
                continue;
            }
            let rows = self.words.min(self.embedding.rows - first);
            let gradient = self.rows(Value::Gradient, rows, self.embedding.columns);
            self.backend.clear(gradient)?;
            self.backend.embed_gradient(&batch.tokens, first, d_residual, gradient)?;
            learner.learn(&mut self.backend, TensorName::Embedding, first, gradient)?;
        }
        Ok(())
    }

    /// What the head's gradient is made of, from word `first` on.
    fn head_factors(&mut self, first: usize, batch: &Batch) -> Result<Factors<'static>> {
        let tokens = batch.tokens.len();
        let x = self.final_normed(tokens);
        let logits = self.logits(first, x)?;
        let (state, dy) = (self.state(tokens), self.in_place_of(logits));
        self.backend.loss_gradient(logits, first, &batch.targets, state, self.weight, dy)?;
        Ok(Factors { first, dy, x, exact: self.head.format == WeightFormat::F32, embedded: None })
    }

    fn final_normed(&self, tokens: usize) -> Rows {
        let rows = self.rows(Value::FinalNormed, tokens, self.architecture.hidden_size);
        block::input(rows, &[Matrix { weight: self.head, bias: None }])
    }

    fn d_normed(&self, tokens: usize) -> Rows {
        self.rows(Value::DNormed, tokens, self.architecture.hidden_size)
    }

    fn d_residual(&self, tokens: usize) -> Rows {
        self.rows(Value::DResidual, tokens, self.architecture.hidden_size)
    }

    fn state(&self, tokens: usize) -> Rows {
        self.rows(Value::LossState, tokens, loss::STATE)
    }

    fn chunk(&self, table: Weight, first: usize) -> Result<Weight> {
        let rows = self.words.min(table.rows - first);
        let whole = (rows == table.rows).then_some(table);
        whole.or_else(|| table.slice(first, rows)).ok_or(Error::Vocabulary { words: self.words })
    }

    fn logits(&mut self, first: usize, normed: Rows) -> Result<Rows> {
        let weight = self.chunk(self.head, first)?;
        let out = self.rows(Value::Logits, normed.rows, weight.rows);
        self.backend.linear(normed, &[Product::new(Matrix { weight, bias: None }, out)])?;
        Ok(out)
    }

    /// Where what is made of logits goes, as the products of the head take it.
    fn in_place_of(&self, logits: Rows) -> Rows {
        match self.head.format {
            WeightFormat::F32 => logits,
            _ => self.rows(Value::DLogits, logits.rows, logits.columns).narrow(),
        }
    }
}
