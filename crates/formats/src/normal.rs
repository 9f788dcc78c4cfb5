//! Normal numbers from random bits: two from each pair of words (Box and Muller).

use std::ops::Range;

use crate::philox::Stream;

/// Normal numbers of a run of elements, around zero; the same for every way to cut a tensor into runs.
pub fn normal(stream: Stream, elements: Range<usize>, deviation: f32) -> impl Iterator<Item = f32> {
    let first = elements.start / 4;
    let quads = first..elements.end.div_ceil(4);
    let values = quads.flat_map(move |quad| {
        let [a, b, c, d] = stream.quad(quad as u64);
        let ([x, y], [z, w]) = (pair(a, b, deviation), pair(c, d, deviation));
        [x, y, z, w]
    });
    values.skip(elements.start - first * 4).take(elements.len())
}

fn pair(a: u32, b: u32, deviation: f32) -> [f32; 2] {
    const STEP: f32 = 1.0 / (1 << 24) as f32;
    // From (0, 1]: the logarithm of zero is no number.
    let radius = (-2.0 * (((a >> 8) + 1) as f32 * STEP).ln()).sqrt() * deviation;
    let (sin, cos) = ((b >> 8) as f32 * STEP * std::f32::consts::TAU).sin_cos();
    [radius * cos, radius * sin]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_do_not_depend_on_how_they_are_cut() {
        let values = |elements| normal(Stream::new(3, 0, 1), elements, 1.0).collect::<Vec<_>>();
        let whole = values(0..37);
        assert_eq!(whole.len(), 37);
        assert_eq!(values(5..22), whole[5..22]);
        assert_eq!(values(36..37), whole[36..]);
    }

    #[test]
    fn mean_and_spread_are_those_asked_for() {
        let values: Vec<f32> = normal(Stream::new(0, 0, 0), 0..100_000, 0.02).collect();
        let mean = values.iter().map(|x| f64::from(*x)).sum::<f64>() / 1e5;
        let square = values.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>() / 1e5;
        // Five standard deviations of each estimate.
        assert!(mean.abs() < 5.0 * 0.02 / 316.0, "{mean}");
        assert!((square.sqrt() / 0.02 - 1.0).abs() < 5.0 / 447.0, "{square}");
    }
}
