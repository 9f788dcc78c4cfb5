//! Weights as bf16 rows in scratch, without the tensor's own scale, so exact. They lie there whole, one behind the other,
//! until the next has no room: then all are forgotten, and it is the first. In training there is room for a layer's, so
//! what is decoded to compute a layer again is found on its way back. Who has no room whole is decoded in parts, of
//! which none are kept.

use std::ops::Range;

use halfbyte_ops::tensor::PANEL;
use halfbyte_ops::{Buffer, Result, Weight, WeightFormat};

use super::{ALIGNMENT, BESIDE};
use crate::Cuda;
use crate::cublaslt::Operand;
use crate::few_bits::Room;
use crate::launch::{Arg, DevicePtr, Grid, args};
use crate::weight::HEADER;

/// Weights that one launch decodes: `PIECES` in decode.cu.
const TOGETHER: usize = 3;
/// Most that are kept. A layer has seven; where models are so small that there is room for more, few are asked for again.
const MOST: usize = 64;

/// What lies decoded in the arena's scratch.
#[derive(Default)]
pub(crate) struct Decoded {
    held: Vec<Held>,
    /// From the first to the last byte of what they were made of, and of their places: most buffers lie elsewhere.
    reach: [Range<usize>; 2],
}

#[derive(Clone, Copy)]
struct Held {
    of: Weight,
    place: Buffer,
}

impl Held {
    /// Of the weight, and of its place.
    fn bytes(&self) -> [Range<usize>; 2] {
        [self.of.buffer, self.place].map(bytes_in)
    }
}

fn bytes_in(buffer: Buffer) -> Range<usize> {
    buffer.offset..buffer.offset + buffer.bytes
}

impl Decoded {
    /// Forgets what was made of some of these bytes, or lies there.
    pub(crate) fn forget(&mut self, changed: Buffer) {
        let changed = bytes_in(changed);
        let apart = |of: &Range<usize>| of.end <= changed.start || changed.end <= of.start;
        if !self.reach.iter().all(apart) {
            self.held.retain(|held| held.bytes().iter().all(apart));
        }
    }

    fn hold(&mut self, fresh: Vec<Held>) {
        self.held.extend(fresh);
        let all = |which: usize| self.held.iter().map(move |held| held.bytes()[which].clone());
        self.reach = [0, 1].map(|which| {
            let joined = |a: Range<usize>, b: Range<usize>| a.start.min(b.start)..a.end.max(b.end);
            all(which).reduce(joined).unwrap_or_default()
        });
    }

    fn find(&self, weight: &Weight) -> Option<Buffer> {
        self.held.iter().find(|held| held.of == *weight).map(|held| held.place)
    }

    /// Places for those of these weights that are not there, in the room; with all others forgotten, if need be. `None` if
    /// even so not all of them would be there.
    fn place(&mut self, weights: &[Weight], room: Buffer) -> Option<Vec<Held>> {
        let end = bytes_in(room).end;
        let missing = weights.iter().filter(|weight| self.find(weight).is_none()).copied();
        let behind = self.held.iter().map(|held| bytes_in(held.place).end).max();
        let (fresh, last) = in_order(missing, behind.unwrap_or(room.offset));
        if last <= end && self.held.len() + fresh.len() <= MOST {
            return Some(fresh);
        }
        let (all, last) = in_order(weights.iter().copied(), room.offset);
        (last <= end).then(|| {
            self.held.clear();
            all
        })
    }
}

/// One behind the other, and where the last ends.
fn in_order(weights: impl Iterator<Item = Weight>, first: usize) -> (Vec<Held>, usize) {
    let mut end = first;
    let place = |of: Weight| {
        let place = Buffer { offset: end.next_multiple_of(ALIGNMENT), bytes: bytes(&of) };
        end = place.offset + place.bytes;
        Held { of, place }
    };
    let held = weights.map(place).collect();
    (held, end)
}

fn stride(weight: &Weight) -> usize {
    weight.columns.next_multiple_of(64)
}

/// Bytes of a weight, decoded.
fn bytes(weight: &Weight) -> usize {
    weight.rows * stride(weight) * 2
}

