//! First moments in four bits, `moment::decode_four` and `encode_four`, sixteen rows at a time.

use std::arch::x86_64::*;

use halfbyte_formats::state::{adamw, moment};

use super::luck::{self, Luck, Words};
use super::{Columns, floats, select, turn, words_mut};

/// Exponent bias of a scale byte, in quarters of a binade: `moment`'s own.
const SHIFT: i32 = (127 - 48) << 2;

/// What sixteen rows divide their moments by, corrected, and the sums of their squares.
pub(super) struct Division {
    /// Roots of the rows' second moments.
    pub(super) rows: __m512,
    /// Least share of its own that an element's root has.
    pub(super) own: f32,
    /// Sums of squared ratios, by column of a block.
    pub(super) squares: Columns<__m512>,
}

/// Moves the moments of a block by the gradient and divides them: `adamw::Step::ratio`. Gives the rows'
/// largest magnitudes, NaN apart. `scale` are the old scale bytes, `profile` the roots of the columns'. What is
/// `drawn`, and the next block's gradient, which is `turned`, have nothing to do with it: a divider is slow, but leaves
/// room beside it.
///
/// # Safety
/// The rows of the next block's gradient may be read.
#[inline]
#[target_feature(enable = "avx512f,avx512dq")]
pub(super) unsafe fn follow<const PLAIN: bool>(
    (codes, scale): (&[__m512i; 2], __m512i),
    g: &Columns<__m512i>,
    (division, profile): (&mut Division, &Columns<f32>),
    step: &adamw::Step,
    (m, ratio): (&mut Columns<__m512>, &mut Columns<__m512>),
    (luck, column, drawn): (&Luck, usize, &mut [Words; 2]),
    (next, stride, turned): (*const f32, usize, &mut [__m512i; 16]),
) -> __m512 {
    let set = _mm512_set1_ps;
    let table = _mm512_setr_ps(
        0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0,
    );
    let (fresh, eps, own) = (set(step.average.fresh), set(step.eps), set(division.own));
    let unit = _mm512_mul_ps(set(step.average.keep), decode_scale(scale));
    let mut amax = [_mm512_setzero_ps(); 4];
    for half in 0..2 {
        columns!(J, {
            let code = _mm512_srli_epi32::<{ 4 * J as u32 }>(codes[half]);
            let (old, g) = (_mm512_permutexvar_ps(code, table), _mm512_castsi512_ps(g[half][J]));
            let new = _mm512_fmadd_ps(old, unit, _mm512_mul_ps(fresh, g));
            m[half][J] = new;
            amax[J % 4] = larger(amax[J % 4], new);
            let root = larger(_mm512_mul_ps(own, g), _mm512_mul_ps(division.rows, set(profile[half][J])));
            let mut held = _mm512_div_ps(new, _mm512_add_ps(root, eps));
            if !PLAIN {
                // In this order both pass a NaN on.
                held = _mm512_min_ps(set(step.limit), _mm512_max_ps(set(-step.limit), held));
            }
            ratio[half][J] = held;
            division.squares[half][J] = _mm512_fmadd_ps(held, held, division.squares[half][J]);
        }, 0 1 2 3 4 5 6 7);
        drawn[half] = luck.rows(half, column);
        match half {
            // SAFETY: by the caller's promise.
            0 => unsafe { turn::load_quarters(next.cast(), stride, turned) },
            _ => turn::between(turned),
        }
    }
    larger(larger(amax[0], amax[1]), larger(amax[2], amax[3]))
}

/// The larger magnitude; of a NaN and a number the number's.
#[inline]
#[target_feature(enable = "avx512f,avx512dq")]
fn larger(a: __m512, b: __m512) -> __m512 {
    _mm512_range_ps::<0b1011>(a, b)
}

/// New scale bytes for the rows' largest magnitudes, and twice what a moment is multiplied by for its code.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn scales(amax: __m512) -> (__m512i, __m512) {
    let scale = encode_scale(amax);
    (scale, _mm512_div_ps(_mm512_set1_ps(2.0), decode_scale(scale)))
}

