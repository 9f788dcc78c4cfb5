//! Sixteen rows of a panel learn together, a row in each lane, by hand for the default states: the bits
//! of `halfbyte_ops::update::row`.
//!
//! A panel holds its codes and scales in lanes already; gradients, remainders and moments are turned. What
//! belongs to a block (its largest, its scale, whether it stays) is then one register for sixteen blocks.
//! Lanes whose block changes its scale, or is not finite, take the reference's own way, one by one.
//!
//! ```text
//! unit of 64 columns: turn m, r -> block of 16 columns: moment | words | turn next g -> nvfp4 | int8 -> turn back
//! ```

/// Writes a block once for each of sixteen columns, with its number as a constant.
macro_rules! columns {
    (|$column:ident| $body:block) => {
        columns!($column, $body, 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15)
    };
    ($column:ident, $body:block, $($number:literal)*) => {
        $({
            const $column: usize = $number;
            $body
        })*
    };
}

/// Four values, each of an expression that knows its number as a constant: a stage of the work on four columns.
macro_rules! four {
    (|$number:ident| $value:expr) => {
        [
            {
                const $number: usize = 0;
                $value
            },
            {
                const $number: usize = 1;
                $value
            },
            {
                const $number: usize = 2;
                $value
            },
            {
                const $number: usize = 3;
                $value
            },
        ]
    };
}

mod int8;
mod luck;
mod moment;
mod nvfp4;
mod squares;
mod turn;

pub(super) use squares::add_squares;

use std::arch::x86_64::*;

use halfbyte_formats::state::moment::Moment;
use halfbyte_formats::state::{
    BLOCK, Tally, adamw, int8::Remainder as TableRemainder, second, weight::Remainder,
};
use halfbyte_ops::tensor::UNIT;
use halfbyte_ops::update::{Moving, Recipe};
use halfbyte_ops::{Weight, WeightFormat};

use luck::{Luck, Words};
use moment::Division;

/// Sixteen rows, with their pointers.
pub(super) struct Panel {
    /// Its units.
    pub(super) weights: *mut u8,
    /// The weight's own scale.
    pub(super) global: f32,
    /// Values, and all rows `width` apart.
    pub(super) gradient: *const f32,
    /// Remainders of the first row; rows lie close.
    pub(super) remainders: *mut u8,
    /// Moments of the first row; rows lie close.
    pub(super) moments: *mut u8,
    /// Second moments of the rows.
    pub(super) rows: [f32; 16],
    /// Roots of the columns' profile.
    pub(super) profile: *const f32,
    /// Number of the first element.
    pub(super) first: u64,
    /// Columns, whole units.
    pub(super) width: usize,
}

/// Whether a panel of such a weight has its way here.
pub(super) fn fits(of: &Weight, recipe: &Recipe) -> bool {
    let remainder = match of.format {
        WeightFormat::Nvfp4 => true,
        WeightFormat::Int8 => recipe.table != TableRemainder::Byte,
        WeightFormat::F32 | WeightFormat::Bf16 => false,
    };
    let kept = recipe.master.is_none() && !recipe.full_second;
    remainder && kept && recipe.moment == Moment::Four && of.columns.is_multiple_of(UNIT)
}

/// The rows learn.
///
/// # Safety
/// AVX-512 is there, `fits` said yes, and nobody else touches what the panel points to.
pub(super) unsafe fn learn(format: WeightFormat, panel: &Panel, moving: &Moving<'_>) -> Tally {
    let (recipe, step) = (moving.step.recipe, &moving.step.adamw);
    let plain = step.decay == 0.0 && step.limit == f32::INFINITY;
    // SAFETY: by the caller's promise.
    unsafe {
        match (format, recipe.weight, recipe.table, plain) {
            (WeightFormat::Int8, _, TableRemainder::None, true) => units::<true, 0, true>(panel, moving),
            (WeightFormat::Int8, _, TableRemainder::None, false) => units::<true, 0, false>(panel, moving),
            (WeightFormat::Int8, _, _, true) => units::<true, 4, true>(panel, moving),
            (WeightFormat::Int8, _, _, false) => units::<true, 4, false>(panel, moving),
            (_, Remainder::Byte, _, true) => units::<false, 8, true>(panel, moving),
            (_, Remainder::Byte, _, false) => units::<false, 8, false>(panel, moving),
            (_, Remainder::Nibble, _, true) => units::<false, 4, true>(panel, moving),
            (_, Remainder::Nibble, _, false) => units::<false, 4, false>(panel, moving),
        }
    }
}

