//! Products on the way forward: in bf16, or in fewer bits where that was asked for (`few_bits`).

use std::ops::Range;

use halfbyte_ops::{Matrix, Product, Result, Rows, Weight};

use super::{
    RESULTS, ROUNDED, decoded, in_sixteens, most_results, multiply, narrow, own, parts, pieces, places,
    scale, tokens_at_once,
};
use crate::cublaslt::{self, Operand, Results};
use crate::few_bits::{self, Compute, Room};
use crate::gated::Products;
use crate::launch::{DevicePtr, Grid, args};
use crate::{Cuda, gated as mixed};

/// Tokens as the left side of products, rounded.
#[derive(Clone, Copy)]
struct Left {
    side: Operand,
    rows: usize,
    /// Both sides are zero from the last column to the end of the padding.
    inner: usize,
    way: Compute,
    /// What results are multiplied by.
    factor: Option<DevicePtr>,
}

/// For products with a weight that has this scale of its own.
fn left(
    cuda: &mut Cuda,
    op: &'static str,
    way: Compute,
    x: Rows,
    room: Room,
    scale: Option<DevicePtr>,
) -> Result<Left> {
    let (side, factor) = match way {
        Compute::Bf16 => (narrow(cuda, op, x, room.at)?, scale),
        _ => few_bits::tokens(cuda, op, way, x, room, scale)?,
    };
    Ok(Left { side, rows: x.rows, inner: x.columns.next_multiple_of(64), way, factor })
}

/// Rows of weights as right sides, all there at once. In few bits they lie one behind the other.
pub(super) fn rights<const N: usize>(
    cuda: &mut Cuda,
    op: &'static str,
    way: Compute,
    weights: [&Weight; N],
    rows: Range<usize>,
) -> Result<[Operand; N]> {
    if way == Compute::Bf16 {
        let columns = 0..weights[0].columns;
        let sides = decoded::sides(cuda, op, &weights.map(|weight| (weight, rows.clone())), columns)?;
        return Ok(std::array::from_fn(|which| Operand { turned: true, ..sides[which] }));
    }
    let room = decoded::emptied(cuda, op)?;
    let mut sides = [Operand::bf16(room.at, 0); N];
    for (number, (side, weight)) in sides.iter_mut().zip(weights).enumerate() {
        *side = few_bits::weight(cuda, op, way, weight, rows.clone(), (room, number * rows.len()))?;
    }
    Ok(sides)
}

/// Has the weights of products that follow each other decoded together, where there is room for them.
pub(crate) fn ahead(cuda: &mut Cuda, op: &'static str, weights: &[&Weight]) -> Result<()> {
    match few_bits::way(cuda, weights) {
        Compute::Bf16 => decoded::bring(cuda, op, weights).map(|_| ()),
        _ => Ok(()),
    }
}

/// How many tokens at once.
pub(super) fn tokens(cuda: &Cuda, op: &'static str, way: Compute, x: Rows, room: Room) -> Result<usize> {
    match way {
        Compute::Bf16 => tokens_at_once(cuda, op, &[(x, room.bytes)]),
        _ => in_sixteens(cuda, op, room.tokens(way, x.columns)),
    }
}

pub(crate) fn linear(cuda: &mut Cuda, x: Rows, product: &Product) -> Result<()> {
    const OP: &str = "linear";
    let Matrix { weight, bias } = product.matrix;
    let (to, narrow) = (cuda.pointer(OP, product.out.buffer)?, product.out.narrow);
    let (stride, size) = if narrow { (weight.rows.next_multiple_of(64), 2) } else { (weight.rows, 4) };
    let added = product.added.map(|rows| cuda.rows(OP, rows)).transpose()?;
    let (way, scale) = (few_bits::way(cuda, &[&weight]), scale(cuda, OP, &weight)?);
    let room = Room { at: places(cuda, OP)?.results, bytes: RESULTS };
    let most = tokens(cuda, OP, way, x, room)?;
    for (first, count) in pieces(x.rows, most) {
        let left = left(cuda, OP, way, x.slice(first, count), room, scale)?;
        let (most, limit) = most_results(cuda, x.columns, count, 0);
        let before = first * stride * size;
        for part in parts(OP, weight.rows, most, limit)? {
            let before = before + part.start * size;
            let added = added.map(|added| added.add(before));
            let to = Results { narrow, added, ..Results::new(to.add(before), stride) };
            outputs(cuda, OP, left, &weight, part, to)?;
        }
    }
    let Some(bias) = bias else { return Ok(()) };
    let bias = cuda.vector(OP, bias)?;
    cuda.launch("add_bias", Grid::line(x.rows, 256), args![to, bias, weight.rows])
}

/// out[t,n] (+)= s * sum_k x'[t,k] w[n,k] of some outputs n
fn outputs(
    cuda: &mut Cuda,
    op: &'static str,
    Left { side, rows, inner, way, factor }: Left,
    weight: &Weight,
    part: Range<usize>,
    out: Results,
) -> Result<()> {
    let columns = part.len();
    let [right] = rights(cuda, op, way, [weight], part)?;
    let product = cublaslt::Product { rows, columns, inner, left: side, right, out, scale: factor };
    multiply(cuda, op, &product)
}

