//! Every op of the list and where it is; nothing is computed here.

use std::time::Duration;

use halfbyte_ops::accumulate::{Share, Stored};
use halfbyte_ops::best::Best;
use halfbyte_ops::update::{Kept, Step};
use halfbyte_ops::{
    Attention, Backend, Buffer, Cache, Fresh, Heads, HeadsGradient, Keep, Luck, Matrix, Next, Norm,
    OutputGradient, Product, Result, Rows, Sight, Tallies, Vector, Weight, WeightRows,
};

use crate::{
    Cuda, accumulate, attend, attend_gradient, best, copies, embed, gated, heads, heads_gradient, library,
    linear, loss, product_gradients, profile, recording, residual, rms_norm, rope, row_gradients, tallies,
    update, weight,
};

impl Backend for Cuda {
    fn describe(&self) -> String {
        let (major, minor) = self.device.properties.capability;
        let products = self.device.products();
        format!("{}, sm_{major}{minor}, bf16 tensor cores, products: {products}", self.device.properties.name)
    }

    fn exact_products(&self) -> bool {
        false
    }

    fn write(&mut self, to: Buffer, values: &[f32]) -> Result<()> {
        copies::write(self, to, values)
    }

    fn read(&mut self, from: Rows, values: &mut [f32]) -> Result<()> {
        copies::read(self, from, values)
    }

    fn read_bytes(&mut self, from: Buffer, bytes: &mut [u8]) -> Result<()> {
        copies::read_bytes(self, from, bytes)
    }

    fn write_bytes(&mut self, to: Buffer, bytes: &[u8]) -> Result<()> {
        copies::write_bytes(self, to, bytes)
    }

    fn write_weight(&mut self, to: &Weight, first_row: usize, rows: WeightRows<'_>) -> Result<()> {
        weight::write(self, to, first_row, rows)
    }

    fn read_row(&mut self, from: &Weight, row: usize, codes: &mut [u8], scales: &mut [u8]) -> Result<f32> {
        weight::read_row(self, from, row, codes, scales)
    }

    fn embed(&mut self, tokens: &[u32], table: &Weight, out: Rows) -> Result<()> {
        embed::forward(self, tokens, table, out)
    }

    fn embed_gradient(&mut self, tokens: &[u32], first: usize, dy: Rows, dtable: Rows) -> Result<()> {
        row_gradients::embed(self, tokens, first, dy, dtable)
    }

    fn rms_norm(&mut self, x: Rows, gain: Vector, eps: f32, out: Rows) -> Result<()> {
        rms_norm::forward(self, Norm { x, rounded: None, gain, eps, out })
    }

    fn rounds_residual(&self) -> bool {
        true
    }

    fn norm(&mut self, norm: Norm) -> Result<()> {
        rms_norm::forward(self, norm)
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
        row_gradients::rms_norm(self, x, gain, eps, dy, (dx, None), dgain)
    }

    fn rms_norm_gradient_narrow(
        &mut self,
        x: Rows,
        gain: Vector,
        eps: f32,
        dy: Rows,
        [dx, narrow]: [Rows; 2],
        dgain: Vector,
    ) -> Result<()> {
        row_gradients::rms_norm(self, x, gain, eps, dy, (dx, Some(narrow)), dgain)
    }

    fn linear(&mut self, x: Rows, products: &[Product]) -> Result<()> {
        linear::forward(self, x, products)
    }

    fn normed_linear(&mut self, norm: Norm, products: &[Product]) -> Result<()> {
        linear::normed(self, norm, products)
    }

    fn linear_input_gradient(&mut self, dy: Rows, weight: &Weight, dx: Rows, added: bool) -> Result<()> {
        product_gradients::linear_input(self, dy, weight, dx, added)
    }

    fn linear_input_gradients(&mut self, of: &[OutputGradient], dx: Rows) -> Result<()> {
        product_gradients::linear_inputs(self, of, dx)
    }

    fn linear_weight_gradient(
        &mut self,
        dy: Rows,
        x: Rows,
        exact: bool,
        first: usize,
        dw: Rows,
    ) -> Result<()> {
        product_gradients::linear_weight(self, dy, x, exact, first, dw)
    }

    fn round_gradients(&mut self, luck: Option<Luck>) {
        self.luck = luck;
    }

    fn bias_gradient(&mut self, dy: Rows, db: Vector) -> Result<()> {
        row_gradients::bias(self, dy, db)
    }

    fn rope_gradient(&mut self, dx: Rows, head_dim: usize, turns: Rows) -> Result<()> {
        row_gradients::rope(self, dx, head_dim, turns)
    }

    fn rope(&mut self, x: Rows, head_dim: usize, turns: Rows) -> Result<()> {
        rope::forward(self, x, head_dim, turns)
    }

