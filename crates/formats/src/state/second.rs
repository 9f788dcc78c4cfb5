//! Second moments: a mean for each row of a tile of columns and a profile of these, or one per element; all f32.
//!
//! ```text
//! R[i] <- beta R[i] + (1 - beta) mean_j g[i,j]^2     C[j] <- beta C[j] + (1 - beta) mean_i g[i,j]^2
//! P[j] = C[j] / mean(C); one where there is no C     all of it for every tile of TILE columns apart
//! v[i,j] = R[i] P[j],  1 / sqrt(v[i,j]) = 1 / root(R[i]) * 1 / root(P[j])
//! ```
//!
//! **v is of the past.** R and C are what the step before left: an element needs nothing of its step but its own
//! gradient, which is read once, and a table whose rows come in parts is no special case. Nothing is divided for an
//! element, since a row and a column have their inverses.
//!
//! **What v does not know yet cannot carry an element far**: it moves by a learning rate at most
//! (`adamw::Step::factored_limit`), as Adam does at its first step. That is how it is at the first step here, in a column
//! that was silent until now and in the row of a rare token. Adam itself can go 1.16 learning rates, by gradients that
//! grow from step to step.
//!
//! **Of eight panels of [`GROUP`] rows, one is looked at for C**, another at each step: a profile is common to all rows, so
//! an eighth of them shows it. R is of all columns at every step.
//!
//! R and v start at zero and are not corrected here: v lacks the factor 1 - beta^t and R the one of the step before,
//! which `adamw` divides out; in P it cancels. A matrix of rows x columns costs 4 (rows * tiles + 2 columns)
//! bytes: R, C and the sums of the step. A tile of a row is what a warp of a GPU moves, which so needs no other one.
//!
//! No root is below the one of FLOOR. Means that are not finite are not followed.
//!
//! **Order.** The squares of a tile's row are added block by block ([`row_squares`]), a column's by [`add_squares`] over the
//! rows of a panel, then [`TOGETHER`] panels that are looked at one after the other, then these sums in their order: the
//! same for any number of threads.

use super::{Average, BLOCK, units};

/// Smallest v: far below any eps^2 that matters, but a square root may be divided by.
pub const FLOOR: f32 = 1e-30;

/// Rows of a panel, whose columns are added up together.
pub const GROUP: usize = 16;

/// Of so many panels one is looked at for the columns.
pub const APART: usize = 8;

/// So many panels that are looked at are added up first.
pub const TOGETHER: usize = 4;

/// Columns that have averages of the rows, and a profile, of their own.
pub const TILE: usize = 32 * BLOCK;

/// Tiles of so many columns.
pub const fn tiles(columns: usize) -> usize {
    columns.div_ceil(TILE)
}

/// Whether a panel's columns are looked at in a step.
#[inline(always)]
pub fn looked_at(panel: usize, step: u64) -> bool {
    (panel as u64 + step).is_multiple_of(APART as u64)
}

/// How many of the rows `rows` are looked at; they begin with a panel.
pub fn rows_looked_at(rows: std::ops::Range<usize>, step: u64) -> usize {
    let panels = rows.clone().step_by(GROUP).filter(|row| looked_at(row / GROUP, step));
    panels.map(|row| GROUP.min(rows.end - row)).sum()
}

/// The sum of the squares of a tile's row: of block i + 16 onto that of block i, i + 8, i + 4, i + 2 and i + 1.
///
/// # Panics
/// When it is no whole number of blocks, or more than a tile.
#[inline(always)]
pub fn row_squares(g: &[f32]) -> f32 {
    assert!(g.len().is_multiple_of(BLOCK) && g.len() <= TILE, "a tile's row is whole blocks");
    let mut sums = [0.0f32; TILE / BLOCK];
    for (sum, block) in sums.iter_mut().zip(g.as_chunks::<BLOCK>().0) {
        *sum = units::squares(block);
    }
    let (below, above) = sums.split_at(BLOCK);
    units::fold(std::array::from_fn(|i| below[i] + above[i]), |a, b| a + b)
}

/// Adds the squares of a row to the columns' sums; a square and its sum are rounded once.
///
/// # Panics
/// When `columns` has another length.
#[inline(always)]
pub fn add_squares(g: &[f32], columns: &mut [f32]) {
    assert_eq!(columns.len(), g.len(), "columns");
    for (sum, g) in columns.iter_mut().zip(g) {
        *sum = g.mul_add(*g, *sum);
    }
}

/// Adds sums of columns to others; call it in the order of the panels.
#[inline(always)]
pub fn add_sums(total: &mut [f32], part: &[f32]) {
    assert_eq!(total.len(), part.len(), "sums");
    for (total, part) in total.iter_mut().zip(part) {
        *total += part;
    }
}

