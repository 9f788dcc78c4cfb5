//! The row order of q and k in GGUF files of the llama family.
//!
//! Their rotary pairs are neighbours (2i, 2i+1); ours lie half a head apart (i, i + d/2). So inside
//! every head, file row 2i + a is our row a d/2 + i.

/// The row of the file that holds our row `row`, with heads of `head_dim` rows.
pub(super) fn file_row(row: usize, head_dim: usize) -> usize {
    let (head, inside, half) = (row / head_dim, row % head_dim, head_dim / 2);
    head * head_dim + 2 * (inside % half) + inside / half
}

/// Whole heads in our order -> the file's; `item` bytes per row.
pub(super) fn to_file_order(ours: &[u8], item: usize, head_dim: usize) -> Vec<u8> {
    let mut file = vec![0; ours.len()];
    for (row, bytes) in ours.chunks_exact(item).enumerate() {
        let at = file_row(row, head_dim) * item;
        file[at..at + item].copy_from_slice(bytes);
    }
    file
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_half_a_head_apart_become_neighbours() {
        let order: Vec<_> = (0..8).map(|row| file_row(row, 4)).collect();
        assert_eq!(order, [0, 2, 1, 3, 4, 6, 5, 7]);
        assert_eq!(to_file_order(&[1, 2, 3, 4], 1, 4), [1, 3, 2, 4]);
    }
}
