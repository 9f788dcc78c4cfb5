//! A random Hadamard transform of 16 numbers: y = H (s x) / 4, with signs s and H[i,j] = (-1)^(ones in i & j).
//!
//! It is orthonormal: two vectors that go through it with the same signs keep their product, but what was one large
//! number among small ones is spread over all sixteen, so that a scale which they share fits each of them.

/// Numbers that are transformed together.
pub const SIZE: usize = 16;

/// Transforms them; bit i of `signs` turns number i first. Numbers that are h apart are added up, h = 1, 2, 4, 8: the
/// order is part of the result.
#[inline]
pub fn transform(x: &mut [f32; SIZE], signs: u32) {
    for (i, x) in x.iter_mut().enumerate() {
        *x = f32::from_bits(x.to_bits() ^ (signs >> i & 1) << 31);
    }
    for h in [1, 2, 4, 8] {
        for i in (0..SIZE).filter(|i| i & h == 0) {
            let (a, b) = (x[i], x[i + h]);
            (x[i], x[i + h]) = (a + b, a - b);
        }
    }
    x.iter_mut().for_each(|x| *x *= 0.25);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::philox::Stream;

    fn numbers(seed: u64) -> [f32; SIZE] {
        // Few bits each, so that sums and products are exact.
        std::array::from_fn(|i| (Stream::new(seed, 0, 0).bits(i as u64) >> 22) as f32 - 512.0)
    }

    fn dot(a: &[f32; SIZE], b: &[f32; SIZE]) -> f32 {
        a.iter().zip(b).map(|(a, b)| a * b).sum()
    }

    #[test]
    fn products_stay_what_they_were() {
        for (seed, signs) in [(1, 0), (2, 0xFFFF), (3, 0x5A3C), (4, 0x8001)] {
            let (mut a, mut b) = (numbers(seed), numbers(seed + 9));
            let want = dot(&a, &b);
            transform(&mut a, signs);
            transform(&mut b, signs);
            assert_eq!(dot(&a, &b), want);
        }
    }

    #[test]
    fn one_large_number_becomes_sixteen_equal_ones() {
        let mut x = [0.0; SIZE];
        x[5] = -8.0;
        transform(&mut x, 0x1234);
        assert!(x.iter().all(|x| x.abs() == 2.0), "{x:?}");
    }

    #[test]
    fn other_signs_give_other_numbers() {
        let [mut a, mut b] = [numbers(1); 2];
        transform(&mut a, 0x5A3C);
        transform(&mut b, 0x5A3D);
        assert_ne!(a, b);
    }
}
