//! A layer backwards: computed again from what was kept of the residual unless all was, then the stages in mirrored
//! order. The gradient of what leaves the layer becomes the gradient of what entered it, in one buffer.

use halfbyte_checkpoint::{LayerTensor, TensorName};
use halfbyte_ops::learn::Factors;
use halfbyte_ops::{
    Backend, HeadsGradient, Luck, Matrix, OutputGradient, Rows, Vector, Weight, WeightFormat,
};
use halfbyte_plan::{Recompute, Value};

use super::{Learner, Training};
use crate::block::{self, Pass};
use crate::decoder::Observer;
use crate::error::Result;
use crate::layer::Layer;

/// A matrix with what came in and the gradient of what came out.
struct Used {
    weight: LayerTensor,
    bias: LayerTensor,
    matrix: Matrix,
    x: Rows,
    /// As products take it.
    dy: Rows,
    /// In f32, for the bias.
    dy_wide: Rows,
}

/// Whether the gradient of a product is read by more than products that round it.
pub(super) fn wants_f32(matrix: Matrix) -> bool {
    matrix.bias.is_some() || matrix.weight.format == WeightFormat::F32
}

/// Gradients are narrow where heads are.
fn as_heads(rows: Rows, heads: Rows) -> Rows {
    if heads.narrow { rows.narrow() } else { rows }
}

/// What decides the roundings in gradients of products with a tensor.
fn luck<B: Backend>(index: usize, tensor: LayerTensor, weight: &Weight, of: &dyn Learner<B>) -> Option<Luck> {
    let rounded = weight.format == WeightFormat::Nvfp4;
    rounded.then(|| of.luck(TensorName::Layer(index, tensor))).flatten()
}

fn output_gradient<B: Backend>(
    index: usize,
    tensor: LayerTensor,
    (dy, matrix): (Rows, Matrix),
    learner: &dyn Learner<B>,
) -> OutputGradient {
    OutputGradient { dy, weight: matrix.weight, luck: luck(index, tensor, &matrix.weight, learner) }
}

impl<B: Backend> Training<B> {
    pub(super) fn layer_back(
        &mut self,
        index: usize,
        pass: &Pass,
        learner: &mut dyn Learner<B>,
    ) -> Result<()> {
        let w = self.layers[index];
        let nobody = &mut Observer::nobody();
        if self.recompute == Recompute::Layer {
            let attended = block::attend(&mut self.backend, &w, pass, nobody)?;
            if !self.rounds {
                block::add_attended(&mut self.backend, attended, &w, pass, nobody)?;
            }
        }
        if self.recompute != Recompute::None {
            block::activate(&mut self.backend, &w, pass, nobody)?;
        }
        self.feed_forward_back(index, &w, pass, learner)?;
        self.attention_back(index, &w, pass, learner)?;
        // Head and embedding are no products that may be rounded.
        self.backend.round_gradients(None);
        Ok(())
    }

    /// The gradients from here on are of products with this tensor.
    fn products_of(&mut self, index: usize, tensor: LayerTensor, weight: &Weight, learner: &dyn Learner<B>) {
        self.backend.round_gradients(luck(index, tensor, weight, learner));
    }

    /// A gradient as a matrix takes it, in `place` if that is not what it is.
    fn taken(&mut self, dy: Rows, matrix: Matrix, place: Rows) -> Result<Rows> {
        let taken = block::input(place, &[matrix]);
        if dy.narrow || !taken.narrow {
            return Ok(dy);
        }
        self.backend.copy(dy, taken)?;
        Ok(taken)
    }

    /// The residual's gradient as a matrix takes it: the norm that it came through last left it so.
    fn residual_taken(&self, d_residual: Rows, matrix: Matrix) -> Rows {
        let narrow = self.rows(Value::DRounded, d_residual.rows, d_residual.columns);
        if block::input(narrow, &[matrix]).narrow { narrow.narrow() } else { d_residual }
    }

    /// The matrix that takes the residual's gradient as it comes back through a norm.
    fn before(&self, norm: TensorName) -> Option<Matrix> {
        match norm {
            TensorName::Layer(index, LayerTensor::PostNorm) => Some(self.layers[index].o),
            TensorName::Layer(index, _) => Some(self.layers[index.checked_sub(1)?].down),
            _ => self.layers.last().map(|layer| layer.down),
        }
    }

