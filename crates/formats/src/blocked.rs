//! The 128x4 blocked layout of block scales that tensor cores read (cuBLASLt, vLLM, torchao).
//!
//! ```text
//! scales [rows, columns] row-major, columns = inner / 16
//! byte of (r, c) = ((r / 128) * ceil(columns / 4) + c / 4) * 512
//!                + (r % 32) * 16 + (r % 128 / 32) * 4 + c % 4
//! ```
//!
//! Rows are padded to a multiple of 128 and columns to a multiple of 4, with zero bytes.

const TILE_ROWS: usize = 128;
const TILE_COLUMNS: usize = 4;
const TILE: usize = TILE_ROWS * TILE_COLUMNS;

/// Bytes of the blocked form of a `rows` x `columns` scale matrix.
pub fn size(rows: usize, columns: usize) -> usize {
    rows.div_ceil(TILE_ROWS) * columns.div_ceil(TILE_COLUMNS) * TILE
}

/// Where the scale of (`row`, `column`) lies in the blocked form.
pub fn offset(row: usize, column: usize, columns: usize) -> usize {
    let tile = row / TILE_ROWS * columns.div_ceil(TILE_COLUMNS) + column / TILE_COLUMNS;
    tile * TILE + row % 32 * 16 + row % TILE_ROWS / 32 * TILE_COLUMNS + column % TILE_COLUMNS
}

/// Row-major scales into the blocked form; every padding byte becomes zero.
///
/// # Panics
/// When `scales` is not `rows * columns` long or `out` not `size(rows, columns)`.
pub fn to_blocked(scales: &[u8], rows: usize, columns: usize, out: &mut [u8]) {
    assert_eq!(scales.len(), rows * columns, "scale bytes");
    assert_eq!(out.len(), size(rows, columns), "blocked bytes");
    out.fill(0);
    for row in 0..rows {
        for column in 0..columns {
            out[offset(row, column, columns)] = scales[row * columns + column];
        }
    }
}

/// The blocked form back into row-major scales; padding is ignored.
///
/// # Panics
/// When `blocked` is not `size(rows, columns)` long or `out` not `rows * columns`.
pub fn from_blocked(blocked: &[u8], rows: usize, columns: usize, out: &mut [u8]) {
    assert_eq!(blocked.len(), size(rows, columns), "blocked bytes");
    assert_eq!(out.len(), rows * columns, "scale bytes");
    for row in 0..rows {
        for column in 0..columns {
            out[row * columns + column] = blocked[offset(row, column, columns)];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ways_give_back_every_scale_and_padding_is_zero() {
        for (rows, columns) in [(1, 1), (128, 4), (129, 5), (37, 12), (300, 7), (0, 3), (3, 0)] {
            let scales: Vec<u8> = (0..rows * columns).map(|i| (i % 255) as u8 + 1).collect();
            let mut blocked = vec![0xAA; size(rows, columns)];
            to_blocked(&scales, rows, columns, &mut blocked);
            let padding = blocked.iter().filter(|byte| **byte == 0).count();
            assert_eq!(padding, size(rows, columns) - rows * columns);
            let mut back = vec![0; rows * columns];
            from_blocked(&blocked, rows, columns, &mut back);
            assert_eq!(back, scales);
        }
    }

    #[test]
    fn rows_32_apart_lie_side_by_side() {
        assert_eq!(offset(0, 1, 8), 1);
        assert_eq!(offset(32, 0, 8), 4);
        assert_eq!(offset(96, 3, 8), 15);
        assert_eq!(offset(1, 0, 8), 16);
        assert_eq!(offset(0, 4, 8), 512);
        assert_eq!(offset(128, 0, 8), 1024);
        assert_eq!(size(129, 5), 2 * 2 * 512);
    }
}
