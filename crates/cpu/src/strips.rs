//! Where a row is in a panel of sixteen: pieces of each unit of 64 columns, every one beside those of the other rows.
//!
//! | plane | unit |
//! |---|---|
//! | weight | as `panel` says |
//! | remainder | `[2 n][16 rows]` dwords, n bits each |
//! | moment | codes `[8][16 rows]` dwords, then scales `[4 blocks][16 rows]` |
//!
//! So a register holds what sixteen rows have at one place, and nothing is turned to learn. Remainders and moments lie so
//! in whole panels of whole units where the state is the default's or lean's; others row after row.

use std::ops::Range;

use halfbyte_formats::state::moment::Moment;
use halfbyte_formats::state::{int8, weight::Remainder};
use halfbyte_ops::panels::{Panels, Plane};
use halfbyte_ops::tensor::{PANEL, UNIT};
use halfbyte_ops::update::Recipe;
use halfbyte_ops::{Weight, WeightFormat};

/// One kind of pieces of a row.
#[derive(Clone, Copy)]
pub(crate) struct Strip {
    /// Where those of a unit begin.
    at: usize,
    /// Bytes of a piece: one or four.
    each: usize,
    /// Pieces of a unit and row.
    count: usize,
    /// Bytes of a unit.
    unit: usize,
}

impl Strip {
    /// Takes a row out of its panel.
    pub(crate) fn take(self, panel: &[u8], lane: usize, row: &mut [u8]) {
        match self.each {
            1 => self.take_pieces::<1>(panel, lane, row),
            _ => self.take_pieces::<4>(panel, lane, row),
        }
    }

    /// Puts it back.
    pub(crate) fn put(self, panel: &mut [u8], lane: usize, row: &[u8]) {
        match self.each {
            1 => self.put_pieces::<1>(panel, lane, row),
            _ => self.put_pieces::<4>(panel, lane, row),
        }
    }

    /// A strip may have no pieces: a lean table has no remainders.
    fn take_pieces<const EACH: usize>(self, panel: &[u8], lane: usize, row: &mut [u8]) {
        let units = panel.chunks_exact(self.unit.max(1));
        for (row, unit) in row.chunks_mut((self.count * EACH).max(1)).zip(units) {
            let pieces = unit[self.at..].as_chunks::<EACH>().0[lane..].iter().step_by(PANEL);
            for (to, from) in row.as_chunks_mut().0.iter_mut().zip(pieces) {
                *to = *from;
            }
        }
    }

    fn put_pieces<const EACH: usize>(self, panel: &mut [u8], lane: usize, row: &[u8]) {
        let units = panel.chunks_exact_mut(self.unit.max(1));
        for (row, unit) in row.chunks((self.count * EACH).max(1)).zip(units) {
            let pieces = unit[self.at..].as_chunks_mut::<EACH>().0[lane..].iter_mut().step_by(PANEL);
            for (from, to) in row.as_chunks().0.iter().zip(pieces) {
                *to = *from;
            }
        }
    }
}

/// Whether remainders and moments of a weight lie in panels.
pub(crate) fn fits(of: &Weight, recipe: &Recipe) -> bool {
    let remainder = match of.format {
        WeightFormat::Nvfp4 => true,
        WeightFormat::Int8 => recipe.table != int8::Remainder::Byte,
        WeightFormat::F32 | WeightFormat::Bf16 => false,
    };
    let kept = recipe.master.is_none() && !recipe.full_second;
    remainder && kept && recipe.moment == Moment::Four && of.columns.is_multiple_of(UNIT)
}

/// Whether that is so for the panel that begins with this row.
pub(crate) fn laid(of: &Weight, recipe: &Recipe, row: usize) -> bool {
    row + PANEL <= of.rows && fits(of, recipe)
}

/// Bits of a remainder that lies in panels.
fn bits(of: &Weight, recipe: &Recipe) -> usize {
    match (of.format, recipe.weight, recipe.table) {
        (WeightFormat::Int8, _, int8::Remainder::None) => 0,
        (WeightFormat::Int8, ..) | (_, Remainder::Nibble, _) => 4,
        _ => 8,
    }
}

/// The strip of remainders.
pub(crate) fn remainder(of: &Weight, recipe: &Recipe) -> Strip {
    let bits = bits(of, recipe);
    Strip { at: 0, each: 4, count: 2 * bits, unit: UNIT * bits / 8 * PANEL }
}

