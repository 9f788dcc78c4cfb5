//! The layout of weights: 64 bytes (f32 scale, rest free), then panels of 16 rows, each row in one piece.
//!
//! | format | panel |
//! |---|---|
//! | nvfp4 | codes `[16 rows][columns / 2]`, low nibble first, then E4M3 scales `[16 rows][columns / 16]` |
//! | int8 | codes `[16 rows][columns]`, then E8M0 scales `[16 rows][columns / 16]` |
//! | bf16, f32 | values `[16 rows][columns]` |
//!
//! Columns are padded to 64 and rows to 16, with zeros. `kernels/common.cuh` reads this.

use std::ops::Range;

use halfbyte_formats::bf16;
use halfbyte_ops::tensor::{BLOCK, PANEL, UNIT};
use halfbyte_ops::{Result, Weight, WeightFormat, WeightRows};

use crate::Cuda;
use crate::arena::bytes_of;
use crate::ring::PIECE;

pub(crate) use halfbyte_ops::panels::HEADER;

/// Bytes of the parts of a panel.
#[derive(Clone, Copy)]
struct Panel {
    /// Codes (values) of one row.
    codes: usize,
    /// Scales of one row.
    scales: usize,
}

impl Panel {
    fn of(weight: &Weight) -> Panel {
        let width = weight.columns.next_multiple_of(UNIT);
        let (codes, scales) = match weight.format {
            WeightFormat::F32 => (width * 4, 0),
            WeightFormat::Bf16 => (width * 2, 0),
            WeightFormat::Int8 => (width, width / BLOCK),
            WeightFormat::Nvfp4 => (width / 2, width / BLOCK),
        };
        Panel { codes, scales }
    }

    fn bytes(self) -> usize {
        PANEL * (self.codes + self.scales)
    }

    /// Where the codes of a row begin, and its scales, in the weight.
    fn row(self, row: usize) -> (usize, usize) {
        let (panel, lane) = (HEADER + row / PANEL * self.bytes(), row % PANEL);
        (panel + lane * self.codes, panel + PANEL * self.codes + lane * self.scales)
    }
}

/// The number that kernels know a format by.
pub(crate) fn code(format: WeightFormat) -> u32 {
    match format {
        WeightFormat::F32 => 0,
        WeightFormat::Bf16 => 1,
        WeightFormat::Int8 => 2,
        WeightFormat::Nvfp4 => 3,
    }
}

pub(crate) fn write(cuda: &mut Cuda, to: &Weight, first_row: usize, rows: WeightRows<'_>) -> Result<()> {
    let start = cuda.changed_weight("write_weight", to)?;
    let count = to.check_rows(first_row, rows)?;
    if let WeightRows::Nvfp4 { global, .. } = rows {
        cuda.copy_in(start, bytes_of(&[global]))?;
    }
    let panel = Panel::of(to);
    let together = (PIECE / panel.bytes()).max(1) * PANEL;
    for first in (0..count).step_by(together) {
        let here = first..count.min(first + together);
        let bytes = here.len().div_ceil(PANEL) * panel.bytes();
        let at = start.add(HEADER + (first_row + first) / PANEL * panel.bytes());
        let fill = |place: &mut [u8]| put_panels(to, rows, here, place);
        if bytes <= PIECE {
            cuda.fill_in(at, bytes, fill)?;
        } else {
            let mut one = vec![0; bytes];
            fill(&mut one);
            cuda.copy_in(at, &one)?;
        }
    }
    Ok(())
}

/// Lays some of the rows out, as panels from the first on.
fn put_panels(weight: &Weight, rows: WeightRows<'_>, some: Range<usize>, to: &mut [u8]) {
    let panel = Panel::of(weight);
    if !some.len().is_multiple_of(PANEL) || !weight.columns.is_multiple_of(UNIT) {
        to.fill(0);
    }
    for (place, row) in some.enumerate() {
        let (codes, scales) = panel.row(place);
        put_codes(weight, rows, row, &mut to[codes - HEADER..]);
        put_scales(weight, rows, row, &mut to[scales - HEADER..]);
    }
}

fn put_codes(weight: &Weight, rows: WeightRows<'_>, row: usize, to: &mut [u8]) {
    let columns = weight.columns;
    match rows {
        WeightRows::Values(x) => {
            let x = &x[row * columns..][..columns];
            if weight.format == WeightFormat::F32 {
                to[..columns * 4].copy_from_slice(bytes_of(x));
            } else {
                for (to, x) in to.as_chunks_mut::<2>().0.iter_mut().zip(x) {
                    *to = bf16::encode(*x).to_le_bytes();
                }
            }
        }
        WeightRows::Int8 { codes, .. } => {
            for (to, code) in to.iter_mut().zip(&codes[row * columns..][..columns]) {
                *to = *code as u8;
            }
        }
        WeightRows::Nvfp4 { codes, .. } => {
            let half = columns.div_ceil(2);
            to[..half].copy_from_slice(&codes[row * half..][..half]);
        }
    }
}

fn put_scales(weight: &Weight, rows: WeightRows<'_>, row: usize, to: &mut [u8]) {
    let blocks = weight.columns.div_ceil(BLOCK);
    if let WeightRows::Int8 { scales, .. } | WeightRows::Nvfp4 { scales, .. } = rows {
        to[..blocks].copy_from_slice(&scales[row * blocks..][..blocks]);
    }
}

pub(crate) fn read_row(
    cuda: &mut Cuda,
    from: &Weight,
    row: usize,
    codes: &mut [u8],
    scales: &mut [u8],
) -> Result<f32> {
    from.check_row(row, codes.len(), scales.len())?;
    let start = cuda.weight("read_row", from)?;
    let (first_code, first_scale) = Panel::of(from).row(row);
    cuda.copy_out(start.add(first_code), codes)?;
    cuda.copy_out(start.add(first_scale), scales)?;
    if from.format != WeightFormat::Nvfp4 {
        return Ok(1.0);
    }
    let mut scale = [0; 4];
    cuda.copy_out(start, &mut scale)?;
    Ok(f32::from_le_bytes(scale))
}
