//! The highest values of a row with their columns: the highest first, among equals the one that comes first. What a
//! sampler needs of the logits where a few of them decide.

use std::cmp::Ordering;

use crate::error::{Result, check};
use crate::testing::{Bench, numbers};
use crate::{Backend, Rows};

/// A value and the column it stands in.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Best {
    /// Where it stands.
    pub column: u32,
    /// A finite number; of the two zeros, the positive one.
    pub value: f32,
}

impl Best {
    /// The better one first; both are finite.
    pub fn order(&self, other: &Best) -> Ordering {
        let by_value = other.value.partial_cmp(&self.value).unwrap_or(Ordering::Equal);
        by_value.then(self.column.cmp(&other.column))
    }
}

/// The shapes that fit: one row of f32, and no more places than it has values.
pub fn check_shapes(x: Rows, best: &[Best]) -> Result<()> {
    let fits = x.rows == 1 && !x.narrow && (1..=x.columns).contains(&best.len());
    check(fits, "best", || format!("{} of {}x{}", best.len(), x.rows, x.columns))
}

/// The best of a row that has at least so many values; false where one of those is not finite.
pub fn forward(x: &[f32], best: &mut [Best]) -> bool {
    let last = best.len() - 1;
    let mut have = 0;
    for (&value, column) in x.iter().zip(0..) {
        if !value.is_finite() {
            return false;
        }
        if have > last && value <= best[last].value {
            continue;
        }
        let candidate = Best { column, value: value + 0.0 };
        let place = best[..have].partition_point(|other| other.order(&candidate).is_lt());
        have = (have + 1).min(last + 1);
        best[place..have].rotate_right(1);
        best[place] = candidate;
    }
    true
}

/// The same of a row that is brought to the host whole.
pub fn by_reading<B: Backend + ?Sized>(backend: &mut B, x: Rows, best: &mut [Best]) -> Result<bool> {
    check_shapes(x, best)?;
    let mut values = vec![0.0; x.columns];
    backend.read(x, &mut values)?;
    Ok(forward(&values, best))
}

/// What every backend must give.
pub fn contract<B: Backend>(make: impl Fn(usize) -> B) {
    for (columns, count) in [(1, 1), (40, 40), (4097, 1), (9000, 64), (70_001, 20)] {
        let mut values = numbers(columns as u32, columns);
        // Equal ones, and both zeros, far from each other.
        for (value, i) in values.iter_mut().zip(0..) {
            *value = if i % 5 == 0 { (*value * 4.0).round() } else { *value - 2.0 };
        }
        let found = |values: &[f32]| {
            let mut bench = Bench::new(&make);
            let x = bench.rows(1, columns, values);
            let mut best = vec![Best::default(); count];
            let finite = bench.backend.best(x, &mut best).unwrap();
            finite.then(|| best.iter().map(|best| (best.column, best.value.to_bits())).collect::<Vec<_>>())
        };
        let mut all: Vec<Best> =
            values.iter().zip(0..).map(|(x, column)| Best { column, value: x + 0.0 }).collect();
        all.sort_by(Best::order);
        let want = all[..count].iter().map(|best| (best.column, best.value.to_bits())).collect();
        assert_eq!(found(&values), Some(want), "{count} of {columns}");
        for bad in [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            values[columns / 2] = bad;
            assert_eq!(found(&values), None, "{bad} among {columns}");
        }
    }
}
