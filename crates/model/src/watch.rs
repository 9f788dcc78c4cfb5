//! Looking at the stages of a pass from outside: for `compare`, and to name a first bad value.

use halfbyte_plan::Stage;

/// Sees every stage's output.
pub trait Watch {
    /// `values` are rows of `columns` for the tokens from `position` on.
    fn see(&mut self, layer: Option<usize>, stage: Stage, position: usize, columns: usize, values: &[f32]);
}

/// Remembers the first stage with a value that is not finite.
#[derive(Default)]
pub struct FirstBad {
    /// Layer, stage, position.
    pub found: Option<(Option<usize>, Stage, usize)>,
}

impl Watch for FirstBad {
    fn see(&mut self, layer: Option<usize>, stage: Stage, position: usize, columns: usize, values: &[f32]) {
        if self.found.is_some() {
            return;
        }
        if let Some(index) = values.iter().position(|x| !x.is_finite()) {
            self.found = Some((layer, stage, position + index / columns));
        }
    }
}
