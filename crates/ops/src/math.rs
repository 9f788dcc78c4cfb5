//! Functions whose bits every backend shares: reductions in a fixed order, exp, silu.
//!
//! They are `inline(always)` so that a backend can compile them for its instruction set:
//! the order of operations is written down here, so wider registers change nothing.

/// Lanes of a reduction: lane i takes the elements whose index is i modulo 16.
pub const LANES: usize = 16;

/// Adds the 16 lanes as a tree: i with i + 8, then + 4, + 2, + 1.
#[inline(always)]
pub fn fold(mut lanes: [f32; LANES]) -> f32 {
    let mut width = LANES / 2;
    while width > 0 {
        for i in 0..width {
            lanes[i] += lanes[i + width];
        }
        width /= 2;
    }
    lanes[0]
}

/// Sum of squares.
#[inline(always)]
pub fn sum_of_squares(x: &[f32]) -> f32 {
    let mut lanes = [0.0f32; LANES];
    let (whole, rest) = x.as_chunks::<LANES>();
    for x in whole {
        for (lane, x) in lanes.iter_mut().zip(x) {
            *lane = x.mul_add(*x, *lane);
        }
    }
    for (lane, x) in lanes.iter_mut().zip(rest) {
        *lane = x.mul_add(*x, *lane);
    }
    fold(lanes)
}

/// Sum.
#[inline(always)]
pub fn sum(x: &[f32]) -> f32 {
    let mut lanes = [0.0f32; LANES];
    let (whole, rest) = x.as_chunks::<LANES>();
    for x in whole {
        for i in 0..LANES {
            lanes[i] += x[i];
        }
    }
    for (lane, x) in lanes.iter_mut().zip(rest) {
        *lane += x;
    }
    fold(lanes)
}

/// Largest value; NaN is passed over, so a bad score shows in the sum.
#[inline(always)]
pub fn max(x: &[f32]) -> f32 {
    let mut lanes = [f32::NEG_INFINITY; LANES];
    let (whole, rest) = x.as_chunks::<LANES>();
    for x in whole {
        for (lane, x) in lanes.iter_mut().zip(x) {
            *lane = if *x > *lane { *x } else { *lane };
        }
    }
    for (lane, x) in lanes.iter_mut().zip(rest) {
        *lane = if *x > *lane { *x } else { *lane };
    }
    lanes.into_iter().fold(f32::NEG_INFINITY, f32::max)
}

/// e^x, within 2 units in the last place; below -87 exactly zero (no subnormal numbers).
///
/// x = n ln 2 + r with |r| <= ln 2 / 2; e^r by a polynomial of degree 6.
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    const SHIFT: f32 = 12_582_912.0; // 1.5 * 2^23: adding it rounds to a whole number
    let clamped = if x > 88.7 { 88.7 } else { x };
    let clamped = if clamped < -87.0 { -87.0 } else { clamped };
    let shifted = clamped.mul_add(std::f32::consts::LOG2_E, SHIFT);
    let n = shifted - SHIFT;
    let r = n.mul_add(-0.693_145_75, clamped);
    let r = n.mul_add(-1.428_606_8e-6, r);
    let mut p = 1.388_888_9e-3f32;
    p = p.mul_add(r, 8.333_334e-3);
    p = p.mul_add(r, 4.166_666_8e-2);
    p = p.mul_add(r, 0.166_666_67);
    p = p.mul_add(r, 0.5);
    p = p.mul_add(r, 1.0);
    p = p.mul_add(r, 1.0);
    // The low bits of `shifted` are n in two's complement. n may be 128, so scale in two halves.
    let n = (shifted.to_bits() as i32).wrapping_sub(SHIFT.to_bits() as i32);
    let half = n >> 1;
    let low = f32::from_bits(((127 + half) as u32) << 23);
    let high = f32::from_bits(((127 + n - half) as u32) << 23);
    let value = p * low * high;
    if x < -87.0 { 0.0 } else { value }
}

/// x / (1 + e^-x)
#[inline(always)]
pub fn silu(x: f32) -> f32 {
    x / (1.0 + exp(-x))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_is_within_two_units_of_the_last_place() {
        for i in -86_999..88_000 {
            let x = i as f32 * 1e-3;
            let exact = f64::from(x).exp();
            let error = (f64::from(exp(x)) - exact).abs() / exact;
            assert!(error < 2.4e-7, "exp({x}) is off by {error:e}");
        }
    }

    #[test]
    fn exp_ends_in_zero_and_keeps_nan() {
        assert_eq!(exp(-87.01), 0.0);
        assert_eq!(exp(f32::NEG_INFINITY), 0.0);
        assert_eq!(exp(0.0), 1.0);
        assert!(exp(f32::NAN).is_nan());
    }

    #[test]
    fn fold_is_a_tree() {
        let lanes: [f32; LANES] = std::array::from_fn(|i| i as f32);
        assert_eq!(fold(lanes), 120.0);
    }
}