/// Something of the sixteen columns of a block, in halves of eight.
type Columns<T> = [[T; 8]; 2];

/// What moves the weights of a block of sixteen columns.
struct Moves<'a> {
    ratio: &'a Columns<__m512>,
    luck: &'a Words,
    step: &'a adamw::Step,
    /// How far, in 2^-16 of the rows' units.
    times: __m512,
}

impl Moves<'_> {
    /// How far weights of `k` move, both in 2^-16 of a unit: `units::position`, but that what is too far
    /// wraps around, to where nothing stays.
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn distance<const PLAIN: bool>(&self, k: __m512i, ratio: __m512) -> __m512i {
        let mut t = _mm512_mul_ps(ratio, self.times);
        if !PLAIN {
            t = _mm512_sub_ps(t, _mm512_mul_ps(_mm512_set1_ps(self.step.decay), _mm512_cvtepi32_ps(k)));
        }
        _mm512_cvtps_epi32(t)
    }
}

/// The step is `PLAIN` if it has neither decay nor clip.
///
/// # Safety
/// As [`learn`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
unsafe fn units<const TABLE: bool, const BITS: u32, const PLAIN: bool>(
    panel: &Panel,
    moving: &Moving<'_>,
) -> Tally {
    let (step, width) = (&moving.step.adamw, panel.width);
    let luck = Luck::new(moving.draws.key(), panel.first, width as u64);
    let rows = _mm512_mul_ps(roots(&panel.rows), _mm512_set1_ps(step.per_root));
    let mut division = Division { rows, own: moving.step.own_root(), squares: [[_mm512_setzero_ps(); 8]; 2] };
    let (remainder_stride, moment_stride) = (width * BITS as usize / 8, width / 2 + width / BLOCK);
    let unit_bytes = if TABLE { WeightFormat::Int8 } else { WeightFormat::Nvfp4 }.unit_bytes();
    let (zero, low_byte) = (_mm512_setzero_si512(), _mm512_set1_epi32(255));
    let (mut tally, mut changed) = (Tally::default(), zero);
    let (mut codes, mut rests, mut g, mut drawn) =
        ([[zero; 2]; 4], [zero; 16], [[[zero; 8]; 2]; 2], [[zero; 4]; 2]);
    let [mut m, mut ratio] = [[[_mm512_setzero_ps(); 8]; 2]; 2];
    // SAFETY: the first block of the gradient.
    unsafe { turn::load_sixteen(panel.gradient.cast(), 4 * width, turn::whole(&mut g[0])) };
    for unit in 0..width / UNIT {
        // SAFETY: a unit of the panel, and the parts of its rows that belong to it.
        unsafe {
            let weights = panel.weights.add(unit * unit_bytes);
            let moments = panel.moments.add(unit * UNIT / 2);
            let scale_plane = panel.moments.add(width / 2 + unit * UNIT / BLOCK);
            let remainders = panel.remainders.add(unit * UNIT * BITS as usize / 8);
            turn::load_eight(moments, moment_stride, codes.as_flattened_mut());
            let mut scale_bytes = turn::load_one(scale_plane, moment_stride);
            match BITS {
                8 => turn::load_sixteen(remainders, remainder_stride, &mut rests),
                4 => turn::load_eight(remainders, remainder_stride, &mut rests[..8]),
                _ => {}
            }
            for (block, moment) in codes.iter_mut().enumerate() {
                let column = unit * UNIT + block * BLOCK;
                // The panel that lies behind this one learns next.
                let (number, weights_end) =
                    (column / BLOCK, panel.weights.wrapping_add(width / UNIT * unit_bytes));
                prefetch(weights_end, unit_bytes / 4, number);
                prefetch(panel.remainders.wrapping_add(16 * remainder_stride), 32 * BITS as usize, number);
                prefetch(
                    panel.moments.wrapping_add(16 * moment_stride),
                    16 * Moment::Four.block_bytes(),
                    number,
                );
                prefetch(panel.gradient.wrapping_add(16 * width).cast(), 1024, number);
                let profile = &*panel.profile.add(column).cast::<Columns<f32>>();
                let times = match TABLE {
                    true => int8::times::<BITS>(weights, block, step),
                    false => nvfp4::times::<BITS>(weights, block, panel.global, step),
                };
                let (scale, divisors) = (_mm512_and_si512(scale_bytes, low_byte), (&mut division, profile));
                let (moved, words) = ((&mut m, &mut ratio), (&luck, column, &mut drawn));
                // The next block's gradient, or the last one's again.
                let next = panel.gradient.add((column + BLOCK).min(width - BLOCK));
                let [even, odd] = &mut g;
                let (g, turned) = if block % 2 == 0 { (even, odd) } else { (odd, even) };
                let next = (next, 4 * width, turn::whole(turned));
                let amax = moment::follow::<PLAIN>((moment, scale), g, divisors, step, moved, words, next);
                let (scales, drawn) = (moment::scales(amax), luck::join(&drawn));
                let rests = &mut rests[block * BITS as usize / 2..][..BITS as usize / 2];
                let moves = Moves { ratio: &ratio, luck: &drawn, step, times };
                let (part, kept) = match TABLE {
                    true => int8::block::<BITS, PLAIN>(weights, block, rests, &moves),
                    false => {
                        nvfp4::block::<BITS, PLAIN>(weights, block, rests, panel.global, &moves, &mut changed)
                    }
                };
                tally.add(part);
                let scale = moment::keep(moment, &m, (amax, scales), &drawn, kept);
                // The bytes of four blocks: each new one goes to the upper end, in the end all lie as they did.
                scale_bytes =
                    _mm512_or_si512(_mm512_srli_epi32::<8>(scale_bytes), _mm512_slli_epi32::<24>(scale));
            }
            turn::store_eight(moments, moment_stride, codes.as_flattened());
            turn::store_one(scale_plane, moment_stride, scale_bytes);
            match BITS {
                8 => turn::store_sixteen(remainders, remainder_stride, &mut rests),
                4 => turn::store_eight(remainders, remainder_stride, &rests[..8]),
                _ => {}
            }
        }
    }
    tally.changed += u64::from(_mm512_reduce_add_epi32(changed) as u32);
    let mut squares = [zero; 16];
    for (to, from) in squares.iter_mut().zip(division.squares.as_flattened()) {
        *to = _mm512_castps_si512(*from);
    }
    turn::sixteen(&mut squares);
    for row in &squares {
        tally.squares += step.squares(words(row).map(f32::from_bits));
    }
    tally
}

