//! Weights from no file at all: random numbers of a trained model's size, to measure speed with.

use halfbyte_checkpoint::{Architecture, Encoding};
use halfbyte_formats::nvfp4::Scales;
use halfbyte_formats::philox::Stream;
use halfbyte_ops::tensor::PANEL;
use halfbyte_ops::{Backend, Weight};
use halfbyte_plan::{LOADING_VALUES, Plan};

use crate::error::Result;
use crate::load::{encode, handle, write_rows};

/// Spread of the numbers: about that of trained weights.
const AMPLITUDE: f32 = 0.03;

/// Fills every tensor: norms with ones, the rest with uniform noise.
pub fn fill<B: Backend>(backend: &mut B, architecture: &Architecture, plan: &Plan, seed: u64) -> Result<()> {
    // One run of rows, written again and again: speed does not depend on the values.
    let noise: Vec<f32> = (0..LOADING_VALUES as u64)
        .map(|i| (Stream::new(seed, 0, 0).bits(i) as f32 / 2_147_483_648.0 - 1.0) * AMPLITUDE)
        .collect();
    for name in architecture.tensor_names() {
        let shape = architecture.shape(name);
        let buffer = handle(plan, name)?;
        let [rows, columns] = shape[..] else {
            let bias = name.to_string().ends_with("bias");
            backend.write(buffer, &vec![if bias { 0.0 } else { 1.0 }; shape[0]])?;
            continue;
        };
        let format = plan.settings.weights.format(name, None::<Encoding>);
        let weight = Weight { buffer, rows, columns, format };
        let run = (LOADING_VALUES / columns / PANEL * PANEL).max(PANEL);
        for first in (0..rows).step_by(run) {
            let values: Vec<f32> =
                noise.iter().copied().cycle().take((rows - first).min(run) * columns).collect();
            let content = encode(values, columns, 2, format, AMPLITUDE / 2688.0, Scales::Nearest);
            write_rows(backend, &weight, first, &content)?;
        }
    }
    Ok(())
}
