//! Rows of a weight and of what it learns with as files have them, the same bytes whatever device wrote them. On a device
//! they lie sixteen at a time in a layout of its own, which takes as many bytes:
//!
//! | plane | sixteen rows |
//! |---|---|
//! | weight | codes or values of all rows, then scales of all rows; rows padded to 64 columns |
//! | remainder, moment | row after row, as `update` says |
//!
//! The last sixteen of a weight are whole, zeros behind its last row; those of the others end with it.

use std::ops::Range;

use crate::error::{Result, check};
use crate::tensor::{PANEL, UNIT};
use crate::update::{Kept, Recipe};
use crate::{Buffer, Weight};

/// Bytes of a weight before its first rows, the same on every device.
pub const HEADER: usize = 64;

/// What rows are of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plane {
    /// The weight itself.
    Weight,
    /// Its remainders, or its master.
    Remainder,
    /// Its first moments.
    Moment,
}

/// Some rows of a plane: from a multiple of sixteen to another, or to the end.
#[derive(Clone, Debug)]
pub struct Panels<'a> {
    /// The weight.
    pub of: &'a Weight,
    /// What it learns with.
    pub kept: &'a Kept,
    /// How that is kept.
    pub recipe: &'a Recipe,
    /// What the rows are of.
    pub plane: Plane,
    /// Which rows.
    pub rows: Range<usize>,
}

impl Panels<'_> {
    /// Bytes of so many rows from the first on.
    fn bytes(&self, rows: usize) -> usize {
        let Weight { columns, format, .. } = *self.of;
        match self.plane {
            Plane::Weight => rows.div_ceil(PANEL) * columns.div_ceil(UNIT) * format.unit_bytes(),
            Plane::Remainder => self.recipe.remainder_bytes(format, rows, columns),
            Plane::Moment => self.recipe.moment_bytes(rows, columns),
        }
    }

    /// Where they are, if `bytes` is as many.
    pub fn place(&self, bytes: usize) -> Result<Buffer> {
        let Range { start, end } = self.rows;
        let whole = start.is_multiple_of(PANEL) && (end.is_multiple_of(PANEL) || end == self.of.rows);
        let (buffer, before) = match self.plane {
            Plane::Weight => (self.of.buffer, HEADER),
            Plane::Remainder => (self.kept.remainder, 0),
            Plane::Moment => (self.kept.moment, 0),
        };
        let fits = whole && start <= end && end <= self.of.rows && before + self.bytes(end) <= buffer.bytes;
        check(fits && bytes == self.bytes(end) - self.bytes(start), "panels", || {
            let Weight { rows, columns, format, .. } = *self.of;
            format!("{bytes} bytes for rows {start}..{end} of {} {rows}x{columns}", format.name())
        })?;
        Ok(Buffer { offset: buffer.offset + before + self.bytes(start), bytes })
    }

    /// The same rows in parts of at most so many bytes, or of sixteen rows, with the bytes of each.
    pub fn parts(&self, most: usize) -> impl Iterator<Item = (Panels<'_>, usize)> {
        let together = (most / self.bytes(PANEL).max(1)).max(1) * PANEL;
        self.rows.clone().step_by(together).map(move |first| {
            let end = self.rows.end.min(first + together);
            (Panels { rows: first..end, ..*self }, self.bytes(end) - self.bytes(first))
        })
    }
}