/// `second::root` of sixteen.
#[inline]
#[target_feature(enable = "avx512f")]
fn roots(v: &[f32; 16]) -> __m512 {
    // SAFETY: sixteen values.
    let v = unsafe { _mm512_loadu_ps(v.as_ptr()) };
    // A NaN becomes the second of both.
    _mm512_sqrt_ps(_mm512_max_ps(v, _mm512_set1_ps(second::FLOOR)))
}

/// Asks for the n-th of parts of so many bytes.
#[inline]
#[target_feature(enable = "avx512f")]
fn prefetch(from: *const u8, bytes: usize, part: usize) {
    for line in 0..bytes.div_ceil(64) {
        _mm_prefetch::<_MM_HINT_T1>(from.wrapping_add(part * bytes + line * 64).cast());
    }
}

/// Bits of `yes` where those of the mask are set, of `no` elsewhere.
#[inline]
#[target_feature(enable = "avx512f")]
fn select(mask: __m512i, yes: __m512i, no: __m512i) -> __m512i {
    _mm512_ternarylogic_epi32::<0xCA>(mask, yes, no)
}

/// Lanes from `first` to `last`.
#[inline]
#[target_feature(enable = "avx512f")]
fn within(x: __m512i, first: i32, last: i32) -> u16 {
    _mm512_cmple_epu32_mask(_mm512_sub_epi32(x, _mm512_set1_epi32(first)), _mm512_set1_epi32(last - first))
}

/// The dwords of a register.
#[inline(always)]
fn words(of: &__m512i) -> &[u32; 16] {
    // SAFETY: sixteen dwords, without padding, of any bits.
    unsafe { &*std::ptr::from_ref(of).cast() }
}

/// [`words`], to be written.
#[inline(always)]
fn words_mut(of: &mut __m512i) -> &mut [u32; 16] {
    // SAFETY: as above.
    unsafe { &mut *std::ptr::from_mut(of).cast() }
}

/// One lane of sixteen registers of f32.
#[inline(always)]
fn floats(of: &Columns<__m512>, lane: usize) -> [f32; 16] {
    let mut out = [0.0; 16];
    for (out, of) in out.iter_mut().zip(of.as_flattened()) {
        // SAFETY: sixteen values, without padding.
        *out = unsafe { (*std::ptr::from_ref(of).cast::<[f32; 16]>())[lane] };
    }
    out
}
