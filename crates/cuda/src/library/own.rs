//! What our own warpgroups do and cuBLASLt cannot, whichever makes the other products: gate and up are mixed, the
//! gradients of both are taken, and several products summed, before anything is written.

use halfbyte_ops::{OutputGradient, Result, Rows, Weight};

use super::{decoded, forward, most_results, narrow, parts, places, scale};
use crate::cublaslt::{Operand, Results};
use crate::few_bits::Compute;
use crate::launch::DevicePtr;
use crate::product_warpgroup::{self, Factors, Pair};
use crate::{Cuda, Device, gated as mixed};

impl Device {
    /// Whether our own kernels make those products of many tokens that are mixed or summed, beside cuBLASLt.
    pub fn mixes_products(&self) -> bool {
        self.has_library() && product_warpgroup::fits(self)
    }
}

/// Whether the chip has them.
pub(super) fn fits(cuda: &Cuda) -> bool {
    product_warpgroup::fits(&cuda.device)
}

/// Whether so many products are summed at once.
pub(crate) fn sums(cuda: &Cuda, count: usize) -> bool {
    let library = cuda.device.library.as_ref();
    let plain = library.is_some_and(|library| library.compute != Compute::NativeFp4);
    plain && fits(cuda) && (2..=product_warpgroup::MOST_FACTORS).contains(&count)
}

/// Both products are rounded before they are mixed, kept or not.
pub(super) fn gated(
    cuda: &mut Cuda,
    x: Rows,
    weights: [&Weight; 2],
    kept: Option<(Rows, Rows)>,
    out: Rows,
) -> Result<()> {
    const OP: &str = "gated";
    let place = places(cuda, OP)?.rounded;
    let (left, inner) = (narrow(cuda, OP, x, place)?, x.columns.next_multiple_of(64));
    let (to, stride) = (cuda.pointer(OP, out.buffer)?, out.columns.next_multiple_of(64));
    let [gate, up] = mixed::places(cuda, kept)?;
    let scales = [scale(cuda, OP, weights[0])?, scale(cuda, OP, weights[1])?];
    let (most, limit) = most_results(cuda, 2 * inner, x.rows, 0);
    for part in parts(OP, out.columns, most, limit)? {
        let (columns, before) = (part.len(), part.start * 2);
        let [first, second] = forward::rights(cuda, OP, Compute::Bf16, weights, part)?;
        let factors = [(first, scales[0]), (second, scales[1])];
        let factors = factors.map(|(right, scale)| Factors { left, right, inner, scale });
        let to = Results { narrow: true, ..Results::new(to.add(before), stride) };
        let pair = Pair { gate: gate.add(before), up: up.add(before), dup: DevicePtr::NULL };
        let kept = kept.map(|_| pair);
        cuda.noted(OP, |cuda| product_warpgroup::gated(&cuda.device, (x.rows, columns), &factors, to, kept))?;
    }
    Ok(())
}

/// The gradient of what was mixed is rounded before those of gate and up are taken.
pub(super) fn gated_gradient(
    cuda: &mut Cuda,
    dy: Rows,
    down: &Weight,
    kept: (Rows, Rows),
    [dgate, dup]: [Rows; 2],
) -> Result<()> {
    const OP: &str = "gated_gradient";
    let at = places(cuda, OP)?;
    let (left, scale) = (narrow(cuda, OP, dy, at.rounded)?, scale(cuda, OP, down)?);
    let stride = down.columns.next_multiple_of(64);
    let [gate, up] = mixed::places(cuda, Some(kept))?;
    let [to, dup] = mixed::places(cuda, Some((dgate, dup)))?;
    let (most, limit) = most_results(cuda, down.rows, dy.rows, 0);
    for part in parts(OP, down.columns, most, limit)? {
        let (columns, before) = (part.len(), part.start * 2);
        let right = decoded::sides(cuda, OP, &[(down, 0..down.rows)], part)?[0];
        let factors = Factors { left, right, inner: down.rows, scale };
        let to = Results { narrow: true, ..Results::new(to.add(before), stride) };
        let pair = Pair { gate: gate.add(before), up: up.add(before), dup: dup.add(before) };
        let shape = (dy.rows, columns);
        cuda.noted(OP, |cuda| product_warpgroup::gated_gradient(&cuda.device, shape, factors, to, pair))?;
    }
    Ok(())
}

/// dx[t,k] = sum_i s_i * sum_n dy_i[t,n] w_i[n,k], all dy narrow
pub(crate) fn input_gradients(cuda: &mut Cuda, all: &[OutputGradient], dx: Rows) -> Result<()> {
    const OP: &str = "linear_input_gradient";
    let (to, narrow) = (cuda.pointer(OP, dx.buffer)?, dx.narrow);
    let (stride, size) = if narrow { (dx.columns.next_multiple_of(64), 2) } else { (dx.columns, 4) };
    let inner = all.iter().map(|of| of.weight.rows).sum();
    let (most, limit) = most_results(cuda, inner, dx.rows, 0);
    for part in parts(OP, dx.columns, most, limit)? {
        let rows: Vec<_> = all.iter().map(|of| (&of.weight, 0..of.weight.rows)).collect();
        let sides = decoded::sides(cuda, OP, &rows, part.clone())?;
        let factors = all.iter().zip(sides).map(|(OutputGradient { dy, weight, .. }, right)| {
            let left = Operand::bf16(cuda.pointer(OP, dy.buffer)?, dy.columns.next_multiple_of(64));
            Ok(Factors { left, right, inner: weight.rows, scale: scale(cuda, OP, weight)? })
        });
        let factors = factors.collect::<Result<Vec<_>>>()?;
        let to = Results { narrow, ..Results::new(to.add(part.start * size), stride) };
        let shape = (dx.rows, part.len());
        cuda.noted(OP, |cuda| product_warpgroup::sum(&cuda.device, shape, &factors, to))?;
    }
    Ok(())
}