/// The strips of moments: codes, scales.
pub(crate) fn moment() -> [Strip; 2] {
    let unit = UNIT / 16 * Moment::Four.block_bytes() * PANEL;
    [Strip { at: 0, each: 4, count: 8, unit }, Strip { at: 8 * PANEL * 4, each: 1, count: 4, unit }]
}

/// The strips of a weight: codes or values, scales if there are any.
pub(crate) fn weight(format: WeightFormat) -> (Strip, Option<Strip>) {
    let unit = format.unit_bytes();
    let scales = Some(Strip { at: 0, each: 1, count: 4, unit });
    match format {
        WeightFormat::Nvfp4 => (Strip { at: UNIT, each: 4, count: 8, unit }, scales),
        WeightFormat::Int8 => (Strip { at: UNIT, each: 1, count: UNIT, unit }, scales),
        WeightFormat::F32 => (Strip { at: 0, each: 4, count: UNIT, unit }, None),
        // Pairs of positions share a dword.
        WeightFormat::Bf16 => (Strip { at: 0, each: 4, count: UNIT / 2, unit }, None),
    }
}

/// How rows in one piece belong into a panel.
struct Layout {
    /// Strips, each with the place of its first row, how far apart rows are and how long.
    strips: Vec<(Strip, usize, usize, usize)>,
    /// Bytes of a panel.
    panel: usize,
}

impl Layout {
    /// Of a plane, unless rows are in one piece there, too.
    fn of(panels: &Panels<'_>) -> Option<Layout> {
        let (of, recipe) = (panels.of, panels.recipe);
        let units = of.columns.div_ceil(UNIT);
        if panels.plane != Plane::Weight && !fits(of, recipe) {
            return None;
        }
        let length = |strip: Strip| units * strip.count * strip.each;
        let strips = match panels.plane {
            Plane::Weight => {
                let (codes, scales) = weight(of.format);
                let each = length(codes);
                let scales = scales.map(|strip| (strip, PANEL * each, length(strip), length(strip)));
                [Some((codes, 0, each, each)), scales].into_iter().flatten().collect()
            }
            Plane::Remainder => {
                let strip = remainder(of, recipe);
                vec![(strip, 0, length(strip), length(strip))]
            }
            Plane::Moment => {
                let [codes, scales] = moment();
                let (half, each) = (length(codes), length(codes) + length(scales));
                vec![(codes, 0, each, half), (scales, half, each, length(scales))]
            }
        };
        Some(Layout { panel: strips.iter().map(|(.., length)| PANEL * length).sum(), strips })
    }

    /// Every strip of every row of so many bytes: (strip, panel, lane, row).
    fn rows(&self, bytes: usize) -> impl Iterator<Item = (Strip, Range<usize>, usize, Range<usize>)> {
        (0..self.whole(bytes)).step_by(self.panel.max(1)).flat_map(move |first| {
            let panel = first..first + self.panel;
            self.strips.iter().flat_map(move |&(strip, start, apart, length)| {
                let panel = panel.clone();
                (0..PANEL).map(move |lane| {
                    let row = panel.start + start + lane * apart;
                    (strip, panel.clone(), lane, row..row + length)
                })
            })
        })
    }

    /// Bytes of whole panels; behind them rows are in one piece.
    fn whole(&self, bytes: usize) -> usize {
        bytes - bytes % self.panel.max(1)
    }
}

/// Rows in one piece, out of where they lie.
pub(crate) fn read(of: &Panels<'_>, from: &[u8], out: &mut [u8]) {
    let mut behind = 0;
    if let Some(layout) = Layout::of(of) {
        behind = layout.whole(out.len());
        for (strip, panel, lane, row) in layout.rows(out.len()) {
            strip.take(&from[panel], lane, &mut out[row]);
        }
    }
    out[behind..].copy_from_slice(&from[behind..]);
}

/// Puts them where they lie.
pub(crate) fn write(of: &Panels<'_>, to: &mut [u8], rows: &[u8]) {
    let mut behind = 0;
    if let Some(layout) = Layout::of(of) {
        behind = layout.whole(rows.len());
        for (strip, panel, lane, row) in layout.rows(rows.len()) {
            strip.put(&mut to[panel], lane, &rows[row]);
        }
    }
    to[behind..].copy_from_slice(&rows[behind..]);
}