/// Lets averages follow the means sums / count: R with the columns' count, C with that of the rows looked at, if any.
#[inline(always)]
pub fn follow(averages: &mut [f32], sums: &[f32], count: usize, average: Average) {
    assert_eq!(averages.len(), sums.len(), "sums");
    if count == 0 {
        return;
    }
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

/// One over the roots of the columns' profile, tile by tile: of the first `columns` averages, over their mean, summed in
/// f64 in sixteen lanes over the blocks.
#[inline(always)]
pub fn profile(averages: &[f32], columns: usize, inverses: &mut [f32]) {
    for (tile, (averages, inverses)) in averages.chunks(TILE).zip(inverses.chunks_mut(TILE)).enumerate() {
        let columns = TILE.min(columns - tile * TILE);
        let mut lanes = [0.0; BLOCK];
        for block in averages[..columns].chunks(BLOCK) {
            for (lane, average) in lanes.iter_mut().zip(block) {
                *lane += f64::from(*average);
            }
        }
        let mean = (units::fold(lanes, |a, b| a + b) / columns as f64) as f32;
        for (out, column) in inverses.iter_mut().zip(averages) {
            *out = if mean > 0.0 { 1.0 / root(column / mean) } else { 1.0 };
        }
    }
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
    use super::super::adamw::{Settings, Step};
    use super::*;

    const AVERAGE: Average = Average { keep: 0.95, fresh: 0.05 };

    #[test]
    fn squares_that_are_an_outer_product_are_factored_exactly() {
        let (rows, columns) = (6, 32);
        let g = |i: usize, j: usize| 2f32.powi(i as i32 % 3) * 2f32.powi(j as i32 % 5 - 2);
        let (mut averages, mut all) = (vec![0.0; rows], vec![0.0; columns]);
        let mut inverses = vec![0.0; columns];
        for _ in 0..3 {
            profile(&all, columns, &mut inverses);
            let mut sums = vec![0.0; columns];
            for (i, average) in averages.iter_mut().enumerate() {
                let row: Vec<f32> = (0..columns).map(|j| g(i, j)).collect();
                *average = follow_one(*average, row_squares(&row), columns, AVERAGE);
                add_squares(&row, &mut sums);
            }
            follow(&mut all, &sums, rows, AVERAGE);
        }
        let correction = 1.0 - 0.95f32.powi(3);
        for (i, average) in averages.iter().enumerate() {
            for (j, inverse) in inverses[16..32].iter().map(|inverse| inverse / root(*average)).enumerate() {
                let exact = g(i, 16 + j) * g(i, 16 + j);
                let v = 1.0 / (inverse * inverse);
                assert!((v / correction / exact - 1.0).abs() < 1e-5, "{i} {j}: {v}");
            }
        }
    }

    #[test]
    fn a_column_that_was_silent_moves_as_in_its_first_step() {
        let mut averages = [1.0; BLOCK];
        averages[3] = 0.0;
        let mut inverses = [0.0; BLOCK];
        profile(&averages, BLOCK, &mut inverses);
        let step = Step::new(&Settings::default(), 1e-3, 100);
        let row = step.of_row(root(1.0));
        let delta = step.push(&Step::ratio(&[1e-6; BLOCK], &inverses, row.limit), &row).values(&[0.0; BLOCK]);
        assert!((delta[3] / -1e-3 - 1.0).abs() < 1e-6, "by a learning rate");
        assert!(delta[4] < 0.0 && delta[4] > -1e-8);
    }

    #[test]
    fn every_row_is_looked_at_once_in_eight_steps() {
        for rows in [1, 16, 40, 64, 1000] {
            let all: usize = (7..7 + APART as u64).map(|step| rows_looked_at(0..rows, step)).sum();
            assert_eq!(all, rows);
            let parts = rows_looked_at(0..32.min(rows), 3) + rows_looked_at(32.min(rows)..rows, 3);
            assert_eq!(parts, rows_looked_at(0..rows, 3));
        }
    }

    #[test]
    fn without_any_gradient_roots_are_small_and_neither_zero_nor_nan() {
        let (floor, mut inverses) = (FLOOR.sqrt(), [0.0; BLOCK]);
        profile(&[0.0; BLOCK], BLOCK, &mut inverses);
        assert_eq!(inverses, [1.0; BLOCK]);
        assert_eq!(full(&mut [0.0; BLOCK], &[0.0; BLOCK], AVERAGE), [floor; BLOCK]);
        assert_eq!(root(f32::NAN), floor);
        // As large as inverses can be, they move nothing where there is no moment.
        let step = Step::new(&Settings { eps: 0.0, ..Settings::default() }, 1e-3, 1);
        let row = step.of_row(floor);
        let ratio = Step::ratio(&[0.0; BLOCK], &[1.0 / floor; BLOCK], row.limit);
        assert_eq!(step.push(&ratio, &row).values(&[1.0; BLOCK]), [0.0; BLOCK]);
    }

    #[test]
    fn what_is_not_finite_is_not_followed() {
        for sum in [f32::NAN, f32::INFINITY] {
            assert_eq!(follow_one(2.0, sum, 4, AVERAGE), 2.0);
        }
    }
}