    fn feed_forward_back(
        &mut self,
        index: usize,
        w: &Layer,
        pass: &Pass,
        learner: &mut dyn Learner<B>,
    ) -> Result<()> {
        use LayerTensor::{Down, DownBias, Gate, GateBias, PostNorm, Up, UpBias};
        let at = &pass.at;
        let (middle, tokens) = (at.middle, at.middle.rows);
        let d_residual = self.rows(Value::DResidual, tokens, middle.columns);
        let d_normed = self.rows(Value::DNormed, tokens, middle.columns);
        let dy = self.residual_taken(d_residual, w.down);
        // Their gradients take the places of the products.
        let (gate, up) = (at.gate, at.up);
        self.products_of(index, Down, &w.down.weight, learner);
        self.backend.gated_gradient(dy, &w.down.weight, (gate, up), gate, up)?;
        let x = block::input(at.activated, &[w.down]);
        let down = Used { weight: Down, bias: DownBias, matrix: w.down, x, dy, dy_wide: d_residual };
        self.hand_out(index, &down, learner)?;
        let both = [(Gate, gate, w.gate), (Up, up, w.up)];
        let both = both.map(|(tensor, dy, matrix)| output_gradient(index, tensor, (dy, matrix), learner));
        self.backend.linear_input_gradients(&both, d_normed)?;
        let x = block::input(at.post_normed, &[w.gate, w.up]);
        let gate = Used { weight: Gate, bias: GateBias, matrix: w.gate, x, dy: gate, dy_wide: gate };
        self.hand_out(index, &gate, learner)?;
        let up = Used { weight: Up, bias: UpBias, matrix: w.up, x, dy: up, dy_wide: up };
        self.hand_out(index, &up, learner)?;
        let norm = (TensorName::Layer(index, PostNorm), w.post_norm);
        self.norm_back(middle, norm, pass.norm_eps, d_normed, d_residual, learner)
    }

    fn attention_back(
        &mut self,
        index: usize,
        w: &Layer,
        pass: &Pass,
        learner: &mut dyn Learner<B>,
    ) -> Result<()> {
        use LayerTensor::{InputNorm, K, KBias, O, OBias, Q, QBias, V, VBias};
        let at = &pass.at;
        let (entered, tokens) = (at.entered, at.entered.rows);
        let d_residual = self.rows(Value::DResidual, tokens, entered.columns);
        let d_normed = self.rows(Value::DNormed, tokens, entered.columns);
        let d_attended = as_heads(self.rows(Value::DAttended, tokens, at.q.columns), at.q);
        let dy = self.residual_taken(d_residual, w.o);
        self.products_of(index, O, &w.o.weight, learner);
        self.backend.linear_input_gradient(dy, &w.o.weight, d_attended, false)?;
        let x = pass.attended(w.o);
        let o = Used { weight: O, bias: OBias, matrix: w.o, x, dy, dy_wide: d_residual };
        self.hand_out(index, &o, learner)?;
        let [q, k, v] = self.heads_back(index, w, pass, d_attended, learner)?;
        let x = block::input(at.normed, &[w.q, w.k, w.v]);
        let used = |weight, bias, matrix, dy| Used { weight, bias, matrix, x, dy, dy_wide: dy };
        let mut all = [used(Q, QBias, w.q, q.0), used(K, KBias, w.k, k.0), used(V, VBias, w.v, v.0)];
        for (used, place) in all.iter_mut().zip([q.1, k.1, v.1]) {
            used.dy = self.taken(used.dy_wide, used.matrix, place)?;
        }
        let each = all.each_ref();
        let each = each.map(|used| output_gradient(index, used.weight, (used.dy, used.matrix), learner));
        self.backend.linear_input_gradients(&each, d_normed)?;
        for used in &all {
            self.hand_out(index, used, learner)?;
        }
        let norm = (TensorName::Layer(index, InputNorm), w.input_norm);
        self.norm_back(entered, norm, pass.norm_eps, d_normed, d_residual, learner)
    }

