//! Sixteen rows of a panel learn together, a row in each lane, by hand for the default states: the bits
//! of `halfbyte_ops::update::row`.
//!
//! A panel holds all it has in lanes already, and gradients come turned. What
//! belongs to a block (its largest, its scale, whether it stays) is then one register for sixteen blocks.
//! Lanes whose block changes its scale, or is not finite, take the reference's own way, one by one.
//!
//! ```text
//! block of 16 columns: ratios | words -> moment -> nvfp4 | int8
//! ```

/// Writes a block once for each of these columns, with its number as a constant.
macro_rules! columns {
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
mod orders;
mod pairs;
mod turn;

use std::arch::x86_64::*;

use halfbyte_formats::state::moment::Moment;
use halfbyte_formats::state::second::TILE;
use halfbyte_formats::state::{
    Average, BLOCK, Tally, adamw, int8::Remainder as TableRemainder, second, weight::Remainder,
};
use halfbyte_ops::WeightFormat;
use halfbyte_ops::tensor::UNIT;
use halfbyte_ops::update::Moving;

use crate::Isa;

use luck::{Luck, Words, own};
use moment::OfColumns;
use orders::Orders;

/// Sixteen rows, with their pointers.
pub(super) struct Panel {
    /// Its units.
    pub(super) weights: *mut u8,
    /// The weight's own scale.
    pub(super) global: f32,
    /// Values, turned: column after column of sixteen.
    pub(super) gradient: *const f32,
    /// Where those of the panel behind this one are, as many.
    pub(super) next_gradient: *const f32,
    /// Its remainders, as `strips` says.
    pub(super) remainders: *mut u8,
    /// Its moments likewise.
    pub(super) moments: *mut u8,
    /// Averages of the first row, a tile each; rows lie close. They follow.
    pub(super) averages: *mut f32,
    /// Inverse roots of the columns' profile.
    pub(super) profile: *const f32,
    /// Number of the first element.
    pub(super) first: u64,
    /// Columns, whole units.
    pub(super) width: usize,
}

/// Turns sixteen rows that lie close: columns of sixteen are then what lies close.
///
/// # Safety
/// AVX-512 is there; there are sixteen rows of `width`, whole blocks; `out` has room for them, and nobody else touches it.
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn turn(rows: *const f32, width: usize, out: *mut f32) {
    let mut turned = [_mm512_setzero_si512(); 16];
    for column in (0..width).step_by(BLOCK) {
        // SAFETY: by the caller's promise.
        unsafe {
            turn::load_sixteen(rows.add(column).cast(), 4 * width, &mut turned);
            for (i, turned) in turned.iter().enumerate() {
                _mm512_storeu_si512(out.add((column + i) * 16).cast(), *turned);
            }
        }
    }
}

/// `second::add_squares` of sixteen rows, one after the other, that are turned.
///
/// # Safety
/// AVX-512 is there; `sums` are whole blocks, and the gradient has as many columns.
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn add_squares(gradient: *const f32, sums: &mut [f32]) {
    let mut rows = [_mm512_setzero_si512(); 16];
    for (block, sums) in sums.as_chunks_mut::<BLOCK>().0.iter_mut().enumerate() {
        // SAFETY: by the caller's promise: sixteen columns.
        unsafe {
            turn::load_sixteen(gradient.add(block * 16 * BLOCK).cast(), 64, &mut rows);
            let mut sum = _mm512_loadu_ps(sums.as_ptr());
            for row in rows {
                let row = _mm512_castsi512_ps(row);
                sum = _mm512_fmadd_ps(row, row, sum);
            }
            _mm512_storeu_ps(sums.as_mut_ptr(), sum);
        }
    }
}

/// The rows learn. Where there are tiles there is VBMI too; the first machines with AVX-512 lack it.
///
/// # Safety
/// The set is there, `strips::fits` said yes, the panel is whole, and nobody else touches what it points to.
pub(super) unsafe fn learn(isa: Isa, format: WeightFormat, panel: &Panel, moving: &Moving<'_>) -> Tally {
    // SAFETY: by the caller's promise.
    unsafe {
        match isa {
            Isa::Amx => with_vbmi::learn(format, panel, moving),
            _ => without::learn(format, panel, moving),
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
    /// How far, in the rows' units.
    times: __m512,
    /// See [`OfRows`].
    rows: &'a OfRows,
    /// See [`Luck`].
    base: __m512i,
    orders: &'a Orders,
}

impl Moves<'_> {
    /// How far weights of the `I`-th of four columns move and what [`Luck`] adds, before whole units of it are taken:
    /// `Push::whole_units`. `k` gives where the weights lie, for the decay.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    fn sum<const I: usize, const PLAIN: bool>(
        &self,
        word: __m512i,
        ratio: __m512,
        k: impl FnOnce() -> __m512i,
    ) -> __m512i {
        let luck = own::<I>(word, self.base, self.orders);
        _mm512_castps_si512(if PLAIN {
            _mm512_fmadd_ps(ratio, self.times, luck)
        } else {
            let lost = _mm512_mul_ps(_mm512_set1_ps(self.step.decay), _mm512_cvtepi32_ps(k()));
            _mm512_add_ps(_mm512_fmsub_ps(ratio, self.times, lost), luck)
        })
    }
}

/// What the elements of a row have in common, of sixteen rows: `adamw::OfRow`.
struct OfRows {
    inverses: __m512,
    limits: __m512,
}

impl OfRows {
    /// Of rows that have these averages of v.
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn new(averages: __m512, step: &adamw::Step) -> OfRows {
        let set = _mm512_set1_ps;
        let corrected = _mm512_add_ps(_mm512_mul_ps(roots(averages), set(step.per_old_root)), set(step.eps));
        OfRows {
            inverses: _mm512_div_ps(set(1.0), corrected),
            limits: _mm512_mul_ps(set(step.factored_limit), corrected),
        }
    }

    /// Of one of them.
    fn of(&self, row: usize) -> adamw::OfRow {
        // SAFETY: sixteen values, without padding.
        let [inverse, limit] = [self.inverses, self.limits]
            .map(|of| unsafe { (*std::ptr::from_ref(&of).cast::<[f32; 16]>())[row] });
        adamw::OfRow { inverse, limit }
    }
}

/// Blocks of a tile.
const BLOCKS: usize = TILE / BLOCK;

/// Sums over the blocks of sixteen rows.
struct Sums {
    /// The gradient's squares, block by block of a tile.
    gradient: [__m512; BLOCKS],
    /// `Tally::squares` of the unit.
    moves: __m512i,
    /// The same of all units before, in lanes of 64 bits.
    all_moves: __m512i,
    /// NVFP4 codes of the unit that have changed, counted in nibbles: two a block.
    changed: __m512i,
    /// The same of all units before, in lanes of 64 bits.
    all_changed: __m512i,
}

impl Sums {
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn new() -> Sums {
        let zero = _mm512_setzero_si512();
        Sums {
            gradient: [_mm512_setzero_ps(); BLOCKS],
            moves: zero,
            all_moves: zero,
            changed: zero,
            all_changed: zero,
        }
    }

    /// With one more block.
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn add(
        &mut self,
        block: usize,
        gradient: __m512,
        ratio: &[__m512; 8],
        rows: &OfRows,
        step: &adamw::Step,
    ) {
        self.gradient[block % BLOCKS] = gradient;
        let both = |a: __m512, b: __m512| _mm512_add_ps(_mm512_mul_ps(a, a), _mm512_mul_ps(b, b));
        let counted = _mm512_add_ps(both(ratio[0], ratio[2]), both(ratio[1], ratio[3]));
        let squares = _mm512_mul_ps(counted, _mm512_set1_ps(step.per_square));
        let squares = _mm512_mul_ps(_mm512_mul_ps(squares, rows.inverses), rows.inverses);
        // A NaN becomes the second of both.
        let held = _mm512_min_ps(squares, _mm512_set1_ps(adamw::MOST_SQUARES));
        self.moves = _mm512_add_epi32(self.moves, _mm512_cvttps_epi32(held));
    }

    /// A unit has ended, before dwords or nibbles are full.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    fn end_unit(&mut self) {
        let low = _mm512_and_si512(self.moves, _mm512_set1_epi64(0xFFFF_FFFF));
        let both = _mm512_add_epi64(low, _mm512_srli_epi64::<32>(self.moves));
        self.all_moves = _mm512_add_epi64(self.all_moves, both);
        let nibble = _mm512_set1_epi8(15);
        let high = _mm512_and_si512(_mm512_srli_epi16::<4>(self.changed), nibble);
        let bytes = _mm512_add_epi8(_mm512_and_si512(self.changed, nibble), high);
        let zero = _mm512_setzero_si512();
        self.all_changed = _mm512_add_epi64(self.all_changed, _mm512_sad_epu8(bytes, zero));
        (self.moves, self.changed) = (zero, zero);
    }

    /// `second::follow_one` of the rows' averages: a tile has ended.
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn follow(&mut self, old: __m512, columns: usize, average: Average) -> __m512 {
        let mut sums = std::mem::replace(&mut self.gradient, [_mm512_setzero_ps(); BLOCKS]);
        // In the order of `second::row_squares`.
        for half in [16, 8, 4, 2, 1] {
            for i in 0..half {
                sums[i] = _mm512_add_ps(sums[i], sums[i + half]);
            }
        }
        let mean = _mm512_div_ps(sums[0], _mm512_set1_ps(columns as f32));
        let kept = _mm512_mul_ps(_mm512_set1_ps(average.keep), old);
        let new = _mm512_add_ps(kept, _mm512_mul_ps(_mm512_set1_ps(average.fresh), mean));
        let finite = _mm512_cmp_ps_mask::<_CMP_LT_OQ>(new, _mm512_set1_ps(f32::INFINITY));
        _mm512_mask_mov_ps(old, finite, new)
    }
}

