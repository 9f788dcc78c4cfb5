//! A layer's weights and cache as handles.

use halfbyte_checkpoint::{Architecture, Encoding, LayerTensor, TensorName};
use halfbyte_ops::tensor::KEYS;
use halfbyte_ops::{Buffer, Cache, Matrix, Rows, Vector, Weight, WeightFormat};
use halfbyte_plan::{Name, Plan, Settings};

use crate::error::{Error, Result};

/// One layer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layer {
    pub(crate) input_norm: Vector,
    pub(crate) q: Matrix,
    pub(crate) k: Matrix,
    pub(crate) v: Matrix,
    pub(crate) q_norm: Option<Vector>,
    pub(crate) k_norm: Option<Vector>,
    pub(crate) o: Matrix,
    pub(crate) post_norm: Vector,
    pub(crate) gate: Matrix,
    pub(crate) up: Matrix,
    pub(crate) down: Matrix,
    /// The first lane's.
    pub(crate) cache: Cache,
    pub(crate) window: Option<usize>,
}

impl Layer {
    /// Keys and values of one lane; the lanes lie one after the other.
    pub(crate) fn cache_of(&self, lane: usize) -> Cache {
        let Buffer { offset, bytes } = self.cache.buffer;
        Cache { buffer: Buffer { offset: offset + lane * bytes, bytes }, ..self.cache }
    }

    /// Whether all that reads the residual's norms rounds them, so that the residual may be rounded before.
    pub(crate) fn rounds_residual(&self) -> bool {
        let takers = [self.q, self.k, self.v, self.gate, self.up];
        takers.iter().all(|taker| taker.weight.format != WeightFormat::F32)
    }

    /// Where gate's or up's products, and then their gradients, are kept for the way back: narrow, as products take
    /// them, unless something wants them in f32.
    pub(crate) fn mixed(&self, rows: Rows) -> Rows {
        let (gate, up) = (self.gate, self.up);
        let wide = gate.bias.is_some() || up.bias.is_some() || gate.weight.format == WeightFormat::F32;
        if wide || gate.weight.format != up.weight.format { rows } else { rows.narrow() }
    }
}

/// Finds handles by name.
pub(crate) struct Handles<'a> {
    pub(crate) architecture: &'a Architecture,
    pub(crate) plan: &'a Plan,
    pub(crate) encoding: &'a dyn Fn(TensorName) -> Option<Encoding>,
    /// Whether one cache serves all layers: training fills it anew for every sample.
    pub(crate) one_cache: bool,
}

impl Handles<'_> {
    /// Embedding and head, which may be one.
    pub(crate) fn tables(&self) -> Result<(Weight, Weight)> {
        let embedding = self.weight(TensorName::Embedding)?;
        let head = if self.architecture.tied { embedding } else { self.weight(TensorName::Head)? };
        Ok((embedding, head))
    }

    pub(crate) fn buffer(&self, name: Name) -> Result<Buffer> {
        self.plan.buffer(name).ok_or_else(|| Error::Unplanned(name.to_string()))
    }

    pub(crate) fn vector(&self, name: TensorName) -> Result<Vector> {
        Ok(Vector { buffer: self.buffer(Name::Tensor(name))?, len: self.architecture.shape(name)[0] })
    }

    pub(crate) fn weight(&self, name: TensorName) -> Result<Weight> {
        let shape = self.architecture.shape(name);
        Ok(Weight {
            buffer: self.buffer(Name::Tensor(name))?,
            rows: shape[0],
            columns: shape[1],
            format: self.plan.settings.weights.format(name, (self.encoding)(name)),
        })
    }

    pub(crate) fn layer(&self, index: usize) -> Result<Layer> {
        use LayerTensor::*;
        let name = |tensor| TensorName::Layer(index, tensor);
        let optional = |tensor| self.architecture.has(tensor).then(|| self.vector(name(tensor))).transpose();
        let linear = |weight, bias| -> Result<Matrix> {
            Ok(Matrix { weight: self.weight(name(weight))?, bias: optional(bias)? })
        };
        let Settings { cache: format, context, .. } = self.plan.settings;
        let (kv_heads, head_dim) = (self.architecture.kv_heads, self.architecture.head_dim);
        let all = self.buffer(Name::Cache(if self.one_cache { 0 } else { index }))?;
        let bytes = Cache::bytes(format, kv_heads, head_dim, context);
        Ok(Layer {
            input_norm: self.vector(name(InputNorm))?,
            q: linear(Q, QBias)?,
            k: linear(K, KBias)?,
            v: linear(V, VBias)?,
            q_norm: optional(QNorm)?,
            k_norm: optional(KNorm)?,
            o: linear(O, OBias)?,
            post_norm: self.vector(name(PostNorm))?,
            gate: linear(Gate, GateBias)?,
            up: linear(Up, UpBias)?,
            down: linear(Down, DownBias)?,
            cache: Cache {
                buffer: Buffer { bytes, ..all },
                format,
                kv_heads,
                head_dim,
                capacity: context.next_multiple_of(KEYS),
            },
            window: self.architecture.sliding_window[index],
        })
    }
}
