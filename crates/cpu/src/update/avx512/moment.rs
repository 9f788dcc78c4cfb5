//! First moments in four bits, `moment::decode_four` and `encode_four`, sixteen rows at a time.

use std::arch::x86_64::*;

use halfbyte_formats::state::draw::BLOCK_ROUNDS;
use halfbyte_formats::state::{adamw, moment};

use super::luck::{self, Luck, Words};
use super::orders::Orders;
use super::{Columns, floats, select, words_mut};

/// Exponent bias of a scale byte, in quarters of a binade: `moment`'s own.
const SHIFT: i32 = (127 - 48) << 2;

/// What sixteen rows multiply their moments by, and how far that may lead.
pub(super) struct OfColumns<'a> {
    /// Of the columns' profile.
    pub(super) profile: &'a Columns<f32>,
    /// The most that comes of it.
    pub(super) limits: __m512,
}

/// Numbers of a block of the sixteen rows.
pub(super) struct Numbers {
    /// Largest magnitude of a moment, NaN apart.
    pub(super) amax: __m512,
    /// `units::squares` of the gradient.
    pub(super) squares: __m512,
}

/// Moves the moments of a block by the gradient and gives their ratios, those of NaN apart: `adamw::Step::ratio`. `scale`
/// are the old scale bytes. What is `drawn` has nothing to do with it, but its rounds wait for one another.
#[inline]
#[target_feature(enable = "avx512f,avx512dq")]
pub(super) fn follow(
    (codes, scale): (&[__m512i; 2], __m512i),
    g: &Columns<[f32; 16]>,
    columns: &OfColumns<'_>,
    step: &adamw::Step,
    (m, ratio): (&mut Columns<__m512>, &mut Columns<__m512>),
    (luck, column, drawn): (&Luck, usize, &mut [Words; 2]),
) -> Numbers {
    let set = _mm512_set1_ps;
    let table =
        _mm512_setr_ps(0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0);
    let unit = _mm512_mul_ps(set(step.keep), decode_scale(scale));
    let [mut amax, mut squares] = [[_mm512_setzero_ps(); 4]; 2];
    for half in 0..2 {
        let mut words = luck.begin(half, column);
        columns!(J, {
            if J < BLOCK_ROUNDS {
                words = luck.round::<{ J % BLOCK_ROUNDS }>(words);
            }
            let code = _mm512_srli_epi32::<{ 4 * J as u32 }>(codes[half]);
            // SAFETY: sixteen values.
            let (old, g) = (_mm512_permutexvar_ps(code, table), unsafe { _mm512_loadu_ps(g[half][J].as_ptr()) });
            let new = _mm512_fmadd_ps(old, unit, g);
            m[half][J] = new;
            amax[J % 4] = larger(amax[J % 4], new);
            squares[J % 4] = _mm512_fmadd_ps(g, g, squares[J % 4]);
            let free = _mm512_mul_ps(new, set(columns.profile[half][J]));
            // The smaller magnitude, with the sign of the first.
            ratio[half][J] = _mm512_range_ps::<0b0010>(free, columns.limits);
        }, 0 1 2 3 4 5 6 7);
        drawn[half] = words;
    }
    let sum = |x: [__m512; 4]| _mm512_add_ps(_mm512_add_ps(x[0], x[2]), _mm512_add_ps(x[1], x[3]));
    Numbers { amax: larger(larger(amax[0], amax[1]), larger(amax[2], amax[3])), squares: sum(squares) }
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
fn scales(amax: __m512) -> (__m512i, __m512) {
    let scale = encode_scale(amax);
    // 2 / (1 + f / 4) at the exponent of scale byte 0.
    let mantissas =
        [2.0f32, 1.6, 2.0 / 1.5, 2.0 / 1.75].map(|inverse| (inverse.to_bits() + (48 << 23)) as i32);
    let [a, b, c, d] = mantissas;
    let table = _mm512_broadcast_i32x4(_mm_setr_epi32(a, b, c, d));
    let exponent = _mm512_slli_epi32::<23>(_mm512_srli_epi32::<2>(scale));
    let inverse = _mm512_sub_epi32(_mm512_permutexvar_epi32(scale, table), exponent);
    (scale, _mm512_castsi512_ps(inverse))
}

/// Keeps the moments of a block, rounded, and gives the scale bytes; ratios of what is no number become none.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq")]
pub(super) fn keep(
    codes: &mut [__m512i; 2],
    (m, ratio): (&Columns<__m512>, &mut Columns<__m512>),
    &Numbers { amax, squares }: &Numbers,
    luck: &Words,
    orders: &Orders,
) -> __m512i {
    let (mut scale, inverse) = scales(amax);
    for half in 0..2 {
        let (low, high) = (luck::others(luck[2 * half]), luck::others(luck[2 * half + 1]));
        let low = four!(|J| code(m[half][J], inverse, low[J]));
        let high = four!(|J| code(m[half][4 + J], inverse, high[J]));
        codes[half] = pack(&low, &high, orders);
    }
    // Infinite, or a rounding beyond the last code: what lies below is neither.
    let mut broken = _mm512_cmp_ps_mask::<_CMP_NLE_UQ>(_mm512_mul_ps(amax, inverse), _mm512_set1_ps(12.0));
    // A moment is no number where the gradient is none.
    if _mm512_cmp_ps_mask::<_CMP_LT_OQ>(squares, _mm512_set1_ps(f32::INFINITY)) != 0xFFFF {
        for (m, ratio) in m.as_flattened().iter().zip(ratio.as_flattened_mut()) {
            let none = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(*m, *m);
            *ratio = _mm512_mask_mov_ps(*ratio, none, *m);
            broken |= none;
        }
    }
    if broken != 0 {
        for row in (0..16).filter(|row| broken >> row & 1 == 1) {
            keep_one(row, m, luck, codes, &mut scale);
        }
    }
    scale
}

/// `stochastic_code` of `m * inverse / 2`, which is at most 6: the sign in bit 31, the rest in bits 22 to 24; others may
/// be set, too.
///
/// Below 2 the step is that of [2, 4), so there the number is moved into it; what lies above is doubled
/// instead. Both then have a float whose last exponent bits and first mantissa bit are the code.
#[inline]
#[target_feature(enable = "avx512f,avx512dq")]
fn code(m: __m512, inverse: __m512, bits: __m512i) -> __m512i {
    let x = _mm512_mul_ps(m, inverse);
    // The larger magnitude, with the sign of the first.
    let moved = _mm512_add_ps(x, _mm512_range_ps::<0b0011>(x, _mm512_set1_ps(2.0)));
    _mm512_add_epi32(_mm512_castps_si512(moved), bits)
}

/// The nibbles of eight columns, 0 to 3 and 4 to 7, side by side; they come as [`code`] gives them.
///
/// Two columns at a time, of which one is moved by four bits so that signs and codes lie beside each other; then words
/// of four columns, in which both signs move to their codes.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn pack(low: &[__m512i; 4], high: &[__m512i; 4], orders: &Orders) -> __m512i {
    let field = |shift: u32| ((1u32 << 31 | 7 << 22) >> shift) as i32;
    let two = |even, odd| select(_mm512_set1_epi32(field(0)), odd, _mm512_srli_epi32::<4>(even));
    // Signs in bits 11 and 15, codes from bits 2 and 6 on.
    let words = |low, high| orders.upper_halves(low, high);
    let signs = |x| select(_mm512_set1_epi16(1 << 5 | 1 << 9), _mm512_srli_epi16::<6>(x), x);
    let first = signs(words(two(low[0], low[1]), two(high[0], high[1])));
    let second = signs(words(two(low[2], low[3]), two(high[2], high[3])));
    select(_mm512_set1_epi16(255), _mm512_srli_epi16::<2>(first), _mm512_slli_epi16::<6>(second))
}

#[inline]
#[target_feature(enable = "avx512f")]
fn decode_scale(byte: __m512i) -> __m512 {
    _mm512_castsi512_ps(_mm512_slli_epi32::<21>(_mm512_add_epi32(byte, _mm512_set1_epi32(SHIFT))))
}

/// `moment`'s own, which divides by six. The product is on the same side of every scale s, which has three bits: that of
/// 6 s rounds to s, since 1 / 6 is off by less than 2^-25 of it, and the next float is 4 steps of s away or more.
#[inline]
#[target_feature(enable = "avx512f")]
fn encode_scale(amax: __m512) -> __m512i {
    let sixth = _mm512_castps_si512(_mm512_mul_ps(amax, _mm512_set1_ps(1.0 / 6.0)));
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
