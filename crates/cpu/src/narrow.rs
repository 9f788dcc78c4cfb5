//! Narrow rows: bf16 in tiles of 16 rows by 32 columns, which AMX loads as they are.
//!
//! `[rows / 16][columns / 32][16 rows][32 columns]`; columns are padded to a whole unit with
//! zeros, rows to 32 with anything (their products are never looked at).

use halfbyte_formats::bf16;
use halfbyte_ops::Rows;
use halfbyte_ops::tensor::{PANEL, UNIT};

use crate::arena::Place;
use crate::isa::for_isa;

/// Columns of a tile.
const LINE: usize = 32;

/// 32 columns of one row.
pub(crate) type Line = [u16; LINE];

/// Narrow rows that ops write, each row by one thread.
#[derive(Clone, Copy)]
pub(crate) struct NarrowRows {
    start: Place<Line>,
    columns: usize,
}

impl NarrowRows {
    /// At `start` there is room for [`Rows::narrow_bytes`].
    pub(crate) fn new(start: Place<u8>, columns: usize) -> NarrowRows {
        NarrowRows { start: start.cast(), columns }
    }

    fn lines(&self) -> usize {
        self.columns.next_multiple_of(UNIT) / LINE
    }

    /// Where the tiles begin.
    pub(crate) fn tiles(&self) -> *const u8 {
        self.start.pointer().cast_const().cast()
    }

    /// The tiles of rows `16 index..`, one after the other.
    ///
    /// # Safety
    /// They exist, and nobody writes them, or else nobody else uses them.
    #[cfg(target_arch = "x86_64")]
    pub(crate) unsafe fn tiles_of<'a>(&self, index: usize) -> &'a mut [crate::square::Tile] {
        // SAFETY: by the caller's promise; rows begin with a line of the cache.
        unsafe { self.start.cast().slice_mut(index * self.lines(), self.lines()) }
    }

    /// # Safety
    /// The row exists, and nobody else uses the columns that the caller will touch.
    pub(crate) unsafe fn row(&self, row: usize) -> NarrowRow {
        let first = row / PANEL * self.lines() * PANEL + row % PANEL;
        // SAFETY: by the caller's promise.
        NarrowRow { first: unsafe { self.start.pointer().add(first) }, columns: self.columns }
    }
}

/// One narrow row, to read or to write.
pub(crate) struct NarrowRow {
    first: *mut Line,
    columns: usize,
}

impl NarrowRow {
    /// Columns `32 index..`.
    #[inline(always)]
    pub(crate) fn line(&mut self, index: usize) -> &mut Line {
        assert!(index < self.columns.next_multiple_of(UNIT) / LINE);
        // SAFETY: the line exists; the maker of this row promised that it is ours.
        unsafe { &mut *self.first.add(index * PANEL) }
    }

    /// Columns `first..`, which may begin and end anywhere; after the last column come zeros.
    #[inline(always)]
    pub(crate) fn put(&mut self, first: usize, x: &[f32]) {
        let (whole, rest) = x.as_chunks::<PANEL>();
        if first.is_multiple_of(PANEL) {
            for (i, x) in whole.iter().enumerate() {
                let at = first + i * PANEL;
                let half = &mut self.line(at / LINE).as_chunks_mut::<PANEL>().0[at / PANEL % 2];
                for i in 0..PANEL {
                    half[i] = bf16::encode(x[i]);
                }
            }
            self.put_each(first + whole.len() * PANEL, rest);
        } else {
            self.put_each(first, x);
        }
        if first + x.len() == self.columns {
            self.pad();
        }
    }

    /// Columns `16 index..`, all there.
    #[cfg(target_arch = "x86_64")]
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512bf16")]
    pub(crate) fn put_register(&mut self, index: usize, x: std::arch::x86_64::__m512) {
        let half = &mut self.line(index / 2).as_chunks_mut::<PANEL>().0[index % 2];
        // SAFETY: 16 values.
        unsafe { std::arch::x86_64::_mm256_storeu_si256(half.as_mut_ptr().cast(), crate::vector::narrow(x)) };
    }

    /// Columns `16 index..`, all there.
    #[cfg(target_arch = "x86_64")]
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512bf16")]
    pub(crate) fn register(&mut self, index: usize) -> std::arch::x86_64::__m512 {
        use std::arch::x86_64::*;
        let half = &self.line(index / 2).as_chunks::<PANEL>().0[index % 2];
        // SAFETY: 16 values. The bits of a bf16 are the upper half of an f32's.
        let bits = unsafe { _mm256_loadu_si256(half.as_ptr().cast()) };
        _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(bits)))
    }

    #[inline(always)]
    fn put_each(&mut self, first: usize, x: &[f32]) {
        for (at, x) in (first..).zip(x) {
            self.line(at / LINE)[at % LINE] = bf16::encode(*x);
        }
    }

    /// Zeros after the last column.
    #[inline(always)]
    fn pad(&mut self) {
        for at in self.columns..self.columns.next_multiple_of(UNIT) {
            self.line(at / LINE)[at % LINE] = 0;
        }
    }
}

