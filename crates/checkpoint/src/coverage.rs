//! Which rows of a tensor have been written, so that an unfinished model is never made visible.

use std::ops::Range;

/// Disjoint, sorted runs of rows.
#[derive(Debug, Default, Clone)]
pub(crate) struct Coverage(Vec<Range<usize>>);

impl Coverage {
    /// Adds rows; runs that touch become one.
    pub(crate) fn add(&mut self, rows: Range<usize>) {
        if rows.is_empty() {
            return;
        }
        let first = self.0.partition_point(|run| run.end < rows.start);
        let last = self.0.partition_point(|run| run.start <= rows.end);
        let joined =
            self.0[first..last].iter().fold(rows, |all, run| all.start.min(run.start)..all.end.max(run.end));
        self.0.splice(first..last, [joined]);
    }

    /// The first row below `rows` that is missing.
    pub(crate) fn missing(&self, rows: usize) -> Option<usize> {
        match self.0.first() {
            Some(run) if run.start == 0 && run.end >= rows => None,
            Some(run) if run.start == 0 => Some(run.end),
            _ if rows == 0 => None,
            _ => Some(0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_in_any_order_join() {
        let mut coverage = Coverage::default();
        for rows in [4..6, 0..2, 8..9, 2..4, 5..8] {
            coverage.add(rows);
        }
        assert_eq!(coverage.missing(9), None);
        assert_eq!(coverage.missing(10), Some(9));
        assert_eq!(coverage.0.len(), 1);
    }

    #[test]
    fn the_first_missing_row_is_named() {
        let mut coverage = Coverage::default();
        assert_eq!(coverage.missing(3), Some(0));
        coverage.add(0..1);
        coverage.add(2..3);
        assert_eq!(coverage.missing(3), Some(1));
    }
}
