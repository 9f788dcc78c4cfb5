//! First moments in four bits, `moment::decode_four` and `encode_four`, sixteen rows at a time.

use std::arch::x86_64::*;

use halfbyte_formats::state::{adamw, moment};

use super::{floats, lane, words_mut};

/// Exponent bias of a scale byte, in quarters of a binade: `moment`'s own.
const SHIFT: i32 = (127 - 48) << 2;

/// What sixteen rows divide their moments by, and the sums of their squares.
pub(super) struct Division {
    /// Roots of the rows' second moments.
    pub(super) rows: __m512,
    /// Least share of its own that an element's root has: root(1 - beta).
    pub(super) own: f32,
    /// Sums of squared ratios, by column of a block.
    pub(super) squares: [__m512; 16],
}

/// Moves the moments of a block by the gradient and divides them: `adamw::Step::ratio`. Gives the bits
/// of the rows' largest. `scale` are the old scale bytes, `profile` the roots of the columns'.
#[inline]
#[target_feature(enable = "avx512f,avx512dq")]
pub(super) fn follow(
    codes: &[__m512i],
    scale: __m512i,
    g: &[__m512i; 16],
    (division, profile): (&mut Division, &[f32; 16]),
    step: &adamw::Step,
    (m, ratio): (&mut [__m512; 16], &mut [__m512; 16]),
) -> __m512i {
    let set = _mm512_set1_ps;
    let table = _mm512_setr_ps(
        0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0,
    );
    let (keep, fresh) = (set(step.average.keep), set(step.average.fresh));
    let (per_root, eps, limit, lowest) =
        (set(step.per_root), set(step.eps), set(step.limit), set(-step.limit));
    let own = set(division.own);
    let (unit, magnitude) = (decode_scale(scale), _mm512_set1_epi32(0x7FFF_FFFF));
    let (mut largest, mut rest) = (_mm512_setzero_si512(), codes[0]);
    columns!(|J| {
        rest = if J.is_multiple_of(8) { codes[J / 8] } else { _mm512_srli_epi32::<4>(rest) };
        let old = _mm512_mul_ps(_mm512_permutexvar_ps(rest, table), unit);
        let new = _mm512_add_ps(_mm512_mul_ps(keep, old), _mm512_mul_ps(fresh, _mm512_castsi512_ps(g[J])));
        m[J] = new;
        largest = _mm512_max_epu32(largest, _mm512_and_si512(_mm512_castps_si512(new), magnitude));
        let mine = _mm512_mul_ps(own, _mm512_castsi512_ps(_mm512_and_si512(g[J], magnitude)));
        // A NaN becomes the second of both.
        let root = _mm512_max_ps(mine, _mm512_mul_ps(division.rows, set(profile[J])));
        let free = _mm512_div_ps(new, _mm512_add_ps(_mm512_mul_ps(root, per_root), eps));
        // In this order both pass a NaN on.
        let held = _mm512_min_ps(limit, _mm512_max_ps(lowest, free));
        ratio[J] = held;
        division.squares[J] = _mm512_add_ps(division.squares[J], _mm512_mul_ps(held, held));
    });
    largest
}

/// Keeps the moments of a block, rounded; gives the new scale bytes.
#[inline]
#[target_feature(enable = "avx512f,avx512dq")]
pub(super) fn keep(
    codes: &mut [__m512i],
    m: &[__m512; 16],
    largest: __m512i,
    own: &[__m512i; 16],
) -> __m512i {
    let mut scale = encode_scale(_mm512_castsi512_ps(largest));
    let inverse = _mm512_div_ps(_mm512_set1_ps(1.0), decode_scale(scale));
    let mut packed = [_mm512_setzero_si512(); 2];
    columns!(|J| {
        let code = code(_mm512_mul_ps(m[J], inverse), own[J ^ 1]);
        // What went in first comes round to the low end.
        packed[J / 8] = _mm512_ror_epi32::<4>(_mm512_or_si512(packed[J / 8], code));
    });
    codes.copy_from_slice(&packed);
    let broken = _mm512_cmpge_epu32_mask(largest, _mm512_set1_epi32(0x7F80_0000));
    if broken != 0 {
        for row in (0..16).filter(|row| broken >> row & 1 == 1) {
            keep_one(row, m, own, codes, &mut scale);
        }
    }
    scale
}

/// `stochastic_code`, of what is no NaN.
#[inline]
#[target_feature(enable = "avx512f,avx512dq")]
fn code(x: __m512, bits: __m512i) -> __m512i {
    let one = _mm512_set1_ps(1.0);
    // The smaller magnitude, without a sign.
    let a = _mm512_range_ps::<0b1010>(x, _mm512_set1_ps(6.0));
    let low = _mm512_cmp_ps_mask::<_CMP_LT_OQ>(a, one);
    let a = _mm512_castps_si512(_mm512_mask_add_ps(a, low, a, one));
    let sum = _mm512_srli_epi32::<22>(_mm512_add_epi32(a, _mm512_srli_epi32::<10>(bits)));
    // 252 counts as four below eight, 254 as two: only three bits are kept.
    let code =
        _mm512_mask_sub_epi32(_mm512_add_epi32(sum, _mm512_set1_epi32(4)), low, sum, _mm512_set1_epi32(254));
    let sign = _mm512_srli_epi32::<28>(_mm512_castps_si512(x));
    // Bits of the code where the mask is set, the sign elsewhere.
    _mm512_ternarylogic_epi32::<0xAC>(_mm512_set1_epi32(7), sign, code)
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
fn keep_one(row: usize, m: &[__m512; 16], own: &[__m512i; 16], codes: &mut [__m512i], scales: &mut __m512i) {
    let (own, mut other) = (lane(own, row), [0; 16]);
    for (j, other) in other.iter_mut().enumerate() {
        *other = own[j ^ 1];
    }
    let (mut bytes, mut scale) = ([0; 8], 0);
    moment::encode_four(&floats(m, row), &other, &mut bytes, &mut scale);
    for (codes, bytes) in codes.iter_mut().zip(bytes.as_chunks::<4>().0) {
        words_mut(codes)[row] = u32::from_le_bytes(*bytes);
    }
    words_mut(scales)[row] = u32::from(scale);
}
