//! Squares of a panel's gradient: `second::add_squares` for sixteen rows, four at a time.

use std::arch::x86_64::*;

use super::{BLOCK, Panel, turn, words};

/// Adds the squares of the panel's rows to the columns' `sums`, row by row, and gives the rows' sums.
///
/// # Safety
/// AVX-512 is there, and nobody writes the gradient.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
pub(in super::super) unsafe fn add_squares(panel: &Panel, sums: &mut [f32]) -> [f32; 16] {
    let mut lanes = [_mm512_setzero_si512(); 16];
    for (group, lanes) in lanes.as_chunks_mut::<4>().0.iter_mut().enumerate() {
        let (mut squares, first) =
            ([_mm512_setzero_ps(); 4], panel.gradient.wrapping_add(4 * group * panel.width));
        for (block, sums) in sums.as_chunks_mut::<BLOCK>().0.iter_mut().enumerate() {
            // SAFETY: sixteen sums.
            let mut sum = unsafe { _mm512_loadu_ps(sums.as_ptr()) };
            for (row, squares) in squares.iter_mut().enumerate() {
                // SAFETY: a block of a row, by the caller's promise.
                let g = unsafe { _mm512_loadu_ps(first.add(row * panel.width + block * BLOCK)) };
                (sum, *squares) = (_mm512_fmadd_ps(g, g, sum), _mm512_fmadd_ps(g, g, *squares));
            }
            // SAFETY: as above.
            unsafe { _mm512_storeu_ps(sums.as_mut_ptr(), sum) };
        }
        *lanes = squares.map(|squares| _mm512_castps_si512(squares));
    }
    turn::sixteen(&mut lanes);
    let add = |a: __m512i, b: __m512i| {
        _mm512_castps_si512(_mm512_add_ps(_mm512_castsi512_ps(a), _mm512_castsi512_ps(b)))
    };
    // In the order of `units::fold`.
    for half in [8, 4, 2, 1] {
        for i in 0..half {
            lanes[i] = add(lanes[i], lanes[i + half]);
        }
    }
    words(&lanes[0]).map(f32::from_bits)
}
