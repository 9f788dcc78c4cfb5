//! Squares of 32 rows by 32 columns of bf16, as tiles. As two tiles of 16 rows `[16][32]` they are
//! a left factor; as two tiles of pairs of rows `[16][16][2]`, 16 columns each, a right one.

use std::arch::x86_64::*;

use halfbyte_ops::tensor::PANEL;

use crate::narrow::{Line, NarrowRows};
use crate::tiles::SIDE;
use crate::vector;

/// Rows and columns of a square.
pub(crate) const SQUARE: usize = 32;

/// 16 lines of 32 bf16, or of 16 pairs.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(crate) struct Tile(pub(crate) [Line; SIDE]);

impl Tile {
    pub(crate) const ZERO: Tile = Tile([[0; SQUARE]; SIDE]);

    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: numbers without gaps, which take any bits.
        unsafe { std::slice::from_raw_parts_mut(self.0.as_mut_ptr().cast(), size_of::<Tile>()) }
    }
}

/// The rows of a square, 16 and 16.
pub(crate) type Rows<'a> = [&'a Tile; 2];

/// Rounded f32 rows, `stride` values apart. Of rows and columns so many exist, zeros follow.
///
/// # Safety
/// AVX-512 with conversion to bf16 is there; at `x` lie these rows, and nobody writes them.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
pub(crate) unsafe fn of_values(
    x: *const f32,
    stride: usize,
    rows: usize,
    columns: usize,
    out: &mut [Tile; 2],
) -> Rows<'_> {
    let mask = (1u64 << columns.min(SQUARE)).wrapping_sub(1);
    for (r, line) in out.iter_mut().flat_map(|tile| &mut tile.0).enumerate() {
        let mask = if r < rows { mask } else { 0 };
        for (half, line) in line.as_chunks_mut::<PANEL>().0.iter_mut().enumerate() {
            // SAFETY: by the caller's promise, and 32 bytes of a line.
            unsafe {
                let some = (mask >> (half * PANEL)) as u16;
                let values = _mm512_maskz_loadu_ps(some, x.wrapping_add(r * stride + half * PANEL));
                _mm256_storeu_si256(line.as_mut_ptr().cast(), vector::narrow(values));
            }
        }
    }
    let [low, high] = out;
    [low, high]
}

/// Rows `32 index..` and columns `32 column..` of narrow rows, as they lie there if all `rows`
/// exist, else in `space` with zeros.
///
/// # Safety
/// Some of them exist, and nobody writes them.
pub(crate) unsafe fn of_narrow<'a>(
    x: &NarrowRows,
    index: usize,
    column: usize,
    rows: usize,
    space: &'a mut [Tile; 2],
) -> Rows<'a> {
    // SAFETY: narrow rows are padded to 32.
    let tiles: Rows<'a> = [0, 1].map(|half| unsafe { &x.tiles_of(2 * index + half)[column] });
    let count = rows - index * SQUARE;
    if count >= SQUARE {
        return tiles;
    }
    for (half, (to, from)) in space.iter_mut().zip(tiles).enumerate() {
        let count = count.saturating_sub(half * SIDE).min(SIDE);
        to.0[..count].copy_from_slice(&from.0[..count]);
        to.0[count..].fill([0; SQUARE]);
    }
    let [low, high] = space;
    [low, high]
}

/// Columns of dwords become lines: rows become pairs of columns, and pairs of rows columns.
#[inline]
#[target_feature(enable = "avx512f")]
pub(crate) fn turn(tile: &Tile, out: &mut Tile) {
    // SAFETY: 16 lines of 64 bytes each.
    unsafe { vector::transpose(tile.0.as_ptr().cast(), out.0.as_mut_ptr().cast()) };
}

/// Rows as pairs of rows side by side: of the first 16 columns, and of the others.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
pub(crate) fn pair(rows: Rows<'_>, out: &mut [Tile; 2]) {
    let [first, second] = out;
    for (rows, pairs) in rows.into_iter().zip([0, SIDE / 2]) {
        for (i, [upper, lower]) in rows.0.as_chunks::<2>().0.iter().enumerate() {
            for (half, out) in [&mut *first, &mut *second].into_iter().enumerate() {
                // SAFETY: half a line of each row; a line of pairs.
                unsafe {
                    let load = |row: &Line| {
                        _mm512_cvtepu16_epi32(_mm256_loadu_si256(row.as_ptr().add(half * PANEL).cast()))
                    };
                    let both = _mm512_or_si512(load(upper), _mm512_slli_epi32::<16>(load(lower)));
                    _mm512_storeu_si512(out.0[pairs + i].as_mut_ptr().cast(), both);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Isa;

    #[test]
    fn turned_pairs_are_columns() {
        if !Isa::Avx512.available() {
            eprintln!("skipped: this machine has no {}", Isa::Avx512);
            return;
        }
        let rows: [Tile; 2] = std::array::from_fn(|half| {
            Tile(std::array::from_fn(|r| std::array::from_fn(|c| ((half * SIDE + r) * 100 + c) as u16)))
        });
        let [mut pairs, mut columns] = [[Tile::ZERO; 2]; 2];
        // SAFETY: AVX-512 was found.
        unsafe {
            pair([&rows[0], &rows[1]], &mut pairs);
            pairs.iter().zip(&mut columns).for_each(|(pairs, out)| turn(pairs, out));
        }
        for (c, column) in columns.iter().flat_map(|tile| &tile.0).enumerate() {
            for (r, x) in column.iter().enumerate() {
                assert_eq!(usize::from(*x), r * 100 + c);
            }
        }
    }
}