/// Products are mixed by who makes them where our own kernels can. Elsewhere those that are kept are made where they are
/// kept, others beside each other in scratch; either way they are rounded before they are mixed.
pub(crate) fn gated(
    cuda: &mut Cuda,
    x: Rows,
    gate: Matrix,
    up: Matrix,
    kept: Option<(Rows, Rows)>,
    out: Rows,
) -> Result<()> {
    const OP: &str = "gated";
    let bias = |matrix: Matrix| matrix.bias.map(|bias| cuda.vector(OP, bias)).transpose();
    let biases = [bias(gate)?, bias(up)?].map(|bias| bias.unwrap_or(DevicePtr::NULL));
    let way = few_bits::way(cuda, &[&gate.weight, &up.weight]);
    ahead(cuda, OP, &[&gate.weight, &up.weight])?;
    let room = Room { at: places(cuda, OP)?.rounded, bytes: ROUNDED };
    let most = tokens(cuda, OP, way, x, room)?;
    let plain = way == Compute::Bf16 && gate.bias.is_none() && up.bias.is_none();
    for (first, count) in pieces(x.rows, most) {
        let of = |rows: Rows| rows.slice(first, count);
        if plain && own::fits(cuda) {
            let kept = kept.map(|(gate, up)| (of(gate), of(up)));
            own::gated(cuda, of(x), [&gate.weight, &up.weight], kept, of(out))?;
            continue;
        }
        let given = Gated { x: of(x), matrices: [gate, up], biases, way, room };
        match kept {
            Some(kept) => given.kept(cuda, [of(kept.0), of(kept.1)], of(out))?,
            None => given.at_once(cuda, of(out))?,
        }
    }
    Ok(())
}

/// Two products of the same tokens.
struct Gated {
    x: Rows,
    matrices: [Matrix; 2],
    biases: [DevicePtr; 2],
    way: Compute,
    room: Room,
}

impl Gated {
    fn kept(&self, cuda: &mut Cuda, kept: [Rows; 2], out: Rows) -> Result<()> {
        const OP: &str = "gated";
        let Gated { x, matrices, biases, way, room } = *self;
        let [gate, up] = kept.map(|rows| cuda.pointer(OP, rows.buffer));
        let (gate, up, stride) = (gate?, up?, out.columns.next_multiple_of(64));
        for (matrix, to) in matrices.into_iter().zip([gate, up]) {
            let scale = scale(cuda, OP, &matrix.weight)?;
            let left = left(cuda, OP, way, x, room, scale)?;
            let (most, limit) = most_results(cuda, x.columns, x.rows, 0);
            for part in parts(OP, out.columns, most, limit)? {
                let to = Results { narrow: true, ..Results::new(to.add(part.start * 2), stride) };
                outputs(cuda, OP, left, &matrix.weight, part, to)?;
            }
        }
        let products = Products { gate, up, stride, scales: [DevicePtr::NULL; 2], biases };
        mixed::mix(cuda, &products, out, 0..out.columns)
    }

    fn at_once(&self, cuda: &mut Cuda, out: Rows) -> Result<()> {
        const OP: &str = "gated";
        let Gated { x, matrices: [gate, up], biases, way, room } = *self;
        let at = places(cuda, OP)?;
        let scales = [scale(cuda, OP, &gate.weight)?, scale(cuda, OP, &up.weight)?];
        let scales = scales.map(|scale| scale.unwrap_or(DevicePtr::NULL));
        let Left { side, rows, inner, factor, .. } = left(cuda, OP, way, x, room, None)?;
        // Of both.
        let (most, limit) = most_results(cuda, 2 * inner, x.rows, 4);
        for part in parts(OP, out.columns, most, limit)? {
            let (count, width) = (part.len(), part.len().next_multiple_of(64));
            let [first, second] = rights(cuda, OP, way, [&gate.weight, &up.weight], part.clone())?;
            let product = |right: Operand, columns, column: usize| {
                let out = Results { narrow: true, ..Results::new(at.results.add(column * 2), 2 * width) };
                cublaslt::Product { rows, columns, inner, left: side, right, out, scale: factor }
            };
            // Where one lies behind the other, they are one product.
            let joined = match way {
                Compute::Bf16 => false,
                Compute::Fp8 => count.is_multiple_of(64),
                Compute::NativeFp4 => count.is_multiple_of(128),
            };
            if joined {
                multiply(cuda, OP, &product(first, 2 * width, 0))?;
            } else {
                multiply(cuda, OP, &product(first, count, 0))?;
                multiply(cuda, OP, &product(second, count, width))?;
            }
            let (gate, up) = (at.results, at.results.add(width * 2));
            mixed::mix(cuda, &Products { gate, up, stride: 2 * width, scales, biases }, out, part)?;
        }
        Ok(())
    }
}
