//! Second moments: factored into row and column means, one per row, or one per element; all f32.
//!
//! ```text
//! R[i] <- beta R[i] + (1 - beta) mean_j g[i,j]^2     C[j] <- beta C[j] + (1 - beta) mean_i g[i,j]^2
//! v[i,j] = R[i] C[j] / mean(R),  sqrt(v[i,j]) = root(R[i] / mean(R)) root(C[j])
//! ```
//!
//! R, C and v start at zero and are not corrected here: all three lack the same factor 1 - beta^t,
//! which `adamw` divides out, since it enters the quotient R C / mean(R) once.
//!
//! Of a gradient whose squares are an outer product, the factored v is the full one exactly. A matrix
//! of rows x columns costs 4 (rows + columns) bytes. Embedding and head have one v per row
//! instead: their columns say nothing, and most rows of a step are untouched.
//!
//! An update only needs roots: a factored v has one for each row and column instead of one for each
//! element. None is below the root of FLOOR.
//!
//! **Order.** Sums are defined by [`add_squares`], a row at a time, and by [`add_sums`] for partial
//! column sums: rows are cut into chunks of [`chunk_rows`], each chunk has its own column sums, and these
//! are added in the order of the chunks. So one pass over the gradient gives both sums, for any
//! number of threads.

use super::{Average, BLOCK, units};

/// Smallest v: far below any eps^2 that matters, but a square root may be divided by.
pub const FLOOR: f32 = 1e-30;

/// Adds the squares of a row to the column sums and returns their sum.
///
/// The sum runs in sixteen lanes over the blocks, then lane i + 8, i + 4, i + 2 and i + 1 onto lane i.
///
/// # Panics
/// When the row is no whole number of blocks or `columns` has another length.
#[inline(always)]
pub fn add_squares(g: &[f32], columns: &mut [f32]) -> f32 {
    assert_eq!(g.len() % BLOCK, 0, "a row is whole blocks");
    assert_eq!(columns.len(), g.len(), "columns");
    let mut lanes = [0.0f32; BLOCK];
    let blocks = g.as_chunks::<BLOCK>().0.iter();
    for (g, sums) in blocks.zip(columns.as_chunks_mut::<BLOCK>().0) {
        for i in 0..BLOCK {
            let square = g[i] * g[i];
            sums[i] += square;
            lanes[i] += square;
        }
    }
    units::fold(lanes, |a, b| a + b)
}

/// Chunks that the rows of a matrix are cut into, at most.
pub const CHUNKS: usize = 32;

/// Rows of a chunk of a matrix of `rows`.
pub const fn chunk_rows(rows: usize) -> usize {
    if rows < CHUNKS { 1 } else { rows.div_ceil(CHUNKS) }
}

/// Sum of the squares of a row: what [`add_squares`] returns.
///
/// # Panics
/// When the row is no whole number of blocks.
#[inline(always)]
pub fn sum_of_squares(g: &[f32]) -> f32 {
    assert_eq!(g.len() % BLOCK, 0, "a row is whole blocks");
    let mut lanes = [0.0f32; BLOCK];
    for g in g.as_chunks::<BLOCK>().0 {
        for i in 0..BLOCK {
            lanes[i] += g[i] * g[i];
        }
    }
    units::fold(lanes, |a, b| a + b)
}

/// Adds one chunk's column sums to the total; call it in the order of the chunks.
#[inline(always)]
pub fn add_sums(total: &mut [f32], part: &[f32]) {
    assert_eq!(total.len(), part.len(), "sums");
    for (total, part) in total.iter_mut().zip(part) {
        *total += part;
    }
}

/// Lets averages follow the means sums / count: R with the columns' count, C with the rows'.
#[inline(always)]
pub fn follow(averages: &mut [f32], sums: &[f32], count: usize, average: Average) {
    assert_eq!(averages.len(), sums.len(), "sums");
    for (old, sum) in averages.iter_mut().zip(sums) {
        *old = follow_one(*old, *sum, count, average);
    }
}

/// One average that follows sum / count.
#[inline(always)]
pub fn follow_one(old: f32, sum: f32, count: usize, average: Average) -> f32 {
    average.of(old, sum / count as f32)
}

/// Mean of the row averages, summed in f64 in their order.
pub fn mean(rows: &[f32]) -> f32 {
    let sum: f64 = rows.iter().map(|row| f64::from(*row)).sum();
    (sum / rows.len().max(1) as f64) as f32
}