for_isa! {
/// A row from f32.
pub(crate) fn narrow(x: &[f32], out: &mut NarrowRow) {
    out.put(0, x)
}
}

for_isa! {
/// A row to f32, padding included where `out` has room for it.
pub(crate) fn widen(x: &mut NarrowRow, out: &mut [f32]) {
    for (index, out) in out.chunks_mut(LINE).enumerate() {
        for (out, x) in out.iter_mut().zip(x.line(index)) {
            *out = bf16::decode(*x);
        }
    }
}
}

/// Some values, mostly 16: a call to copy these would take longer than the copy.
#[inline(always)]
pub(crate) fn copy(from: &[f32], to: &mut [f32]) {
    match (<&[f32; PANEL]>::try_from(from), <&mut [f32; PANEL]>::try_from(&mut *to)) {
        (Ok(from), Ok(to)) => *to = *from,
        _ => to.copy_from_slice(from),
    }
}

/// Where an op puts rows that are wide or narrow.
#[derive(Clone, Copy)]
pub(crate) enum Output {
    Wide(Place<f32>, usize),
    Narrow(NarrowRows),
}

impl Output {
    pub(crate) fn new(start: Place<u8>, rows: Rows) -> Output {
        match rows.narrow {
            true => Output::Narrow(NarrowRows::new(start, rows.columns)),
            false => Output::Wide(start.cast(), rows.columns),
        }
    }

    /// Columns `first..` of a row.
    ///
    /// # Safety
    /// They exist, and nobody else uses them meanwhile.
    #[inline(always)]
    pub(crate) unsafe fn put(&self, row: usize, first: usize, x: &[f32]) {
        // SAFETY: by the caller's promise.
        unsafe {
            match self {
                Output::Wide(start, columns) => {
                    copy(x, start.slice_mut(row * columns + first, x.len()));
                }
                Output::Narrow(rows) => rows.row(row).put(first, x),
            }
        }
    }

    /// What was put.
    ///
    /// # Safety
    /// As [`Output::put`].
    #[inline(always)]
    pub(crate) unsafe fn get(&self, row: usize, first: usize, x: &mut [f32]) {
        // SAFETY: by the caller's promise.
        unsafe {
            match self {
                Output::Wide(start, columns) => {
                    copy(start.slice(row * columns + first, x.len()), x);
                }
                Output::Narrow(rows) => {
                    let mut row = rows.row(row);
                    if let (0, Ok(x)) = (first % PANEL, <&mut [f32; PANEL]>::try_from(&mut *x)) {
                        let half = &row.line(first / LINE).as_chunks::<PANEL>().0[first / PANEL % 2];
                        for i in 0..PANEL {
                            x[i] = bf16::decode(half[i]);
                        }
                        return;
                    }
                    for (at, x) in (first..).zip(x) {
                        *x = bf16::decode(row.line(at / LINE)[at % LINE]);
                    }
                }
            }
        }
    }

    /// Columns `16 index..` of a row, all there.
    ///
    /// # Safety
    /// As [`Output::put`].
    #[cfg(target_arch = "x86_64")]
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512bf16")]
    pub(crate) unsafe fn put_register(&self, row: usize, index: usize, x: std::arch::x86_64::__m512) {
        // SAFETY: by the caller's promise.
        unsafe {
            match self {
                Output::Wide(start, columns) => {
                    std::arch::x86_64::_mm512_storeu_ps(
                        start.pointer().add(row * columns + index * PANEL),
                        x,
                    );
                }
                Output::Narrow(rows) => rows.row(row).put_register(index, x),
            }
        }
    }

    /// What was put.
    ///
    /// # Safety
    /// As [`Output::put`].
    #[cfg(target_arch = "x86_64")]
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512bf16")]
    pub(crate) unsafe fn register(&self, row: usize, index: usize) -> std::arch::x86_64::__m512 {
        // SAFETY: by the caller's promise.
        unsafe {
            match self {
                Output::Wide(start, columns) => {
                    std::arch::x86_64::_mm512_loadu_ps(start.pointer().add(row * columns + index * PANEL))
                }
                Output::Narrow(rows) => rows.row(row).register(index),
            }
        }
    }
}
