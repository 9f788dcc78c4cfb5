//! Offsets from lifetimes: two buffers may share bytes if no stage needs both.

/// A span of time, inclusive.
pub type Span = (usize, usize);

/// Offsets for (bytes, lifetime), each a multiple of `align`, and the end of the last.
/// The largest go first, each to the lowest place free during its lifetime.
pub fn arrange(items: &[(usize, Span)], align: usize) -> (Vec<usize>, usize) {
    let mut order: Vec<usize> = (0..items.len()).collect();
    order.sort_by_key(|&i| std::cmp::Reverse(items[i].0));
    let mut offsets = vec![0; items.len()];
    let mut placed: Vec<usize> = Vec::new();
    let mut end = 0;
    for i in order {
        let (bytes, span) = items[i];
        let mut taken: Vec<(usize, usize)> = placed
            .iter()
            .filter(|&&j| meet(items[j].1, span))
            .map(|&j| (offsets[j], offsets[j] + items[j].0))
            .collect();
        taken.sort_unstable();
        let mut at = 0;
        for (from, to) in taken {
            if at + bytes <= from {
                break;
            }
            at = at.max(to.next_multiple_of(align));
        }
        offsets[i] = at;
        end = end.max(at + bytes);
        placed.push(i);
    }
    (offsets, end.next_multiple_of(align))
}

fn meet(a: Span, b: Span) -> bool {
    a.0 <= b.1 && b.0 <= a.1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_that_live_together_do_not_overlap() {
        let items: Vec<(usize, Span)> =
            (0..60).map(|i| (1 + (i * 7919) % 1000, ((i * 31) % 10, (i * 31) % 10 + i % 4))).collect();
        let (offsets, end) = arrange(&items, 64);
        for i in 0..items.len() {
            assert!(offsets[i] + items[i].0 <= end && offsets[i].is_multiple_of(64));
            for j in 0..i {
                let apart = offsets[i] + items[i].0 <= offsets[j] || offsets[j] + items[j].0 <= offsets[i];
                assert!(apart || !meet(items[i].1, items[j].1));
            }
        }
    }

    #[test]
    fn buffers_that_never_meet_share_their_bytes() {
        assert_eq!(arrange(&[(640, (0, 1)), (640, (2, 3))], 64), (vec![0, 0], 640));
    }
}
