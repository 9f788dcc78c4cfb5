//! Stochastic rounding to E2M1: up or down with probabilities that make the mean the input.
//!
//! y = lower + step * [u < (|x| - lower) / step],  u uniform in {0, 1, ..., 2^24 - 1} / 2^24
//!
//! The mean of y is |x| within step * 2^-24 for |x| <= 6; larger magnitudes saturate at 6. Numbers
//! on the grid never move. The sign is kept; NaN gives a signed zero.

use crate::e2m1;

/// E2M1 code of `x`, rounded up or down as `bits` decide.
#[inline]
pub fn stochastic_e2m1(x: f32, bits: u32) -> u8 {
    let a = x.abs();
    // The lower neighbour's code counts the grid points that `a` has reached.
    let lower = u32::from(a >= 0.5)
        + u32::from(a >= 1.0)
        + u32::from(a >= 1.5)
        + u32::from(a >= 2.0)
        + u32::from(a >= 3.0)
        + u32::from(a >= 4.0)
        + u32::from(a >= 6.0);
    let inverse_step = if a < 2.0 {
        2.0
    } else if a < 4.0 {
        1.0
    } else {
        0.5
    };
    // Exact: the difference of neighbours in one binade or from zero, times a power of two.
    let fraction = (a - e2m1::MAGNITUDES[lower as usize]) * inverse_step;
    let uniform = (bits >> 8) as f32 / 16_777_216.0;
    let magnitude = (lower + u32::from(uniform < fraction)).min(7);
    (magnitude | x.to_bits() >> 28 & 8) as u8
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::philox::Stream;

    #[test]
    fn numbers_on_the_grid_never_move() {
        for code in 0..16 {
            for bits in [0, 1 << 31, u32::MAX] {
                assert_eq!(stochastic_e2m1(e2m1::decode(code), bits), code);
            }
        }
    }

    #[test]
    fn the_mean_is_the_input() {
        let stream = Stream::new(11, 0, 0);
        let draws = 200_000u64;
        for (tensor, x) in
            [0.1f32, 0.3, 0.75, 1.3, 1.9, 2.2, 3.7, 4.1, 5.0, 5.9, -2.9].into_iter().enumerate()
        {
            let first = tensor as u64 * draws;
            let values = (first..first + draws).map(|e| e2m1::decode(stochastic_e2m1(x, stream.bits(e))));
            let mean = values.map(f64::from).sum::<f64>() / draws as f64;
            // A step is at most 2, so one standard deviation of the mean is at most 1 / sqrt(draws).
            assert!((mean - f64::from(x)).abs() < 5.0 / (draws as f64).sqrt(), "{x}: {mean}");
        }
    }

    #[test]
    fn the_probability_is_exact_over_all_uniforms() {
        // 2.25 lies a quarter of the way from 2 to 3.
        let up = (0..1u32 << 24).filter(|u| stochastic_e2m1(2.25, u << 8) == 5).count();
        assert_eq!(up, 1 << 22);
    }

    #[test]
    fn out_of_range_saturates_and_nan_is_a_signed_zero() {
        assert_eq!(stochastic_e2m1(7.0, 0), 7);
        assert_eq!(stochastic_e2m1(f32::NEG_INFINITY, u32::MAX), 15);
        assert_eq!(stochastic_e2m1(f32::NAN.copysign(-1.0), 0), 8);
        assert_eq!(stochastic_e2m1(-0.0, 0), 8);
    }
}
