//! Both sides of gradients in four bits as the plain lines of `formats` round them, and that kernels give their bits.

use halfbyte_formats::state::draw::Purpose;
use halfbyte_formats::{bf16, blocked, hadamard, nvfp4};
use halfbyte_ops::testing::{Bench, assert_same_bits, numbers};
use halfbyte_ops::{Luck, Rows, WeightFormat};

use super::{Across, Room, back};
use crate::Cuda;
use crate::cublaslt::Operand;
use crate::launch::DevicePtr;
use crate::tests::{device, on};

pub(super) const LUCK: Luck = Luck { seed: 7, batch: 5, tensor: 3 };

/// Columns as rows.
pub(super) fn turned(x: &[f32], columns: usize) -> Vec<f32> {
    (0..columns).flat_map(|c| x.iter().skip(c).step_by(columns).copied()).collect()
}

/// A row as NVFP4 of a tensor of this scale; at random if its first element has a number.
fn four_bits(row: &[f32], global: f32, random: Option<(Purpose, usize)>) -> Vec<f32> {
    let (mut codes, mut scales) = (vec![0; row.len().div_ceil(2)], vec![0; row.len().div_ceil(16)]);
    match random {
        None => nvfp4::encode_row(row, global, nvfp4::Scales::Nearest, &mut codes, &mut scales),
        Some((purpose, first)) => {
            let draws = LUCK.draws(purpose);
            nvfp4::encode_row_stochastic(row, global, &draws, first as u64, &mut codes, &mut scales);
        }
    }
    let mut out = vec![0.0; row.len()];
    nvfp4::decode_row(&codes, &scales, global, &mut out);
    out
}

fn global(of: &[f32]) -> f32 {
    nvfp4::tensor_scale(nvfp4::amax(of), nvfp4::Scales::Nearest)
}

/// dy from token `first` on.
pub(super) fn results(dy: &[f32], outputs: usize, first: usize) -> Vec<f32> {
    let (width, global) = (outputs.next_multiple_of(64), global(dy));
    let rows = dy.chunks(outputs).zip(first..);
    rows.flat_map(|(row, t)| four_bits(row, global, Some((Purpose::Results, t * width)))).collect()
}

/// A weight, a row for each input.
pub(super) fn transposed(held: &[f32], outputs: usize) -> Vec<f32> {
    let (width, inputs) = (outputs.next_multiple_of(64), held.len() / outputs);
    let row = |(k, row): (usize, &[f32])| four_bits(row, 1.0, Some((Purpose::Transposed, k * width)));
    turned(held, inputs).chunks(outputs).enumerate().flat_map(row).collect()
}

/// Columns of tokens, transformed.
fn over_tokens(x: &[f32], columns: usize, random: impl Fn(usize) -> Option<(Purpose, usize)>) -> Vec<f32> {
    let (tokens, signs) = (x.len() / columns, LUCK.draws(Purpose::Signs).block(0)[0]);
    let mut transformed = Vec::new();
    for column in turned(x, columns).chunks(tokens) {
        for group in column.chunks(16) {
            let mut sixteen = [0.0; 16];
            sixteen[..group.len()].copy_from_slice(group);
            hadamard::transform(&mut sixteen, signs);
            transformed.extend(sixteen);
        }
    }
    let (width, global) = (tokens.next_multiple_of(16), global(&transformed));
    let rows = transformed.chunks(width).enumerate();
    rows.flat_map(|(c, row)| four_bits(row, global, random(c))).collect()
}

pub(super) fn x_over_tokens(x: &[f32], columns: usize) -> Vec<f32> {
    over_tokens(x, columns, |_| None)
}

/// Columns from `first` on, of tokens from `token` on of so many.
pub(super) fn dy_over_tokens(
    dy: &[f32],
    (first, columns): (usize, usize),
    (token, tokens): (usize, usize),
) -> Vec<f32> {
    let number = |c: usize| (first + c) * tokens.next_multiple_of(64) + token;
    over_tokens(dy, columns, |c| Some((Purpose::ResultsOverTokens, number(c))))
}

/// Numbers of very different sizes, as bf16 has them.
pub(super) fn uneven(seed: u32, rows: usize, columns: usize) -> Vec<f32> {
    let of = |(i, x): (usize, f32)| bf16::round(x * ((i / columns % 9) as f32 - (i % 3) as f32).exp2());
    numbers(seed, rows * columns).into_iter().enumerate().map(of).collect()
}

