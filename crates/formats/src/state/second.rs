//! Second moments: a mean for each row and a profile of the columns, or one per element; all f32.
//!
//! ```text
//! R[i] <- beta R[i] + (1 - beta) mean_j g[i,j]^2     C[j] <- beta C[j] + (1 - beta) mean_i g[i,j]^2
//! P[j] = C[j] / mean(C), as the step before left C; one where there was none
//! v[i,j] = max(R[i] P[j], (1 - beta) g[i,j]^2),  sqrt(v[i,j]) = max(root(R[i]) root(P[j]), root(1 - beta) |g|)
//! ```
//!
//! **The profile is a step old, the size is not.** A row needs no other row, so a row can learn as soon as
//! its gradient is there: one pass over the gradient, and a table whose rows come in parts is no
//! special case. What a full v never is, smaller than the share of the element's own gradient, this one is not
//! either: a column that was silent until now moves as in its first step.
//!
//! R and v start at zero and are not corrected here: both lack the factor 1 - beta^t, which `adamw`
//! divides out; in P it cancels. Of a gradient whose squares are the same outer product at every step, the
//! factored v is the full one from the second step on. A matrix of rows x columns costs 4 (rows + 2 columns)
//! bytes: R, C and the sums of the step.
//!
//! An update only needs roots: a factored v has one for each row and column instead of one for each
//! element. None is below the root of FLOOR. Means that are not finite are not followed.
//!
//! **Order.** Sums are defined by [`add_squares`], a row at a time, and by [`add_sums`] for the sums of
//! [`GROUP`] rows, which are added in the order of the groups: the same for any number of threads.

use super::{Average, BLOCK, units};

/// Smallest v: far below any eps^2 that matters, but a square root may be divided by.
pub const FLOOR: f32 = 1e-30;

/// Rows whose column sums are added one by one; groups of them are then added up.
pub const GROUP: usize = 64;

/// Adds the squares of a row to the column sums and returns their sum; a square and its sum are rounded once.
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
            sums[i] = g[i].mul_add(g[i], sums[i]);
            lanes[i] = g[i].mul_add(g[i], lanes[i]);
        }
    }
    units::fold(lanes, |a, b| a + b)
}

/// Adds one group's column sums to the total; call it in the order of the groups.
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
    let new = average.of(old, sum / count as f32);
    if new < f32::INFINITY { new } else { old }
}

/// Roots of the columns' profile: of the first `columns` averages, over their mean, summed in f64 in the lanes
/// of [`add_squares`].
pub fn profile(averages: &[f32], columns: usize, roots: &mut [f32]) {
    let mut lanes = [0.0; BLOCK];
    for block in averages[..columns].chunks(BLOCK) {
        for (lane, average) in lanes.iter_mut().zip(block) {
            *lane += f64::from(*average);
        }
    }
    let mean = (units::fold(lanes, |a, b| a + b) / columns as f64) as f32;
    for (out, column) in roots.iter_mut().zip(averages) {
        *out = if mean > 0.0 { root(column / mean) } else { 1.0 };
    }
}

/// sqrt(v) of a block of a row: `row` is the root of its average, `own` of 1 - beta; both corrected by the
/// same factor give corrected roots.
#[inline(always)]
pub fn factored(row: f32, profile: &[f32; BLOCK], g: &[f32; BLOCK], own: f32) -> [f32; BLOCK] {
    let mut roots = [0.0; BLOCK];
    for i in 0..BLOCK {
        let (both, mine) = (row * profile[i], own * g[i].abs());
        roots[i] = if mine > both { mine } else { both };
    }
    roots
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

/// The root of a second moment or of a part of one, at least that of [`FLOOR`].
#[inline(always)]
pub fn root(v: f32) -> f32 {
    (if v > FLOOR { v } else { FLOOR }).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    const AVERAGE: Average = Average { keep: 0.95, fresh: 0.05 };

    #[test]
    fn squares_that_are_an_outer_product_are_factored_exactly() {
        let (rows, columns) = (6, 32);
        let g = |i: usize, j: usize| 2f32.powi(i as i32 % 3) * 2f32.powi(j as i32 % 5 - 2);
        let (mut averages, mut all) = (vec![0.0; rows], vec![0.0; columns]);
        let mut profile_roots = vec![0.0; columns];
        for _ in 0..3 {
            profile(&all, columns, &mut profile_roots);
            let mut sums = vec![0.0; columns];
            for (i, average) in averages.iter_mut().enumerate() {
                let row: Vec<f32> = (0..columns).map(|j| g(i, j)).collect();
                *average = follow_one(*average, add_squares(&row, &mut sums), columns, AVERAGE);
            }
            follow(&mut all, &sums, rows, AVERAGE);
        }
        let correction = 1.0 - 0.95f32.powi(3);
        for (i, average) in averages.iter().enumerate() {
            let roots =
                factored(root(*average), profile_roots[16..].first_chunk().unwrap(), &[0.0; BLOCK], 0.0);
            for (j, root) in roots.into_iter().enumerate() {
                let exact = g(i, 16 + j) * g(i, 16 + j);
                assert!((root * root / correction / exact - 1.0).abs() < 1e-5, "{i} {j}: {root}");
            }
        }
    }

    #[test]
    fn a_column_that_was_silent_moves_as_in_its_first_step() {
        let mut averages = [1.0; BLOCK];
        averages[3] = 0.0;
        let mut roots = [0.0; BLOCK];
        profile(&averages, BLOCK, &mut roots);
        let v = factored(root(1.0), &roots, &[2.0; BLOCK], AVERAGE.fresh.sqrt());
        assert_eq!(v[3], AVERAGE.fresh.sqrt() * 2.0);
        assert!(v[4] > 1.0);
    }

    #[test]
    fn without_any_gradient_roots_are_small_and_neither_zero_nor_nan() {
        let (floor, mut roots) = (FLOOR.sqrt(), [0.0; BLOCK]);
        profile(&[0.0; BLOCK], BLOCK, &mut roots);
        assert_eq!(factored(root(0.0), &roots, &[0.0; BLOCK], 0.3), [floor; BLOCK]);
        assert_eq!(full(&mut [0.0; BLOCK], &[0.0; BLOCK], AVERAGE), [floor; BLOCK]);
        assert_eq!(root(f32::NAN), floor);
        assert_eq!(factored(1.0, &[1.0; BLOCK], &[f32::NAN; BLOCK], 0.3), [1.0; BLOCK]);
    }

    #[test]
    fn what_is_not_finite_is_not_followed() {
        for sum in [f32::NAN, f32::INFINITY] {
            assert_eq!(follow_one(2.0, sum, 4, AVERAGE), 2.0);
        }
    }
}
