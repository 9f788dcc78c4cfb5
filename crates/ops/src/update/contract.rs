//! The contract of `update`: a few steps on the device against the same rows on the host.

use halfbyte_formats::state::adamw::{self, Settings};
use halfbyte_formats::state::moment::Moment;
use halfbyte_formats::state::{Average, Tally, int8, second, weight};
use halfbyte_formats::{int8_block, nvfp4};

use super::*;
use crate::WeightRows;
use crate::panels::{HEADER, Panels, Plane};
use crate::tensor::{PANEL, UNIT};
use crate::testing::{Bench, assert_same_bits, numbers, rounded_rows};

/// A weight on the host.
#[derive(Clone, PartialEq)]
struct Host {
    codes: Vec<u8>,
    signed: Vec<i8>,
    scales: Vec<u8>,
    values: Vec<f32>,
    global: f32,
    remainder: Vec<u8>,
    moment: Vec<u8>,
    rows: Vec<f32>,
    columns: Vec<f32>,
    /// Of the columns' squares, of one step.
    sums: Vec<f32>,
    /// Second moments of the elements.
    each: Vec<f32>,
}

/// With eight bits, with floats, and with master weights.
fn other_recipes() -> [Recipe; 4] {
    let eight = Recipe { moment: Moment::Eight, ..Recipe::DEFAULT };
    let float = Recipe { moment: Moment::Float, table: int8::Remainder::Byte, ..Recipe::DEFAULT };
    let wide = |master, scales| Recipe { master: Some(master), scales, ..float };
    [eight, float, wide(Master::Bf16, Scales::Nearest), wide(Master::Float, Scales::FourOverSix)]
}

pub(super) fn check<B: Backend>(make: impl Fn(usize) -> B) {
    use WeightFormat::{F32, Int8, Nvfp4};
    for recipe in [Recipe::DEFAULT, Recipe::LEAN].into_iter().chain(other_recipes()) {
        for format in [Nvfp4, Int8, F32] {
            for shape in [(40, 96), (17, 200), (100, 192), (17, 4500)] {
                check_case(&make, recipe, format, shape, false);
                check_case(&make, Recipe { full_second: true, ..recipe }, format, shape, false);
            }
        }
    }
    // More rows than a device takes at once (an H200 has 2112 warps for them), also of several tiles; sums of several groups
    // of panels; rows longer, and of more tiles, than it takes at once.
    check_case(&make, Recipe::DEFAULT, Nvfp4, (4300, 64), false);
    check_case(&make, Recipe::DEFAULT, Nvfp4, (740, 1088), false);
    check_case(&make, Recipe::DEFAULT, Nvfp4, (600, 40), false);
    check_case(&make, Recipe::LEAN, Nvfp4, (17, 12864), false);
    check_case(&make, Recipe::DEFAULT, Nvfp4, (17, 4480), false);
    check_case(&make, Recipe::LEAN, Int8, (17, 1088), false);
    check_vector_case(&make);
}

pub(super) fn check_narrow<B: Backend>(make: impl Fn(usize) -> B) {
    let full = Recipe { full_second: true, ..Recipe::LEAN };
    for recipe in [Recipe::DEFAULT, Recipe::LEAN, full].into_iter().chain(other_recipes()) {
        for shape in [(100, 192), (17, 4480)] {
            check_case(&make, recipe, WeightFormat::Nvfp4, shape, true);
        }
    }
    check_case(&make, Recipe::DEFAULT, WeightFormat::Nvfp4, (600, 64), true);
}

/// Steps of a case: what the gradient is multiplied by, and the learning rate. Large rates make scales change,
/// and the last gradient is broken in places.
const STEPS: [(f32, f64); 7] =
    [(0.0, 1e-3), (1.0, 1e-3), (1e-3, 1e-3), (0.3, 0.03), (1e-6, 1e-5), (10.0, 0.2), (1.0, 1e-3)];

fn step(recipe: Recipe, number: u64) -> Step {
    // Steps 5 and 7 have neither: kernels may have a way of their own then.
    let clip = if number == 3 { 0.3 } else { f64::INFINITY };
    let decay = if number < 5 || number == 6 { 0.1 } else { 0.0 };
    let settings = Settings { decay, clip, ..Settings::default() };
    let adamw = adamw::Step::new(&settings, STEPS[number as usize - 1].1, number);
    Step { recipe, adamw, average: Average::new(settings.beta2), seed: 7, step: number, tensor: 3 }
}