/// The same for two sets of instructions: who is inlined may use no more of them than whoever it is inlined into.
macro_rules! for_features {
    ($module:ident, $features:literal, $vbmi:literal) => {
        mod $module {
            use super::*;

            /// # Safety
            /// As [`learn`](super::learn), with these features.
            pub(super) unsafe fn learn(format: WeightFormat, panel: &Panel, moving: &Moving<'_>) -> Tally {
                let (recipe, step) = (moving.step.recipe, &moving.step.adamw);
                let plain = step.decay == 0.0;
                // SAFETY: by the caller's promise.
                unsafe {
                    match (format, recipe.weight, recipe.table, plain) {
                        (WeightFormat::Int8, _, TableRemainder::None, true) => {
                            units::<true, 0, true>(panel, moving)
                        }
                        (WeightFormat::Int8, _, TableRemainder::None, false) => {
                            units::<true, 0, false>(panel, moving)
                        }
                        (WeightFormat::Int8, _, _, true) => units::<true, 4, true>(panel, moving),
                        (WeightFormat::Int8, _, _, false) => units::<true, 4, false>(panel, moving),
                        (_, Remainder::Byte, _, true) => units::<false, 8, true>(panel, moving),
                        (_, Remainder::Byte, _, false) => units::<false, 8, false>(panel, moving),
                        (_, Remainder::Nibble, _, true) => units::<false, 4, true>(panel, moving),
                        (_, Remainder::Nibble, _, false) => units::<false, 4, false>(panel, moving),
                    }
                }
            }

            /// The step is `PLAIN` if nothing decays.
            ///
            /// # Safety
            /// As `learn`.
            #[target_feature(enable = $features)]
            unsafe fn units<const TABLE: bool, const BITS: u32, const PLAIN: bool>(
                panel: &Panel,
                moving: &Moving<'_>,
            ) -> Tally {
                let (step, width) = (&moving.step.adamw, panel.width);
                let (luck, orders) =
                    (Luck::new(moving.draws.key(), panel.first, width as u64), Orders::new());
                let numbers = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
                let places = _mm512_mullo_epi32(numbers, _mm512_set1_epi32(second::tiles(width) as i32));
                let mut averages = _mm512_setzero_ps();
                let mut rows = OfRows { inverses: averages, limits: averages };
                let unit_bytes = if TABLE { WeightFormat::Int8 } else { WeightFormat::Nvfp4 }.unit_bytes();
                // Of a block of sixteen rows.
                let (rest_bytes, moment_bytes) = (32 * BITS as usize, 16 * Moment::Four.block_bytes());
                let (zero, units) = (_mm512_setzero_si512(), width / UNIT);
                let (mut tally, mut sums, mut drawn) = (Tally::default(), Sums::new(), [[zero; 4]; 2]);
                let [mut m, mut ratio] = [[[_mm512_setzero_ps(); 8]; 2]; 2];
                for unit in 0..units {
                    let (tile, ends) = (unit * UNIT / TILE, (unit + 1) * UNIT);
                    if (unit * UNIT).is_multiple_of(TILE) {
                        // SAFETY: the tile's averages of sixteen rows.
                        averages = unsafe { _mm512_i32gather_ps::<4>(places, panel.averages.add(tile)) };
                        rows = OfRows::new(averages, step);
                    }
                    // SAFETY: a unit of the panel, of which everything lies at multiples of 64 bytes.
                    unsafe {
                        let weights = panel.weights.add(unit * unit_bytes);
                        let moments = panel.moments.add(unit * 4 * moment_bytes);
                        for block in 0..4 {
                            let (number, column) = (4 * unit + block, unit * UNIT + block * BLOCK);
                            // The panel that lies behind this one learns next.
                            prefetch(panel.weights.wrapping_add(units * unit_bytes), unit_bytes / 4, number);
                            prefetch(
                                panel.remainders.wrapping_add(4 * units * rest_bytes),
                                rest_bytes,
                                number,
                            );
                            prefetch(
                                panel.moments.wrapping_add(4 * units * moment_bytes),
                                moment_bytes,
                                number,
                            );
                            prefetch(panel.next_gradient.cast(), 1024, number);
                            let per_unit = match TABLE {
                                true => int8::times::<BITS>(weights, block, step),
                                false => nvfp4::times::<BITS>(weights, block, panel.global, step),
                            };
                            let moment = &mut *moments.add(block * 128).cast::<[__m512i; 2]>();
                            let scale_at = moments.add(512 + block * 16).cast::<__m128i>();
                            let scale = _mm512_cvtepu8_epi32(_mm_loadu_si128(scale_at));
                            let profile = &*panel.profile.add(column).cast::<Columns<f32>>();
                            let columns = OfColumns { profile, limits: rows.limits };
                            let (moved, words) = ((&mut m, &mut ratio), (&luck, column, &mut drawn));
                            let g = &*panel.gradient.add(column * 16).cast::<Columns<[f32; 16]>>();
                            let numbers = moment::follow((moment, scale), g, &columns, step, moved, words);
                            let drawn = luck::join(&drawn);
                            let scale = moment::keep(moment, (&m, &mut ratio), &numbers, &drawn, orders);
                            _mm_storeu_si128(scale_at, _mm512_cvtepi32_epi8(scale));
                            sums.add(number, numbers.squares, &ratio[0], &rows, step);
                            let rests = panel.remainders.add(number * rest_bytes).cast::<__m512i>();
                            let rests = std::slice::from_raw_parts_mut(rests, BITS as usize / 2);
                            let times = _mm512_mul_ps(per_unit, rows.inverses);
                            let moves = Moves {
                                ratio: &ratio,
                                luck: &drawn,
                                step,
                                times,
                                rows: &rows,
                                base: luck.base,
                                orders,
                            };
                            tally.add(match TABLE {
                                true => int8::block::<BITS, PLAIN, $vbmi>(weights, block, rests, &moves),
                                false => {
                                    let changed = &mut sums.changed;
                                    nvfp4::block::<BITS, PLAIN, $vbmi>(
                                        weights,
                                        block,
                                        rests,
                                        panel.global,
                                        &moves,
                                        changed,
                                    )
                                }
                            });
                        }
                    }
                    sums.end_unit();
                    if ends.is_multiple_of(TILE) || ends == width {
                        let new = sums.follow(averages, ends - tile * TILE, moving.step.average);
                        // SAFETY: as above.
                        unsafe { _mm512_i32scatter_ps::<4>(panel.averages.add(tile), places, new) };
                    }
                }
                tally.changed += _mm512_reduce_add_epi64(sums.all_changed) as u64;
                tally.squares += _mm512_reduce_add_epi64(sums.all_moves) as u64;
                tally
            }
        }
    };
}

for_features!(with_vbmi, "avx512f,avx512bw,avx512vl,avx512dq,avx512vbmi", true);
for_features!(without, "avx512f,avx512bw,avx512vl,avx512dq", false);

/// `second::root` of sixteen.
#[inline]
#[target_feature(enable = "avx512f")]
fn roots(v: __m512) -> __m512 {
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