    /// Through attention, rope and the norms of queries and keys: gradients of the q, k and v products, each with a
    /// place where it may be made narrow.
    fn heads_back(
        &mut self,
        index: usize,
        w: &Layer,
        pass: &Pass,
        d_attended: Rows,
        learner: &mut dyn Learner<B>,
    ) -> Result<[(Rows, Rows); 3]> {
        let at = &pass.at;
        let tokens = d_attended.rows;
        let gradient = |value, of: Rows| as_heads(self.rows(value, tokens, of.columns), of);
        let (dq, dk, dv) = (gradient(Value::DQ, at.q), gradient(Value::DK, at.k), gradient(Value::DV, at.v));
        let between = gradient(Value::DRaw, at.q);
        self.backend.attend_gradient(&pass.attention(w), pass.attended(w.o), d_attended, dq, dk, dv)?;
        let gains = self.rows(Value::Gradient, 2, pass.head_dim);
        if w.q_norm.is_some() || w.k_norm.is_some() {
            self.backend.clear(gains)?;
        }
        // What attention was computed from has been used for the last time: there is room.
        let [room_q, room_k] = [at.q, at.k].map(|used| Rows::new(used.buffer, tokens, used.columns));
        let back = |matrix, raw, norm: Option<Vector>, gradient: Rows, dy, used: Rows| {
            let norm = norm.map(|gain| (gain, Vector { buffer: gradient.buffer, len: gain.len }));
            let dx = match (wants_f32(matrix), norm) {
                (false, _) => used.narrow(),
                (true, Some(_)) => used,
                (true, None) => dy,
            };
            HeadsGradient { raw, norm, dy, between, dx }
        };
        let q = back(w.q, at.q_raw, w.q_norm, gains.slice(0, 1), dq, room_q);
        let k = back(w.k, at.k_raw, w.k_norm, gains.slice(1, 1), dk, room_k);
        self.backend.heads_gradient(q, k, pass.norm_eps, at.turns)?;
        for (tensor, of, row) in [(LayerTensor::QNorm, q, 0), (LayerTensor::KNorm, k, 1)] {
            let name = TensorName::Layer(index, tensor);
            if of.norm.is_some() && learner.wants(name) {
                learner.learn(&mut self.backend, name, 0, gains.slice(row, 1))?;
            }
        }
        let other = |of: HeadsGradient, used| (of.dx, if of.dx == of.dy { used } else { of.dy });
        Ok([other(q, room_q), other(k, room_k), (dv, at.v)])
    }

    /// A norm backwards: dx is added to, the gain's gradient handed out.
    pub(super) fn norm_back(
        &mut self,
        x: Rows,
        (name, gain): (TensorName, Vector),
        eps: f32,
        dy: Rows,
        dx: Rows,
        learner: &mut dyn Learner<B>,
    ) -> Result<()> {
        let gradient = self.rows(Value::Gradient, 1, gain.len);
        self.backend.clear(gradient)?;
        let d_gain = Vector { buffer: gradient.buffer, len: gain.len };
        match self.before(name).map(|matrix| self.residual_taken(dx, matrix)) {
            Some(taken) if taken != dx => {
                self.backend.rms_norm_gradient_narrow(x, gain, eps, dy, [dx, taken], d_gain)?;
            }
            _ => self.backend.rms_norm_gradient(x, gain, eps, dy, dx, d_gain)?,
        }
        match learner.wants(name) {
            true => learner.learn(&mut self.backend, name, 0, gradient),
            false => Ok(()),
        }
    }

    /// Gradients of a matrix and its bias. The input's gradient has been computed before.
    fn hand_out(&mut self, index: usize, used: &Used, learner: &mut dyn Learner<B>) -> Result<()> {
        let [weight, bias] = [used.weight, used.bias].map(|tensor| TensorName::Layer(index, tensor));
        if learner.wants(weight) {
            self.products_of(index, used.weight, &used.matrix.weight, learner);
            let exact = used.matrix.weight.format == WeightFormat::F32;
            let factors = Factors { first: 0, dy: used.dy, x: used.x, exact, embedded: None };
            let room = self.buffer(Value::Gradient);
            learner.learn_from(&mut self.backend, weight, &factors, room)?;
        }
        if let Some(vector) = used.matrix.bias.filter(|_| learner.wants(bias)) {
            let gradient = self.rows(Value::Gradient, 1, vector.len);
            self.backend.clear(gradient)?;
            let d_bias = Vector { buffer: gradient.buffer, len: vector.len };
            self.backend.bias_gradient(used.dy_wide, d_bias)?;
            learner.learn(&mut self.backend, bias, 0, gradient)?;
        }
        Ok(())
    }
}