    fn heads(
        &mut self,
        queries: Heads,
        keys: Heads,
        eps: f32,
        turns: Rows,
        keep: Option<Keep<'_>>,
    ) -> Result<()> {
        heads::forward(self, queries, keys, eps, turns, keep)
    }

    fn narrow_gradients(&self, tokens: usize) -> bool {
        library::narrow_gradients(self, tokens)
    }

    fn narrow_heads(&self, tokens: usize, head_dim: usize) -> bool {
        self.device.narrow_heads_from(head_dim).is_some_and(|from| tokens >= from)
    }

    fn heads_gradient(
        &mut self,
        queries: HeadsGradient,
        keys: HeadsGradient,
        eps: f32,
        turns: Rows,
    ) -> Result<()> {
        heads_gradient::run(self, queries, keys, eps, turns)
    }

    fn store(&mut self, keys: Rows, values: Rows, start: usize, cache: &Cache) -> Result<()> {
        attend::store(self, keys, values, start, cache)
    }

    fn attend(&mut self, q: Rows, cache: &Cache, sight: Sight, out: Rows) -> Result<()> {
        attend::forward(self, q, cache, sight, out)
    }

    fn attend_samples(&mut self, of: &Attention<'_>, cache: &Cache, out: Rows) -> Result<()> {
        attend::samples(self, of, cache, out)
    }

    fn heads_attend(&mut self, of: Fresh<'_>, window: Option<usize>, out: Rows) -> Result<()> {
        attend::fresh(self, of, window, out)
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
        attend_gradient::run(self, of, out, dout, dq, dk, dv)
    }

    fn clear(&mut self, out: Rows) -> Result<()> {
        residual::clear(self, out)
    }

    fn copy(&mut self, x: Rows, out: Rows) -> Result<()> {
        residual::copy(self, x, out)
    }

    fn add(&mut self, x: Rows, out: Rows) -> Result<()> {
        residual::add(self, x, out)
    }

    fn gated(
        &mut self,
        x: Rows,
        gate: Matrix,
        up: Matrix,
        kept: Option<(Rows, Rows)>,
        out: Rows,
    ) -> Result<()> {
        gated::forward(self, x, gate, up, kept, out)
    }

    fn normed_gated(
        &mut self,
        norm: Norm,
        gate: Matrix,
        up: Matrix,
        kept: Option<(Rows, Rows)>,
        out: Rows,
    ) -> Result<()> {
        gated::normed(self, norm, gate, up, kept, out)
    }

    fn gated_gradient(
        &mut self,
        dy: Rows,
        down: &Weight,
        kept: (Rows, Rows),
        dgate: Rows,
        dup: Rows,
    ) -> Result<()> {
        product_gradients::gated(self, dy, down, kept, dgate, dup)
    }

    fn again(&mut self, next: &Next<'_>) -> Result<bool> {
        recording::again(self, next)
    }

    fn recorded(&mut self, whole: bool) -> Result<bool> {
        recording::end(self, whole)
    }

    fn best(&mut self, x: Rows, best: &mut [Best]) -> Result<bool> {
        best::find(self, x, best)
    }

    fn loss(&mut self, logits: Rows, first: usize, targets: &[u32], state: Rows) -> Result<()> {
        loss::forward(self, logits, first, targets, state)
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
        loss::exponentials(self, logits, first, targets, state, out, sums)
    }

    fn loss_input_gradient(
        &mut self,
        targets: &[u32],
        state: Rows,
        weight: f32,
        of_targets: Rows,
        dx: Rows,
    ) -> Result<()> {
        loss::input_gradient(self, targets, state, weight, of_targets, dx)
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
        loss::gradient(self, logits, first, targets, state, weight, out)
    }

    fn accumulate(&mut self, gradient: Rows, first: usize, to: &Stored, share: &Share) -> Result<()> {
        accumulate::add(self, gradient, first, to, share)
    }

    fn accumulated(&mut self, from: &Stored, first: usize, factor: f32, out: Rows) -> Result<()> {
        accumulate::read(self, from, first, factor, out)
    }

    fn accumulated_squares(&mut self, of: &Stored) -> Result<f64> {
        accumulate::squares(self, of)
    }

    fn update(&mut self, of: &Weight, first: usize, gradient: Rows, kept: &Kept, step: &Step) -> Result<()> {
        update::weight(self, of, first, gradient, kept, step)
    }

    fn update_vector(&mut self, of: Vector, gradient: Rows, kept: &Kept, step: &Step) -> Result<()> {
        update::vector(self, of, gradient, kept, step)
    }

    fn tallies(&mut self) -> Result<Tallies> {
        tallies::read(self)
    }

    fn profile(&mut self) -> Result<Vec<(&'static str, Duration)>> {
        profile::read(self)
    }
}
