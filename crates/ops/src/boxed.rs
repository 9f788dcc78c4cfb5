//! A device that is chosen at run time is a backend like any other.

use std::time::Duration;

use crate::best::Best;
use crate::panels::Panels;
use crate::{
    Attention, Backend, Buffer, Cache, Fresh, Heads, HeadsGradient, Keep, Luck, Matrix, Next, Norm,
    OutputGradient, Product, Result, Rows, Sight, Tallies, Vector, Weight, WeightRows, accumulate, learn,
    update,
};

impl Backend for Box<dyn Backend> {
    fn describe(&self) -> String {
        (**self).describe()
    }

    fn exact_products(&self) -> bool {
        (**self).exact_products()
    }

    fn write(&mut self, to: Buffer, values: &[f32]) -> Result<()> {
        (**self).write(to, values)
    }

    fn read(&mut self, from: Rows, values: &mut [f32]) -> Result<()> {
        (**self).read(from, values)
    }

    fn read_bytes(&mut self, from: Buffer, bytes: &mut [u8]) -> Result<()> {
        (**self).read_bytes(from, bytes)
    }

    fn write_bytes(&mut self, to: Buffer, bytes: &[u8]) -> Result<()> {
        (**self).write_bytes(to, bytes)
    }

    fn read_panels(&mut self, from: &Panels<'_>, bytes: &mut [u8]) -> Result<()> {
        (**self).read_panels(from, bytes)
    }

    fn write_panels(&mut self, to: &Panels<'_>, bytes: &[u8]) -> Result<()> {
        (**self).write_panels(to, bytes)
    }

    fn write_weight(&mut self, to: &Weight, first_row: usize, rows: WeightRows<'_>) -> Result<()> {
        (**self).write_weight(to, first_row, rows)
    }

    fn read_row(&mut self, from: &Weight, row: usize, codes: &mut [u8], scales: &mut [u8]) -> Result<f32> {
        (**self).read_row(from, row, codes, scales)
    }

    fn embed(&mut self, tokens: &[u32], table: &Weight, out: Rows) -> Result<()> {
        (**self).embed(tokens, table, out)
    }

    fn embed_gradient(&mut self, tokens: &[u32], first: usize, dy: Rows, dtable: Rows) -> Result<()> {
        (**self).embed_gradient(tokens, first, dy, dtable)
    }

    fn rms_norm(&mut self, x: Rows, gain: Vector, eps: f32, out: Rows) -> Result<()> {
        (**self).rms_norm(x, gain, eps, out)
    }

    fn rounds_residual(&self) -> bool {
        (**self).rounds_residual()
    }

    fn norm(&mut self, norm: Norm) -> Result<()> {
        (**self).norm(norm)
    }

    fn rms_norm_gradient(
        &mut self,
        x: Rows,
        gain: Vector,
        eps: f32,
        dy: Rows,
        dx: Rows,
        dgain: Vector,
    ) -> Result<()> {
        (**self).rms_norm_gradient(x, gain, eps, dy, dx, dgain)
    }

    fn rms_norm_gradient_narrow(
        &mut self,
        x: Rows,
        gain: Vector,
        eps: f32,
        dy: Rows,
        both: [Rows; 2],
        dgain: Vector,
    ) -> Result<()> {
        (**self).rms_norm_gradient_narrow(x, gain, eps, dy, both, dgain)
    }

    fn linear(&mut self, x: Rows, products: &[Product]) -> Result<()> {
        (**self).linear(x, products)
    }

    fn normed_linear(&mut self, norm: Norm, products: &[Product]) -> Result<()> {
        (**self).normed_linear(norm, products)
    }

    fn linear_input_gradient(&mut self, dy: Rows, weight: &Weight, dx: Rows, added: bool) -> Result<()> {
        (**self).linear_input_gradient(dy, weight, dx, added)
    }

    fn linear_input_gradients(&mut self, of: &[OutputGradient], dx: Rows) -> Result<()> {
        (**self).linear_input_gradients(of, dx)
    }

    fn linear_weight_gradient(
        &mut self,
        dy: Rows,
        x: Rows,
        exact: bool,
        first: usize,
        dw: Rows,
    ) -> Result<()> {
        (**self).linear_weight_gradient(dy, x, exact, first, dw)
    }

    fn round_gradients(&mut self, luck: Option<Luck>) {
        (**self).round_gradients(luck);
    }

    fn bias_gradient(&mut self, dy: Rows, db: Vector) -> Result<()> {
        (**self).bias_gradient(dy, db)
    }

    fn rope(&mut self, x: Rows, head_dim: usize, turns: Rows) -> Result<()> {
        (**self).rope(x, head_dim, turns)
    }

    fn rope_gradient(&mut self, dx: Rows, head_dim: usize, turns: Rows) -> Result<()> {
        (**self).rope_gradient(dx, head_dim, turns)
    }

    fn heads(
        &mut self,
        queries: Heads,
        keys: Heads,
        eps: f32,
        turns: Rows,
        keep: Option<Keep<'_>>,
    ) -> Result<()> {
        (**self).heads(queries, keys, eps, turns, keep)
    }

    fn narrow_gradients(&self, tokens: usize) -> bool {
        (**self).narrow_gradients(tokens)
    }

    fn narrow_heads(&self, tokens: usize, head_dim: usize) -> bool {
        (**self).narrow_heads(tokens, head_dim)
    }