fn check_case<B: Backend>(
    make: &impl Fn(usize) -> B,
    recipe: Recipe,
    format: WeightFormat,
    (rows, columns): (usize, usize),
    narrow: bool,
) {
    let mut bench = Bench::new(make);
    let mut host = import(recipe, format, (rows, columns));
    let of = Weight { buffer: bench.buffer(format.bytes(rows, columns)), rows, columns, format };
    write(&mut bench, &of, &host);
    let kept = Kept {
        remainder: bench.buffer(host.remainder.len()),
        moment: bench.buffer(host.moment.len()),
        second: bench.buffer(recipe.second_bytes(rows, columns)),
    };
    let panels = |plane| Panels { of: &of, kept: &kept, recipe: &recipe, plane, rows: 0..rows };
    bench.backend.write_panels(&panels(Plane::Remainder), &host.remainder).unwrap();
    let what = format!("{} {rows}x{columns}, narrow gradient: {narrow}, {recipe:?}", format.name());
    for number in 1..=STEPS.len() as u64 {
        let g = gradient(number, (rows, columns));
        let g = if narrow { rounded_rows(&g) } else { g };
        let mut now = step(recipe, number);
        let wanted = if number == 1 {
            // Nothing was learnt yet: a gradient of zeros, without decay, changes nothing.
            now.adamw = adamw::Step::new(&Settings::default(), 1e-3, 1);
            let before = host.clone();
            assert_eq!(on_host(&mut host, format, &g, columns, &now), Tally::default());
            assert!(before == host, "{what}: zeros changed bytes");
            Tally::default()
        } else {
            on_host(&mut host, format, &g, columns, &now)
        };
        let gradient = bench.rows(rows, columns, &g);
        let gradient = if narrow { bench.narrow(gradient) } else { gradient };
        for part in parts(rows) {
            let gradient = gradient.slice(part.start, part.len());
            bench.backend.update(&of, part.start, gradient, &kept, &now).unwrap();
        }
        let tallies = bench.backend.tallies().unwrap();
        assert_eq!((tallies.each.len(), tallies.sum()), (parts(rows).len(), wanted), "{what}, step {number}");
        compare(&mut bench, &of, &kept, (&host, recipe), &format!("{what}, step {number}"));
    }
}

/// The calls of a step: rows come in parts.
fn parts(rows: usize) -> [std::ops::Range<usize>; 2] {
    [0..16, 16..rows]
}

/// The gradient of a step: numbers, a row of zeros of either sign, a row that is much larger, and at last some that are none.
fn gradient(number: u64, (rows, columns): (usize, usize)) -> Vec<f32> {
    let scale = STEPS[number as usize - 1].0;
    let mut g: Vec<f32> = numbers(number as u32, rows * columns).iter().map(|x| x * scale).collect();
    g[5 * columns..6 * columns].fill(0.0);
    g[5 * columns + 24..6 * columns].fill(-0.0);
    g[9 * columns..10 * columns].iter_mut().for_each(|x| *x *= 100.0);
    if number as usize == STEPS.len() {
        g[3 * columns + 7] = f32::NAN;
        g[14 * columns + 20] = f32::INFINITY;
        g[16 * columns + 40] = 1e30;
    }
    g
}

/// The weight and everything kept, bit by bit.
fn compare<B: Backend>(
    bench: &mut Bench<B>,
    of: &Weight,
    kept: &Kept,
    (host, recipe): (&Host, Recipe),
    what: &str,
) {
    let (rows, columns, format) = (of.rows, of.columns, of.format);
    let out = bench.output(rows, columns);
    let tokens: Vec<u32> = (0..rows as u32).collect();
    bench.backend.embed(&tokens, of, out).unwrap();
    // Which NaN comes out of a sum is nobody's promise.
    let one_nan =
        |x: Vec<f32>| -> Vec<f32> { x.iter().map(|x| if x.is_nan() { f32::NAN } else { *x }).collect() };
    assert_same_bits(&one_nan(bench.read(out)), &one_nan(decoded(host, format, columns)), what);
    let averages = match recipe.full_second {
        true => host.each.clone(),
        false => [&host.rows[..], &host.columns, &host.sums].concat(),
    };
    let second = Rows::new(kept.second, 1, averages.len());
    assert_same_bits(&one_nan(bench.read(second)), &one_nan(averages), &format!("{what}: second moments"));
    for (plane, want) in [(Plane::Remainder, &host.remainder), (Plane::Moment, &host.moment)] {
        let mut got = vec![0; want.len()];
        let panels = Panels { of, kept, recipe: &recipe, plane, rows: 0..rows };
        bench.backend.read_panels(&panels, &mut got).unwrap();
        assert!(got == *want, "{what}: {plane:?} differs");
    }
    let mut panels = vec![0; format.bytes(rows, columns) - HEADER - 64];
    let all = Panels { of, kept, recipe: &recipe, plane: Plane::Weight, rows: 0..rows };
    bench.backend.read_panels(&all, &mut panels).unwrap();
    assert!(panels == in_one_piece(host, format, (rows, columns)), "{what}: panels of weights differ");
}

