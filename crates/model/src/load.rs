//! Weights from the file to the device: read, quantise where asked, lay out.
//!
//! file -> rows of f32 (threads) -> codes and scales (same threads) -> device (one thread).
//! A few megabytes are on their way at any time, whatever the model's size.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::sync_channel;

use halfbyte_checkpoint::{Checkpoint, Tensor, TensorName};
use halfbyte_formats::int8_block;
use halfbyte_formats::nvfp4::{self, Scales};
use halfbyte_ops::tensor::PANEL;
use halfbyte_ops::{Backend, Buffer, Weight, WeightFormat, WeightRows};
use halfbyte_plan::{LOADING_VALUES, Name, Plan};

use crate::error::{Error, Result};

/// Encoded rows on their way to the device.
struct Parcel {
    name: TensorName,
    first_row: usize,
    content: Content,
}

pub(crate) enum Content {
    Values(Vec<f32>),
    Int8 { codes: Vec<i8>, scales: Vec<u8> },
    Nvfp4 { codes: Vec<u8>, scales: Vec<u8>, global: f32 },
}

/// Writes every planned tensor of the checkpoint; `progress` hears bytes-worth of parameters done.
pub fn load<B: Backend>(
    backend: &mut B,
    checkpoint: &Checkpoint,
    plan: &Plan,
    scales: Scales,
    progress: &mut dyn FnMut(u64),
) -> Result<()> {
    let planned = plan.buffers.iter().filter_map(|buffer| match buffer.name {
        Name::Tensor(name) => checkpoint.find(name),
        _ => None,
    });
    let tensors: Vec<&Tensor> = planned.collect();
    let next = AtomicUsize::new(0);
    let threads = plan.settings.threads.max(1);
    std::thread::scope(|scope| {
        let (sender, receiver) = sync_channel::<Result<Parcel>>(threads);
        for _ in 0..threads {
            let (sender, tensors, next) = (sender.clone(), &tensors, &next);
            scope.spawn(move || {
                while let Some(tensor) = tensors.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let send = &mut |parcel| sender.send(Ok(parcel)).is_ok();
                    if let Err(error) = read(checkpoint, tensor, plan, scales, send) {
                        let _ = sender.send(Err(error));
                        return;
                    }
                }
            });
        }
        drop(sender);
        for parcel in receiver {
            progress(deliver(backend, checkpoint, plan, parcel?)?);
        }
        Ok(())
    })
}

fn format_of(tensor: &Tensor, plan: &Plan) -> WeightFormat {
    plan.settings.weights.format(tensor.name, Some(tensor.encoding))
}

/// Reads one tensor in runs of rows; stops when nobody listens any more.
fn read(
    checkpoint: &Checkpoint,
    tensor: &Tensor,
    plan: &Plan,
    scales: Scales,
    send: &mut dyn FnMut(Parcel) -> bool,
) -> Result<()> {
    let (rows, columns) = (tensor.rows(), tensor.columns());
    let run = (LOADING_VALUES / columns.max(1) / PANEL * PANEL).max(PANEL);
    let format = format_of(tensor, plan);
    let quantise = tensor.shape.len() == 2 && format == WeightFormat::Nvfp4;
    let stored = quantise && tensor.encoding.is_nvfp4();
    let global = match (quantise, stored) {
        (false, _) => 1.0,
        (true, true) => checkpoint.nvfp4_global(tensor)?,
        (true, false) => nvfp4::tensor_scale(amax(checkpoint, tensor, run)?, scales),
    };
    for first_row in (0..rows).step_by(run) {
        let range = first_row..rows.min(first_row + run);
        let content = if stored {
            let mut codes = vec![0; range.len() * columns / 2];
            let mut scales = vec![0; range.len() * columns / nvfp4::BLOCK];
            checkpoint.read_nvfp4(tensor, range, &mut codes, &mut scales)?;
            Content::Nvfp4 { codes, scales, global }
        } else {
            let mut values = vec![0.0; range.len() * columns];
            checkpoint.read_f32(tensor, range, &mut values)?;
            encode(values, columns, tensor.shape.len(), format, global, scales)
        };
        let name = tensor.name;
        if !send(Parcel { name, first_row, content }) {
            return Ok(());
        }
    }
    Ok(())
}