/// Keeps the moments of a block, rounded under [`scales`]; gives the scale bytes. Lanes of `finite` have no NaN: their
/// weights could stay where they are.
#[inline]
#[target_feature(enable = "avx512f,avx512dq")]
pub(super) fn keep(
    codes: &mut [__m512i; 2],
    m: &Columns<__m512>,
    (amax, scales): (__m512, (__m512i, __m512)),
    luck: &Words,
    finite: u16,
) -> __m512i {
    let (mut scale, inverse) = scales;
    for half in 0..2 {
        let mut packed = _mm512_setzero_si512();
        columns!(J, {
            let bits = luck::other::<{ J % 4 }>(luck[2 * half + J / 4]);
            let nibble = code(m[half][J], inverse, bits);
            // What went in first comes round to where it was.
            packed = _mm512_ror_epi32::<4>(select(_mm512_set1_epi32(15 << 22), nibble, packed));
        }, 0 1 2 3 4 5 6 7);
        codes[half] = _mm512_ror_epi32::<22>(packed);
    }
    let mut broken = _mm512_cmp_ps_mask::<_CMP_EQ_OQ>(amax, _mm512_set1_ps(f32::INFINITY));
    if finite != 0xFFFF {
        for m in m.as_flattened() {
            broken |= _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(*m, *m);
        }
    }
    if broken != 0 {
        for row in (0..16).filter(|row| broken >> row & 1 == 1) {
            keep_one(row, m, luck, codes, &mut scale);
        }
    }
    scale
}

/// `stochastic_code` of `m * inverse / 2`, which is no NaN, in bits 22 to 25; others may be set, too.
///
/// Below 2 the step is that of [2, 4), so there the number is moved into it; what lies above is doubled
/// instead. Both then have a float whose last exponent bits and first mantissa bit are the code.
#[inline]
#[target_feature(enable = "avx512f,avx512dq")]
fn code(m: __m512, inverse: __m512, bits: __m512i) -> __m512i {
    // The smaller magnitude, without a sign.
    let a = _mm512_range_ps::<0b1010>(_mm512_mul_ps(m, inverse), _mm512_set1_ps(12.0));
    let moved = _mm512_add_ps(a, _mm512_max_ps(a, _mm512_set1_ps(2.0)));
    let sum = _mm512_add_epi32(_mm512_castps_si512(moved), _mm512_srli_epi32::<10>(bits));
    select(_mm512_set1_epi32(8 << 22), _mm512_srli_epi32::<6>(_mm512_castps_si512(m)), sum)
}

#[inline]
#[target_feature(enable = "avx512f")]
fn decode_scale(byte: __m512i) -> __m512 {
    _mm512_castsi512_ps(_mm512_slli_epi32::<21>(_mm512_add_epi32(byte, _mm512_set1_epi32(SHIFT))))
}

#[inline]
#[target_feature(enable = "avx512f")]
fn encode_scale(amax: __m512) -> __m512i {
    let sixth = _mm512_castps_si512(_mm512_div_ps(amax, _mm512_set1_ps(6.0)));
    let quarters = _mm512_srli_epi32::<21>(_mm512_add_epi32(sixth, _mm512_set1_epi32(0x1F_FFFF)));
    let (least, most) = (_mm512_set1_epi32(SHIFT), _mm512_set1_epi32(SHIFT + 255));
    _mm512_sub_epi32(_mm512_min_epu32(_mm512_max_epu32(quarters, least), most), least)
}

/// A row with a moment that is not finite.
#[cold]
#[inline(never)]
fn keep_one(row: usize, m: &Columns<__m512>, luck: &Words, codes: &mut [__m512i; 2], scales: &mut __m512i) {
    let ([_, other], mut bytes, mut scale) = (luck::of_row(luck, row), [0; 8], 0);
    moment::encode_four(&floats(m, row), &other, &mut bytes, &mut scale);
    for (codes, bytes) in codes.iter_mut().zip(bytes.as_chunks::<4>().0) {
        words_mut(codes)[row] = u32::from_le_bytes(*bytes);
    }
    words_mut(scales)[row] = u32::from(scale);
}