/// The values of a side, `width` of each row, by a scale.
fn read(cuda: &mut Cuda, side: Operand, (rows, width): (usize, usize), scale: f32) -> Vec<f32> {
    let blocks = side.stride / 16;
    let (mut codes, mut tiles) = (vec![0; rows * side.stride / 2], vec![0; blocked::size(rows, blocks)]);
    cuda.copy_out(side.at, &mut codes).unwrap();
    cuda.copy_out(side.scales, &mut tiles).unwrap();
    let mut scales = vec![0; rows * blocks];
    blocked::from_blocked(&tiles, rows, blocks, &mut scales);
    let mut values = vec![0.0; rows * side.stride];
    let each = values.chunks_mut(side.stride).zip(codes.chunks(side.stride / 2)).zip(scales.chunks(blocks));
    each.for_each(|((values, codes), scales)| nvfp4::decode_row(codes, scales, scale, values));
    let padding = values.chunks(side.stride).flat_map(|row| &row[width..]);
    assert!(padding.into_iter().all(|x| *x == 0.0), "zeros behind the last column");
    values.chunks(side.stride).flat_map(|row| &row[..width]).copied().collect()
}

fn number(cuda: &mut Cuda, at: DevicePtr) -> f32 {
    let mut bytes = [0; 4];
    cuda.copy_out(at, &mut bytes).unwrap();
    f32::from_le_bytes(bytes)
}

/// No library is needed for this, so that every chip can show it.
fn contract(make: &dyn Fn(usize) -> Cuda) {
    const OP: &str = "test";
    for (tokens, outputs, inputs) in [(1, 48, 64), (70, 112, 208), (130, 272, 80), (333, 64, 320)] {
        let bench = &mut Bench::new(&make);
        let what = format!("sides of {tokens}x{outputs}x{inputs}");
        let [room, other] = [0; 2].map(|_| {
            let buffer = bench.buffer(2 << 20);
            Room { at: bench.backend.pointer(OP, buffer).unwrap(), bytes: buffer.bytes }
        });
        let (dy, x) = (uneven(1, tokens, outputs), uneven(2, tokens, inputs));
        let (weight, held, _) =
            bench.weight(WeightFormat::Nvfp4, outputs, inputs, &uneven(3, outputs, inputs));
        let (dy_rows, x_rows) = (bench.rows(tokens, outputs, &dy), bench.rows(tokens, inputs, &x));
        let cuda = &mut bench.backend;
        let (side, factor) = back::results(cuda, OP, LUCK, (dy_rows, 32), room, None).unwrap();
        let scale = number(cuda, factor.unwrap());
        let got = read(cuda, side, (tokens, outputs), scale);
        assert_same_bits(&got, &results(&dy, outputs, 32), &what);
        let side = back::transposed(cuda, OP, LUCK, &weight, 0..inputs, room).unwrap();
        assert_same_bits(&read(cuda, side, (inputs, outputs), 1.0), &transposed(&held, outputs), &what);
        let (first, token, all) = (16, 32, 512);
        let across = |tokens: Rows, columns| Across { tokens, first: token, of: all, columns };
        let (left, right) = (across(dy_rows, first..outputs), across(x_rows, 0..inputs));
        let ([left, right], factor) =
            back::over_tokens(cuda, OP, LUCK, (&left, room), (&right, other)).unwrap();
        let dy: Vec<f32> = dy.chunks(outputs).flat_map(|row| &row[first..]).copied().collect();
        let (count, width) = (outputs - first, tokens.next_multiple_of(16));
        let want_x = x_over_tokens(&x, inputs);
        let want_dy = dy_over_tokens(&dy, (first, count), (token, all));
        // What each tensor's scale is, the other's has to tell.
        let x_scale = number(cuda, other.words()[1]);
        assert_same_bits(&read(cuda, right, (inputs, width), x_scale), &want_x, &what);
        let got = read(cuda, left, (count, width), 1.0);
        let both = number(cuda, factor.unwrap());
        let largest = |x: &[f32]| x.iter().fold(0.0f32, |largest, x| largest.max(x.abs()));
        let dy_scale = largest(&want_dy) / largest(&got);
        assert!((dy_scale * x_scale / both - 1.0).abs() < 1e-6, "{what}: factor {both}");
        for (got, want) in got.iter().zip(&want_dy) {
            assert!((got * dy_scale - want).abs() <= 1e-6 * want.abs(), "{what}: {got} for {want}");
        }
    }
}

#[test]
fn gradients_are_rounded_as_formats_round_them() {
    if let Some(device) = device() {
        on(&device, 8 << 20, contract);
    }
}