fn amax(checkpoint: &Checkpoint, tensor: &Tensor, run: usize) -> Result<f32> {
    let (rows, columns) = (tensor.rows(), tensor.columns());
    let mut values = vec![0.0; run.min(rows) * columns];
    let mut largest = 0.0f32;
    for first in (0..rows).step_by(run) {
        let range = first..rows.min(first + run);
        let values = &mut values[..range.len() * columns];
        checkpoint.read_f32(tensor, range, values)?;
        largest = values.iter().fold(largest, |a, x| a.max(x.abs()));
    }
    Ok(largest)
}

pub(crate) fn encode(
    values: Vec<f32>,
    columns: usize,
    rank: usize,
    format: WeightFormat,
    global: f32,
    scales: Scales,
) -> Content {
    let (rows, blocks) = (values.len() / columns, columns.div_ceil(nvfp4::BLOCK));
    match format {
        WeightFormat::Int8 if rank == 2 => {
            let mut codes = vec![0; rows * columns];
            let mut block_scales = vec![0; rows * blocks];
            let outputs = codes.chunks_exact_mut(columns).zip(block_scales.chunks_exact_mut(blocks));
            for (x, (codes, scales)) in values.chunks_exact(columns).zip(outputs) {
                int8_block::encode_row(x, codes, scales);
            }
            Content::Int8 { codes, scales: block_scales }
        }
        WeightFormat::Nvfp4 if rank == 2 => {
            let half = columns.div_ceil(2);
            let mut codes = vec![0; rows * half];
            let mut block_scales = vec![0; rows * blocks];
            let outputs = codes.chunks_exact_mut(half).zip(block_scales.chunks_exact_mut(blocks));
            for (x, (codes, block_scales)) in values.chunks_exact(columns).zip(outputs) {
                nvfp4::encode_row(x, global, scales, codes, block_scales);
            }
            Content::Nvfp4 { codes, scales: block_scales, global }
        }
        _ => Content::Values(values),
    }
}

/// Writes a parcel; gives the parameters it held.
pub(crate) fn handle(plan: &Plan, name: TensorName) -> Result<Buffer> {
    plan.buffer(Name::Tensor(name)).ok_or_else(|| Error::Unplanned(name.to_string()))
}

fn deliver<B: Backend>(backend: &mut B, checkpoint: &Checkpoint, plan: &Plan, parcel: Parcel) -> Result<u64> {
    let tensor = checkpoint.find(parcel.name).ok_or_else(|| Error::Unplanned(parcel.name.to_string()))?;
    let buffer = handle(plan, tensor.name)?;
    if let (Content::Values(values), 1) = (&parcel.content, tensor.shape.len()) {
        backend.write(buffer, values)?;
        return Ok(values.len() as u64);
    }
    let weight =
        Weight { buffer, rows: tensor.rows(), columns: tensor.columns(), format: format_of(tensor, plan) };
    write_rows(backend, &weight, parcel.first_row, &parcel.content)
}

/// Writes encoded rows of a weight; gives the parameters they held.
pub(crate) fn write_rows<B: Backend>(
    backend: &mut B,
    weight: &Weight,
    first_row: usize,
    content: &Content,
) -> Result<u64> {
    let (rows, count) = match content {
        Content::Values(values) => (WeightRows::Values(values), values.len()),
        Content::Int8 { codes, scales } => (WeightRows::Int8 { codes, scales }, codes.len()),
        Content::Nvfp4 { codes, scales, global } => {
            (WeightRows::Nvfp4 { codes, scales, global: *global }, codes.len() * 2)
        }
    };
    backend.write_weight(weight, first_row, rows)?;
    Ok(count as u64)
}