/// The kernel that decodes a format; none where values are taken where they lie.
fn kernel(format: WeightFormat) -> Option<&'static str> {
    match format {
        WeightFormat::Nvfp4 => Some("decoded_nvfp4"),
        WeightFormat::Int8 => Some("decoded_int8"),
        WeightFormat::Bf16 | WeightFormat::F32 => None,
    }
}

/// All that scratch has behind the other places.
pub(super) fn room(cuda: &Cuda) -> Buffer {
    let Buffer { offset, bytes } = cuda.scratch;
    let first = (offset + BESIDE).next_multiple_of(ALIGNMENT);
    Buffer { offset: first, bytes: (offset + bytes).saturating_sub(first) }
}

/// The room for something else: nothing is kept.
pub(super) fn emptied(cuda: &Cuda, op: &'static str) -> Result<Room> {
    let room = room(cuda);
    Ok(Room { at: cuda.pointer(op, room)?, bytes: room.bytes })
}

/// Has these weights decoded with few launches, if there is room for all of them; says whether they are there now.
pub(crate) fn bring(cuda: &mut Cuda, op: &'static str, weights: &[&Weight]) -> Result<bool> {
    let coded = weights.iter().filter(|weight| kernel(weight.format).is_some());
    let coded: Vec<Weight> = coded.map(|weight| **weight).collect();
    let room = room(cuda);
    let Some(fresh) = cuda.decoded.get_mut().place(&coded, room) else { return Ok(false) };
    let pieces = fresh.iter().map(|Held { of, place }| {
        Ok(Piece { of: *of, from: cuda.weight(op, of)?, rows: 0..of.rows, to: cuda.place(op, *place)? })
    });
    let pieces = pieces.collect::<Result<Vec<Piece>>>()?;
    let alike = |a: &Piece, b: &Piece| (a.of.format, a.of.columns) == (b.of.format, b.of.columns);
    for pieces in pieces.chunk_by(alike).flat_map(|alike| alike.chunks(TOGETHER)) {
        decode(cuda, pieces, 0..pieces[0].of.columns)?;
    }
    cuda.decoded.get_mut().hold(fresh);
    Ok(true)
}

/// Rows of weights, of each the same columns, all there at once: of those that lie there whole, where they lie, or else
/// decoded now. Columns go to the end of a block of 64 at most.
pub(super) fn sides(
    cuda: &mut Cuda,
    op: &'static str,
    of: &[(&Weight, Range<usize>)],
    columns: Range<usize>,
) -> Result<Vec<Operand>> {
    let weights: Vec<&Weight> = of.iter().map(|(weight, _)| *weight).collect();
    let whole = bring(cuda, op, &weights)?;
    // What is behind the parts that are decoded now.
    let mut next = if whole { DevicePtr::NULL } else { emptied(cuda, op)?.at };
    let side = |(weight, rows): &(&Weight, Range<usize>)| {
        let place = cuda.decoded.get_mut().find(weight);
        let values = match (kernel(weight.format), place) {
            // Panels of 16 rows are rows one after the other, padded.
            (None, _) => cuda.weight(op, weight)?.add(HEADER),
            (Some(_), Some(place)) => cuda.place(op, place)?,
            (Some(_), None) => {
                let piece =
                    Piece { of: **weight, from: cuda.weight(op, weight)?, rows: rows.clone(), to: next };
                decode(cuda, &[piece], columns.clone())?;
                let side = Operand::bf16(next, columns.len().next_multiple_of(64));
                next = side.after(rows.len());
                return Ok(side);
            }
        };
        let first = rows.start * stride(weight) + columns.start;
        Ok(Operand::bf16(values.add(first * 2), stride(weight)))
    };
    of.iter().map(side).collect()
}

/// Rows of a weight, and where they go.
struct Piece {
    of: Weight,
    from: DevicePtr,
    rows: Range<usize>,
    to: DevicePtr,
}