/// Panels of weights as files have them.
fn in_one_piece(host: &Host, format: WeightFormat, (rows, columns): (usize, usize)) -> Vec<u8> {
    let (width, wide, blocks) = (padded(columns), columns.next_multiple_of(UNIT), padded(columns) / BLOCK);
    let mut out = Vec::new();
    for first in (0..rows).step_by(PANEL) {
        let lanes = first..first + PANEL;
        let mut put = |bytes: &dyn Fn(usize) -> Vec<u8>, length: usize| {
            for row in lanes.clone() {
                let mut row = if row < rows { bytes(row) } else { Vec::new() };
                row.resize(length, 0);
                out.append(&mut row);
            }
        };
        let scales = |row: usize| host.scales[row * blocks..][..blocks].to_vec();
        match format {
            WeightFormat::Nvfp4 => {
                put(&|row| host.codes[row * width / 2..][..width / 2].to_vec(), wide / 2);
                put(&scales, wide / BLOCK);
            }
            WeightFormat::Int8 => {
                let codes = |row: usize| host.signed[row * width..][..width].iter().map(|code| *code as u8);
                put(&|row| codes(row).collect(), wide);
                put(&scales, wide / BLOCK);
            }
            _ => put(
                &|row| host.values[row * width..][..columns].iter().flat_map(|x| x.to_le_bytes()).collect(),
                4 * wide,
            ),
        }
    }
    out
}

fn import(recipe: Recipe, format: WeightFormat, (rows, columns): (usize, usize)) -> Host {
    let width = padded(columns);
    let mut values = vec![0.0; rows * width];
    for (to, from) in values.chunks_mut(width).zip(numbers(9, rows * columns).chunks(columns)) {
        to[..columns].copy_from_slice(from);
    }
    let mut host = Host {
        codes: vec![0; rows * width / 2],
        signed: vec![0; rows * width],
        scales: vec![0; rows * width / BLOCK],
        global: weight::tensor_scale(1.0, recipe.scales),
        remainder: vec![0; recipe.remainder_bytes(format, rows, columns)],
        moment: vec![0; recipe.moment_bytes(rows, columns)],
        rows: vec![0.0; rows * second::tiles(columns)],
        columns: vec![0.0; width],
        sums: vec![0.0; width],
        each: vec![0.0; rows * width],
        values,
    };
    let (half, blocks, bytes) = (width / 2, width / BLOCK, host.remainder.len() / rows);
    for r in 0..rows {
        let x = &mut host.values[r * width..][..width];
        let remainders = &mut host.remainder[r * bytes..][..bytes];
        let scales = &mut host.scales[r * blocks..][..blocks];
        let (codes, signed) = (&mut host.codes[r * half..][..half], &mut host.signed[r * width..][..width]);
        match (format, recipe.master) {
            (WeightFormat::Nvfp4, None) => {
                let row = weight::Row { codes, scales, remainders };
                weight::import_row(x, host.global, recipe.scales, recipe.weight, row);
            }
            (WeightFormat::Nvfp4, Some(master)) => {
                master.import_row(x, remainders);
                nvfp4::encode_row(x, host.global, recipe.scales, codes, scales);
            }
            (WeightFormat::Int8, None) => {
                int8::import_row(x, recipe.table, int8::Row { codes: signed, scales, remainders });
            }
            (WeightFormat::Int8, Some(master)) => {
                master.import_row(x, remainders);
                int8_block::encode_row(x, signed, scales);
            }
            _ => {}
        }
    }
    host
}

fn write<B: Backend>(bench: &mut Bench<B>, of: &Weight, host: &Host) {
    let (width, columns) = (padded(of.columns), of.columns);
    let cut = |x: &[f32]| -> Vec<f32> { x.chunks(width).flat_map(|row| &row[..columns]).copied().collect() };
    let values = cut(&host.values);
    // Rows of an odd number of blocks are whole bytes too: blocks hold eight.
    let codes: Vec<u8> =
        host.codes.chunks(width / 2).flat_map(|row| &row[..columns.div_ceil(2)]).copied().collect();
    let signed: Vec<i8> = host.signed.chunks(width).flat_map(|row| &row[..columns]).copied().collect();
    let rows = match of.format {
        WeightFormat::Nvfp4 => WeightRows::Nvfp4 { codes: &codes, scales: &host.scales, global: host.global },
        WeightFormat::Int8 => WeightRows::Int8 { codes: &signed, scales: &host.scales },
        _ => WeightRows::Values(&values),
    };
    bench.backend.write_weight(of, 0, rows).unwrap();
}

