//! Every gradient op against central differences, in f64, of the maths written down a second time.
//!
//! With L = sum dy y(x), dL/dx[i] = (L(x + h e_i) - L(x - h e_i)) / 2h. Steps of h = 2^-13 around
//! numbers near one leave an error of h^2 and of 2^-52 / h: about 1e-8, far below what is judged.
//! The forward op is judged too: so the function that is differentiated here is the one that runs.
//!
//! **How much may be off**, as a part of the largest value of the tensor:
//! - `EXACT`, where sums are f32: each rounding is 2^-24 of a term, terms have random signs, so that
//!   what is left of a sum of up to a few hundred of them is a small multiple of that; 2^-20 are 16.
//!   Products that round to bf16 belong here as well, because the inputs are numbers that bf16 holds.
//! - `ROUNDED`, where an op rounds a value of its own to bf16 before it is multiplied: 2^-8 of a
//!   factor, for up to four factors on the way from the inputs to a result.

mod attend;
mod products;
mod rows;

use crate::Backend;
use crate::testing::numbers;
use halfbyte_formats::bf16;

const STEP: f64 = 1.0 / 8192.0;
const EXACT: f64 = 1.0 / 1_048_576.0;
const ROUNDED: f64 = 1.0 / 64.0;

/// What every backend must give.
pub fn contract<B: Backend>(make: impl Fn(usize) -> B) {
    rows::contract(&make);
    products::contract(&make);
    attend::contract(&make);
}

/// Numbers in -1..1 that bf16 holds.
fn narrow_numbers(seed: u32, count: usize) -> Vec<f32> {
    numbers(seed, count).into_iter().map(bf16::round).collect()
}

fn wide(x: &[f32]) -> Vec<f64> {
    x.iter().map(|x| f64::from(*x)).collect()
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// The derivative of `value` by every element of `x`.
fn slopes(x: &[f32], mut value: impl FnMut(&[f64]) -> f64) -> Vec<f64> {
    let (mut x, count) = (wide(x), x.len());
    let each = |i: usize| {
        let middle = x[i];
        x[i] = middle + STEP;
        let above = value(&x);
        x[i] = middle - STEP;
        let below = value(&x);
        x[i] = middle;
        (above - below) / (2.0 * STEP)
    };
    (0..count).map(each).collect()
}

/// Fails at the first value that is off by more than `allowed` of the largest.
fn judge(got: &[f32], want: &[f64], allowed: f64, what: &str) {
    assert_eq!(got.len(), want.len(), "{what}: length");
    let largest = want.iter().fold(0.0f64, |largest, x| largest.max(x.abs()));
    for (i, (got, want)) in got.iter().zip(want).enumerate() {
        let off = (f64::from(*got) - want).abs() / largest.max(f64::MIN_POSITIVE);
        assert!(off <= allowed, "{what}: element {i} is {got:e}, expected {want:e}: off by {off:.1e}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slope_of_a_cube_is_three_squares() {
        let x = [0.5f32, -2.0];
        let slopes = slopes(&x, |x| x.iter().map(|x| x * x * x).sum());
        judge(&[0.75, 12.0], &slopes, 1e-7, "cube");
    }

    #[test]
    #[should_panic(expected = "element 1")]
    fn a_gradient_that_is_off_is_found() {
        judge(&[1.0, 0.999], &[1.0, 1.0], EXACT, "nearly");
    }
}