/// R[i] / mean(R); zero when no row has seen a gradient.
#[inline(always)]
pub fn row_factor(row: f32, mean: f32) -> f32 {
    if mean > 0.0 { row / mean } else { 0.0 }
}

/// sqrt(v) of a block of a row: the row's root times the columns'.
#[inline(always)]
pub fn factored(row_factor: f32, columns: &[f32; BLOCK]) -> [f32; BLOCK] {
    let (row, mut roots) = (root(row_factor), [0.0; BLOCK]);
    for (out, column) in roots.iter_mut().zip(columns) {
        *out = row * root(*column);
    }
    roots
}

/// sqrt(v) of every element of a row that has one number.
#[inline(always)]
pub fn per_row(row: f32) -> [f32; BLOCK] {
    [root(row); BLOCK]
}

/// Lets a full v follow the squares of a gradient, as [`full`] does block by block.
#[inline(always)]
pub fn follow_squares(v: &mut [f32], g: &[f32], average: Average) {
    assert_eq!(v.len(), g.len(), "gradient");
    for (v, g) in v.iter_mut().zip(g) {
        *v = average.of(*v, g * g);
    }
}

/// sqrt(v) of a block that has one number per element, which has followed the gradient already.
#[inline(always)]
pub fn each(v: &[f32; BLOCK]) -> [f32; BLOCK] {
    let mut out = [0.0; BLOCK];
    for (out, v) in out.iter_mut().zip(v) {
        *out = root(*v);
    }
    out
}

/// Moves a full v by a block's gradient and returns its roots.
#[inline(always)]
pub fn full(v: &mut [f32; BLOCK], g: &[f32; BLOCK], average: Average) -> [f32; BLOCK] {
    follow_squares(v, g, average);
    each(v)
}

/// The root of a second moment or of a factor of one, at least that of [`FLOOR`].
#[inline(always)]
pub fn root(v: f32) -> f32 {
    (if v > FLOOR { v } else { FLOOR }).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn squares_that_are_an_outer_product_are_factored_exactly() {
        let (rows, columns) = (6, 32);
        let g = |i: usize, j: usize| 2f32.powi(i as i32 % 3) * 2f32.powi(j as i32 % 5 - 2);
        let (mut row_averages, mut column_averages) = (vec![0.0; rows], vec![0.0; columns]);
        for _ in 0..3 {
            let mut column_sums = vec![0.0; columns];
            let row: Vec<Vec<f32>> = (0..rows).map(|i| (0..columns).map(|j| g(i, j)).collect()).collect();
            let row_sums: Vec<f32> = row.iter().map(|row| add_squares(row, &mut column_sums)).collect();
            follow(&mut row_averages, &row_sums, columns, Average::new(0.95));
            follow(&mut column_averages, &column_sums, rows, Average::new(0.95));
        }
        let mean = mean(&row_averages);
        let correction = 1.0 - 0.95f32.powi(3);
        for (i, row) in row_averages.iter().enumerate() {
            let roots =
                factored(row_factor(*row, mean), column_averages[16..].as_chunks().0.first().unwrap());
            for (j, root) in roots.into_iter().enumerate() {
                let exact = g(i, 16 + j) * g(i, 16 + j);
                assert!((root * root / correction / exact - 1.0).abs() < 1e-5, "{i} {j}: {root}");
            }
        }
    }

    #[test]
    fn the_sum_of_a_row_is_the_same_with_and_without_columns() {
        let g: Vec<f32> = (0..96).map(|i| (i as f32 * 0.7).sin()).collect();
        let mut columns = vec![0.0; 96];
        let sum = add_squares(&g, &mut columns);
        assert_eq!(sum.to_bits(), sum_of_squares(&g).to_bits());
        assert!((sum - columns.iter().sum::<f32>()).abs() < 1e-4);
    }

    #[test]
    fn without_any_gradient_roots_are_small_and_neither_zero_nor_nan() {
        let floor = FLOOR.sqrt();
        assert_eq!(factored(row_factor(0.0, 0.0), &[0.0; BLOCK]), [floor * floor; BLOCK]);
        assert_eq!(per_row(0.0), [floor; BLOCK]);
        assert_eq!(full(&mut [0.0; BLOCK], &[0.0; BLOCK], Average::new(0.95)), [floor; BLOCK]);
        assert_eq!(root(f32::NAN), floor);
        assert_eq!(mean(&[]), 0.0);
    }
}
