//! Cosines and sines of positions, as rope takes them.

use halfbyte_checkpoint::Architecture;

/// How fast each pair of channels turns.
pub(crate) struct Angles {
    inverse_frequencies: Vec<f32>,
    factor: f32,
    head_dim: usize,
}

impl Angles {
    pub(crate) fn new(architecture: &Architecture) -> Angles {
        let (frequencies, factor) = architecture.rope.inverse_frequencies(architecture.head_dim);
        Angles {
            inverse_frequencies: frequencies.into_iter().map(|f| f as f32).collect(),
            factor,
            head_dim: architecture.head_dim,
        }
    }

    /// A row for every position: cosines, then sines.
    pub(crate) fn fill(&self, positions: impl Iterator<Item = usize>, values: &mut [f32]) {
        for (position, row) in positions.zip(values.chunks_exact_mut(self.head_dim)) {
            let (cos, sin) = row.split_at_mut(self.head_dim / 2);
            for ((cos, sin), frequency) in cos.iter_mut().zip(sin).zip(&self.inverse_frequencies) {
                // The angle is an f32 product, as the models were trained with.
                let angle = f64::from(frequency * position as f32);
                *cos = angle.cos() as f32 * self.factor;
                *sin = angle.sin() as f32 * self.factor;
            }
        }
    }
}
