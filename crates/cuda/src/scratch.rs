//! How much scratch the ops of a run ask for, so that a plan can set it aside.

use crate::{MANY, attend, attend_gradient, library, row_gradients, update};

/// What a run asks of the scratch buffer.
#[derive(Clone, Copy, Debug)]
pub struct ScratchNeed {
    /// Tokens computed together.
    pub tokens: usize,
    /// Query heads.
    pub heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Positions of the cache.
    pub context: usize,
    /// Whether weights are decoded into scratch for products of many tokens ([`crate::Device::decodes_before`]).
    pub decodes_before: bool,
}

impl ScratchNeed {
    /// Bytes of scratch that every op of such a run finds enough.
    pub fn bytes(&self) -> usize {
        let products = if self.decodes_before && self.tokens >= MANY { library::SCRATCH } else { 0 };
        attend::scratch(self.tokens, self.heads, self.head_dim, self.context).max(products)
    }
}

/// What a training step asks of the scratch buffer besides [`ScratchNeed`].
#[derive(Clone, Copy, Debug)]
pub struct TrainingNeed {
    /// Tokens of a batch.
    pub tokens: usize,
    /// Query heads.
    pub heads: usize,
    /// Heads of keys and values.
    pub kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Widest side of a matrix (of the vocabulary: of a chunk).
    pub widest: usize,
    /// Values of a layer's matrices, which are found again on the way back where they are decoded into scratch.
    pub layer: usize,
    /// Whether they are ([`crate::Device::decodes_before`]).
    pub decodes_before: bool,
}

impl TrainingNeed {
    /// Bytes of scratch that every op of such a step finds enough. A norm of heads has a row for each.
    pub fn bytes(&self) -> usize {
        let rows = row_gradients::scratch(self.tokens * self.heads, self.widest);
        let products =
            if self.decodes_before && self.tokens >= MANY { library::scratch(self.layer * 2) } else { 0 };
        attend_gradient::scratch(self.tokens, self.heads, self.kv_heads, self.head_dim)
            .max(products)
            .max(attend::samples_scratch(self.tokens, self.kv_heads, self.head_dim))
            .max(rows)
            .max(update::scratch(self.widest, self.widest))
    }
}