fn on_host(host: &mut Host, format: WeightFormat, g: &[f32], columns: usize, step: &Step) -> Tally {
    let (tiles, width) = (second::tiles(columns), padded(columns));
    let rows = host.rows.len() / tiles;
    let mut padded_g = vec![0.0; rows * width];
    for (to, from) in padded_g.chunks_mut(width).zip(g.chunks(columns)) {
        to[..columns].copy_from_slice(from);
    }
    let mut profile = vec![0.0; width];
    second::profile(&host.columns, columns, &mut profile);
    host.sums.fill(0.0);
    for part in parts(rows) {
        let first = part.start / second::GROUP;
        let panels = padded_g[part.start * width..part.end * width].chunks(second::GROUP * width);
        let looked_at: Vec<&[f32]> = panels
            .enumerate()
            .filter(|(panel, _)| second::looked_at(first + panel, step.step))
            .map(|(_, g)| g)
            .collect();
        for together in looked_at.chunks(second::TOGETHER) {
            let mut total = vec![0.0; width];
            for g in together {
                let mut sums = vec![0.0; width];
                g.chunks(width).for_each(|g| second::add_squares(g, &mut sums));
                second::add_sums(&mut total, &sums);
            }
            second::add_sums(&mut host.sums, &total);
        }
    }
    let looked_at = second::rows_looked_at(0..rows, step.step);
    second::follow(&mut host.columns, &host.sums, looked_at, step.average);
    second::follow_squares(&mut host.each, &padded_g, step.average);
    let (blocks, bytes, moment) = (width / BLOCK, host.remainder.len() / rows, host.moment.len() / rows);
    let mut tally = Tally::default();
    for r in 0..rows {
        let remainders = &mut host.remainder[r * bytes..][..bytes];
        let scales = &mut host.scales[r * blocks..][..blocks];
        let weights = match format {
            WeightFormat::Nvfp4 => {
                let codes = &mut host.codes[r * width / 2..][..width / 2];
                RowWeights::Nvfp4(weight::Row { codes, scales, remainders }, host.global)
            }
            WeightFormat::Int8 => {
                let codes = &mut host.signed[r * width..][..width];
                RowWeights::Int8(int8::Row { codes, scales, remainders })
            }
            _ => RowWeights::F32(&mut host.values[r * width..][..width]),
        };
        let second = match step.recipe.full_second {
            true => RowSecond::Full(&host.each[r * width..][..width]),
            false => RowSecond::Factored(&mut host.rows[r * tiles..][..tiles], columns, &profile),
        };
        let (moments, g) = (&mut host.moment[r * moment..][..moment], &padded_g[r * width..][..width]);
        tally.add(row(weights, moments, second, g, (r * width) as u64, &Moving::new(step)));
    }
    tally
}

fn decoded(host: &Host, format: WeightFormat, columns: usize) -> Vec<f32> {
    let width = padded(columns);
    let rows = host.values.len() / width;
    let mut out = host.values.clone();
    for r in 0..rows {
        let (out, blocks) = (&mut out[r * width..][..width], width / BLOCK);
        let scales = &host.scales[r * blocks..][..blocks];
        match format {
            WeightFormat::Nvfp4 => {
                nvfp4::decode_row(&host.codes[r * width / 2..][..width / 2], scales, 1.0, out);
                out.iter_mut().for_each(|x| *x *= host.global);
            }
            WeightFormat::Int8 => {
                int8_block::decode_row(&host.signed[r * width..][..width], scales, out);
            }
            _ => {}
        }
    }
    out.chunks(width).flat_map(|row| &row[..columns]).copied().collect()
}

fn check_vector_case<B: Backend>(make: &impl Fn(usize) -> B) {
    let mut bench = Bench::new(make);
    let len = 77;
    let (mut w, mut m, mut v) = (numbers(1, len), vec![0.0; len], vec![0.0; len]);
    let of = bench.vector(&w);
    let kept = Kept {
        remainder: Buffer::default(),
        moment: bench.vector(&m).buffer,
        second: bench.vector(&v).buffer,
    };
    let mut all = Vec::new();
    for number in 1..4 {
        let (mut g, now) = (numbers(number as u32, len), step(Recipe::DEFAULT, number));
        if number == 3 {
            g[20] = f32::NAN;
        }
        all.push(vector(&mut w, &mut m, &mut v, &g, &now));
        let gradient = bench.rows(1, len, &g);
        bench.backend.update_vector(of, gradient, &kept, &now).unwrap();
    }
    assert_eq!(all.iter().map(|tally| tally.refused).collect::<Vec<_>>(), [0, 0, 1]);
    assert_eq!(bench.backend.tallies().unwrap().each, all, "one for each call, in order");
    assert!(bench.backend.tallies().unwrap().each.is_empty(), "each is read once");
    assert_same_bits(&bench.read(Rows::new(of.buffer, 1, len)), &w, "update_vector");
    assert_same_bits(&bench.read(Rows::new(kept.second, 1, len)), &v, "update_vector, v");
}