/// These columns of pieces that are alike and begin at the same row.
fn decode(cuda: &mut Cuda, pieces: &[Piece], columns: Range<usize>) -> Result<()> {
    let Some(Piece { of, rows, .. }) = pieces.first() else { return Ok(()) };
    let Some(kernel) = kernel(of.format) else { return Ok(()) };
    let width = columns.len().next_multiple_of(64);
    let mut arguments = args![of.columns, rows.start, columns.start, width].to_vec();
    for piece in pieces {
        arguments.extend(args![piece.from, piece.rows.len(), piece.to]);
    }
    arguments.resize(4 + 3 * TOGETHER, Arg::from(0usize));
    let panels = pieces.iter().map(|piece| piece.rows.len().div_ceil(PANEL)).sum::<usize>();
    let blocks = (width.div_ceil(512) as u32, panels as u32, 1);
    cuda.launch(kernel, Grid { blocks, ..Grid::line(1, 256) }, &arguments)
}

#[cfg(test)]
mod tests {
    use halfbyte_formats::state::{Average, adamw};
    use halfbyte_ops::testing::{Bench, assert_same_bits, numbers};
    use halfbyte_ops::update::{Kept, Recipe, Step};
    use halfbyte_ops::{Backend, Matrix, Product, Rows};

    use super::*;
    use crate::few_bits::Compute;
    use crate::tests::computed_by_the_library;

    const SIDES: (usize, usize) = (192, 128);
    const TOKENS: usize = 32;

    fn weight(offset: usize, rows: usize) -> Weight {
        let (columns, format) = (64, WeightFormat::Nvfp4);
        Weight { buffer: Buffer { offset, bytes: format.bytes(rows, columns) }, rows, columns, format }
    }

    #[test]
    fn whoever_has_no_room_is_the_first_again() {
        let room = Buffer { offset: 1 << 20, bytes: 64 * 2 * 100 };
        let mut decoded = Decoded::default();
        let mut put = |weights: &[Weight]| {
            let fresh = decoded.place(weights, room)?;
            let places = fresh.iter().map(|held| held.place.offset - room.offset).collect::<Vec<_>>();
            decoded.hold(fresh);
            Some(places)
        };
        let [a, b, c, large] =
            [(0, 30), (10_000, 41), (20_000, 32), (30_000, 101)].map(|(at, rows)| weight(at, rows));
        assert_eq!(put(&[a, b]), Some(vec![0, 3840]));
        assert_eq!(put(&[b, a]), Some(vec![]));
        assert_eq!(put(&[large]), None);
        assert_eq!(put(&[b, c]), Some(vec![0, 5376]));
        assert_eq!(put(&[a, b, c]), None);
        decoded.forget(Buffer { offset: 10_000, bytes: 1 });
        assert!(decoded.find(&b).is_none() && decoded.find(&c).is_some());
        decoded.forget(Buffer { offset: room.offset + room.bytes - 1, bytes: 1 });
        assert!(decoded.find(&c).is_some());
        decoded.forget(Buffer { offset: room.offset, bytes: 5377 });
        assert!(decoded.held.is_empty());
    }

    fn product(bench: &mut Bench<Cuda>, x: Rows, weight: Weight) -> Vec<f32> {
        let out = bench.output(TOKENS, SIDES.0);
        bench.backend.linear(x, &[Product::new(Matrix { weight, bias: None }, out)]).unwrap();
        bench.read(out)
    }

    /// The product with a weight of these bytes that was never there before.
    fn fresh(make: &dyn Fn(usize) -> Cuda, x: &[f32], of: Weight, bytes: &[u8]) -> Vec<f32> {
        let bench = &mut Bench::new(&make);
        let weight = Weight { buffer: bench.buffer(bytes.len()), ..of };
        bench.backend.write_bytes(weight.buffer, bytes).unwrap();
        let x = bench.rows(TOKENS, SIDES.1, x);
        product(bench, x, weight)
    }