    fn heads_gradient(
        &mut self,
        queries: HeadsGradient,
        keys: HeadsGradient,
        eps: f32,
        turns: Rows,
    ) -> Result<()> {
        (**self).heads_gradient(queries, keys, eps, turns)
    }

    fn store(&mut self, keys: Rows, values: Rows, start: usize, cache: &Cache) -> Result<()> {
        (**self).store(keys, values, start, cache)
    }

    fn attend(&mut self, q: Rows, cache: &Cache, sight: Sight, out: Rows) -> Result<()> {
        (**self).attend(q, cache, sight, out)
    }

    fn attend_samples(&mut self, of: &Attention<'_>, cache: &Cache, out: Rows) -> Result<()> {
        (**self).attend_samples(of, cache, out)
    }

    fn heads_attend(&mut self, of: Fresh<'_>, window: Option<usize>, out: Rows) -> Result<()> {
        (**self).heads_attend(of, window, out)
    }

    fn attend_gradient(
        &mut self,
        of: &Attention<'_>,
        out: Rows,
        dout: Rows,
        dq: Rows,
        dk: Rows,
        dv: Rows,
    ) -> Result<()> {
        (**self).attend_gradient(of, out, dout, dq, dk, dv)
    }

    fn clear(&mut self, out: Rows) -> Result<()> {
        (**self).clear(out)
    }

    fn copy(&mut self, x: Rows, out: Rows) -> Result<()> {
        (**self).copy(x, out)
    }

    fn add(&mut self, x: Rows, out: Rows) -> Result<()> {
        (**self).add(x, out)
    }

    fn gated(
        &mut self,
        x: Rows,
        gate: Matrix,
        up: Matrix,
        kept: Option<(Rows, Rows)>,
        out: Rows,
    ) -> Result<()> {
        (**self).gated(x, gate, up, kept, out)
    }

    fn normed_gated(
        &mut self,
        norm: Norm,
        gate: Matrix,
        up: Matrix,
        kept: Option<(Rows, Rows)>,
        out: Rows,
    ) -> Result<()> {
        (**self).normed_gated(norm, gate, up, kept, out)
    }

    fn gated_gradient(
        &mut self,
        dy: Rows,
        down: &Weight,
        kept: (Rows, Rows),
        dgate: Rows,
        dup: Rows,
    ) -> Result<()> {
        (**self).gated_gradient(dy, down, kept, dgate, dup)
    }

    fn again(&mut self, next: &Next<'_>) -> Result<bool> {
        (**self).again(next)
    }

    fn recorded(&mut self, whole: bool) -> Result<bool> {
        (**self).recorded(whole)
    }

    fn best(&mut self, x: Rows, best: &mut [Best]) -> Result<bool> {
        (**self).best(x, best)
    }

    fn loss(&mut self, logits: Rows, first: usize, targets: &[u32], state: Rows) -> Result<()> {
        (**self).loss(logits, first, targets, state)
    }

    fn loss_exponentials(
        &mut self,
        logits: Rows,
        first: usize,
        targets: &[u32],
        state: Rows,
        out: Rows,
        sums: Rows,
    ) -> Result<()> {
        (**self).loss_exponentials(logits, first, targets, state, out, sums)
    }

    fn loss_input_gradient(
        &mut self,
        targets: &[u32],
        state: Rows,
        weight: f32,
        of_targets: Rows,
        dx: Rows,
    ) -> Result<()> {
        (**self).loss_input_gradient(targets, state, weight, of_targets, dx)
    }

    fn loss_gradient(
        &mut self,
        logits: Rows,
        first: usize,
        targets: &[u32],
        state: Rows,
        weight: f32,
        out: Rows,
    ) -> Result<()> {
        (**self).loss_gradient(logits, first, targets, state, weight, out)
    }

    fn accumulate(
        &mut self,
        gradient: Rows,
        first: usize,
        to: &accumulate::Stored,
        share: &accumulate::Share,
    ) -> Result<()> {
        (**self).accumulate(gradient, first, to, share)
    }

    fn accumulated(&mut self, from: &accumulate::Stored, first: usize, factor: f32, out: Rows) -> Result<()> {
        (**self).accumulated(from, first, factor, out)
    }

    fn accumulated_squares(&mut self, of: &accumulate::Stored) -> Result<f64> {
        (**self).accumulated_squares(of)
    }

    fn update(
        &mut self,
        of: &Weight,
        first: usize,
        gradient: Rows,
        kept: &update::Kept,
        step: &update::Step,
    ) -> Result<()> {
        (**self).update(of, first, gradient, kept, step)
    }

    fn learn(
        &mut self,
        of: &Weight,
        from: &learn::Factors<'_>,
        kept: &update::Kept,
        step: &update::Step,
        room: Buffer,
    ) -> Result<usize> {
        (**self).learn(of, from, kept, step, room)
    }

    fn update_vector(
        &mut self,
        of: Vector,
        gradient: Rows,
        kept: &update::Kept,
        step: &update::Step,
    ) -> Result<()> {
        (**self).update_vector(of, gradient, kept, step)
    }

    fn tallies(&mut self) -> Result<Tallies> {
        (**self).tallies()
    }

    fn profile(&mut self) -> Result<Vec<(&'static str, Duration)>> {
        (**self).profile()
    }
}
