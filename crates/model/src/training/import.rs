//! A model from a file as it is trained: codes, and beside them what the file had more.
//!
//! Matrices that share a scale when they are exported (q, k, v; gate, up) share it from the start.

use halfbyte_checkpoint::{Checkpoint, LayerTensor, Tensor, TensorName};
use halfbyte_formats::state::{int8, weight};
use halfbyte_formats::{int8_block, nvfp4};
use halfbyte_ops::panels::{Panels, Plane};
use halfbyte_ops::tensor::PANEL;
use halfbyte_ops::update::{Kept, Recipe, padded};
use halfbyte_ops::{Backend, Buffer, Weight, WeightFormat, WeightRows};
use halfbyte_plan::{LOADING_VALUES, Name, Plan};

use crate::error::Result;
use crate::load::handle;

/// Writes every planned tensor, and its remainder or its master; `progress` hears values done.
pub fn import<B: Backend>(
    backend: &mut B,
    checkpoint: &Checkpoint,
    plan: &Plan,
    recipe: &Recipe,
    progress: &mut dyn FnMut(u64),
) -> Result<()> {
    for name in checkpoint.architecture.tensor_names() {
        let Some(tensor) = checkpoint.find(name) else { continue };
        let (rows, columns) = (tensor.rows(), tensor.columns());
        let run = (LOADING_VALUES / columns.max(1) / PANEL * PANEL).max(PANEL);
        let mut values = vec![0.0; run.min(rows) * columns];
        if tensor.shape.len() == 1 {
            checkpoint.read_f32(tensor, 0..rows, &mut values)?;
            backend.write(handle(plan, name)?, &values)?;
            progress(values.len() as u64);
            continue;
        }
        let format = plan.settings.weights.format(name, Some(tensor.encoding));
        let weight = Weight { buffer: handle(plan, name)?, rows, columns, format };
        let remainder = plan.buffer(Name::Remainder(name)).unwrap_or_default();
        let global = match format {
            WeightFormat::Nvfp4 => weight::tensor_scale(shared_amax(checkpoint, name)?, recipe.scales),
            _ => 1.0,
        };
        for first in (0..rows).step_by(run) {
            let range = first..rows.min(first + run);
            let values = &mut values[..range.len() * columns];
            checkpoint.read_f32(tensor, range, values)?;
            write(backend, &weight, remainder, recipe, global, first, values)?;
            progress(values.len() as u64);
        }
    }
    Ok(())
}

/// Those that are exported under one scale.
fn group(name: TensorName) -> Vec<TensorName> {
    use LayerTensor::{Gate, K, Q, Up, V};
    let TensorName::Layer(layer, tensor) = name else { return vec![name] };
    let tensors: &[LayerTensor] = match tensor {
        Q | K | V => &[Q, K, V],
        Gate | Up => &[Gate, Up],
        _ => return vec![name],
    };
    tensors.iter().map(|tensor| TensorName::Layer(layer, *tensor)).collect()
}

fn shared_amax(checkpoint: &Checkpoint, name: TensorName) -> Result<f32> {
    let mut largest = 0.0f32;
    let tensors: Vec<&Tensor> = group(name).into_iter().filter_map(|name| checkpoint.find(name)).collect();
    for tensor in tensors {
        let run = (LOADING_VALUES / tensor.columns().max(1)).max(1);
        for first in (0..tensor.rows()).step_by(run) {
            let range = first..tensor.rows().min(first + run);
            let mut values = vec![0.0; range.len() * tensor.columns()];
            checkpoint.read_f32(tensor, range, &mut values)?;
            largest = values.iter().fold(largest, |a, x| a.max(x.abs()));
        }
    }
    Ok(largest)
}

/// Rows from `first` on.
fn write<B: Backend>(
    backend: &mut B,
    weight: &Weight,
    remainder: Buffer,
    recipe: &Recipe,
    global: f32,
    first: usize,
    values: &[f32],
) -> Result<()> {
    let columns = weight.columns;
    let (rows, width) = (values.len() / columns, padded(columns));
    let bytes = recipe.remainder_bytes(weight.format, 1, columns);
    let mut remainders = vec![0; rows * bytes];
    let mut block_scales = vec![0; rows * width / 16];
    let mut row = vec![0.0; width];
    let parts = || (0..rows).zip(values.chunks_exact(columns));
    match weight.format {
        WeightFormat::Nvfp4 => {
            let mut codes = vec![0; rows * width / 2];
            for (r, x) in parts() {
                row[..columns].copy_from_slice(x);
                let planes = weight::Row {
                    codes: &mut codes[r * width / 2..][..width / 2],
                    scales: &mut block_scales[r * width / 16..][..width / 16],
                    remainders: &mut remainders[r * bytes..][..bytes],
                };
                match recipe.master {
                    None => weight::import_row(&row, global, recipe.scales, recipe.weight, planes),
                    Some(master) => {
                        master.import_row(&mut row, planes.remainders);
                        nvfp4::encode_row(&row, global, recipe.scales, planes.codes, planes.scales);
                    }
                }
            }
            let half = columns.div_ceil(2);
            let codes: Vec<u8> =
                codes.chunks_exact(width / 2).flat_map(|row| &row[..half]).copied().collect();
            let rows = WeightRows::Nvfp4 { codes: &codes, scales: &block_scales, global };
            backend.write_weight(weight, first, rows)?;
        }
        WeightFormat::Int8 => {
            let mut codes = vec![0; rows * width];
            for (r, x) in parts() {
                row[..columns].copy_from_slice(x);
                let planes = int8::Row {
                    codes: &mut codes[r * width..][..width],
                    scales: &mut block_scales[r * width / 16..][..width / 16],
                    remainders: &mut remainders[r * bytes..][..bytes],
                };
                match recipe.master {
                    None => int8::import_row(&row, recipe.table, planes),
                    Some(master) => {
                        master.import_row(&mut row, planes.remainders);
                        int8_block::encode_row(&row, planes.codes, planes.scales);
                    }
                }
            }
            let codes: Vec<i8> = codes.chunks_exact(width).flat_map(|row| &row[..columns]).copied().collect();
            backend.write_weight(weight, first, WeightRows::Int8 { codes: &codes, scales: &block_scales })?;
        }
        WeightFormat::F32 | WeightFormat::Bf16 => {
            backend.write_weight(weight, first, WeightRows::Values(values))?;
        }
    }
    let kept = Kept { remainder, moment: Buffer::default(), second: Buffer::default() };
    let panels =
        Panels { of: weight, kept: &kept, recipe, plane: Plane::Remainder, rows: first..first + rows };
    Ok(backend.write_panels(&panels, &remainders)?)
}