    fn learn(bench: &mut Bench<Cuda>, of: &Weight) {
        let (recipe, (rows, columns)) = (Recipe::DEFAULT, SIDES);
        let kept = Kept {
            remainder: bench.buffer(recipe.remainder_bytes(of.format, rows, columns)),
            moment: bench.buffer(recipe.moment_bytes(rows, columns)),
            second: bench.buffer(recipe.second_bytes(rows, columns)),
        };
        for buffer in [kept.remainder, kept.moment, kept.second] {
            bench.backend.write_bytes(buffer, &vec![0; buffer.bytes]).unwrap();
        }
        let settings = adamw::Settings::default();
        let adamw = adamw::Step::new(&settings, 0.1, 1);
        let step = Step { recipe, adamw, average: Average::new(settings.beta2), seed: 7, step: 1, tensor: 3 };
        let gradient = bench.rows(rows, columns, &numbers(9, rows * columns));
        bench.backend.update(of, 0, gradient, &kept, &step).unwrap();
    }

    #[test]
    fn products_are_of_the_weight_as_it_is_now() {
        type Change = fn(&mut Bench<Cuda>, &Weight);
        let changes: [(&str, Change); 5] = [
            ("update", learn),
            ("write_weight", |bench, of| {
                let count = SIDES.0 * SIDES.1;
                let (codes, scales) = (vec![0x21; count / 2], vec![0x38; count / 16]);
                let rows = halfbyte_ops::WeightRows::Nvfp4 { codes: &codes, scales: &scales, global: 1.0 };
                bench.backend.write_weight(of, 0, rows).unwrap();
            }),
            ("write_bytes", |bench, of| {
                let some = Buffer { offset: of.buffer.offset + 4096, bytes: 64 };
                bench.backend.write_bytes(some, &[0x77; 64]).unwrap();
            }),
            ("clear", |bench, of| {
                bench.backend.clear(Rows::new(of.buffer, 1, of.buffer.bytes / 8)).unwrap();
            }),
            ("copy", |bench, of| {
                let other = bench.rows(1, 64, &[1.0; 64]);
                bench.backend.copy(other, Rows::new(of.buffer, 1, 64)).unwrap();
            }),
        ];
        computed_by_the_library(Compute::Bf16, |make, _| {
            for (what, change) in changes {
                let bench = &mut Bench::new(&make);
                let values = numbers(1, TOKENS * SIDES.1);
                let x = bench.rows(TOKENS, SIDES.1, &values);
                let given = numbers(2, SIDES.0 * SIDES.1);
                let (weight, ..) = bench.weight(WeightFormat::Nvfp4, SIDES.0, SIDES.1, &given);
                let before = product(bench, x, weight);
                assert_same_bits(&product(bench, x, weight), &before, what);
                change(bench, &weight);
                let after = product(bench, x, weight);
                let mut bytes = vec![0; weight.buffer.bytes];
                bench.backend.read_bytes(weight.buffer, &mut bytes).unwrap();
                assert!(before != after, "{what} changed nothing");
                assert_same_bits(&after, &fresh(make, &values, weight, &bytes), what);
            }
        });
    }

    #[test]
    fn weights_are_decoded_once_for_both_ways_and_together() {
        computed_by_the_library(Compute::Bf16, |make, _| {
            let bench = &mut Bench::new(&make);
            let x = bench.rows(TOKENS, SIDES.1, &numbers(1, TOKENS * SIDES.1));
            let matrices = [5, 6, 7].map(|seed| {
                let values = numbers(seed, SIDES.0 * SIDES.1);
                let (weight, ..) = bench.weight(WeightFormat::Nvfp4, SIDES.0, SIDES.1, &values);
                Matrix { weight, bias: None }
            });
            let products = matrices.map(|matrix| Product::new(matrix, bench.output(TOKENS, SIDES.0)));
            let dx = bench.output(TOKENS, SIDES.1);
            let cuda = &mut bench.backend;
            cuda.profile().unwrap();
            cuda.linear(x, &products).unwrap();
            for Product { matrix, out, .. } in products {
                cuda.linear_input_gradient(out, &matrix.weight, dx, false).unwrap();
            }
            let decodes = |cuda: &mut Cuda| {
                let noted = cuda.profile().unwrap();
                noted.iter().filter(|(kernel, _)| *kernel == "decoded_nvfp4").count()
            };
            assert_eq!(decodes(cuda), 1);
            // What another op makes of all the scratch is none of them.
            cuda.scratch("test", cuda.scratch.bytes).unwrap();
            cuda.linear(x, &products).unwrap();
            assert_eq!(decodes(cuda), 1);
        });
    }
}
