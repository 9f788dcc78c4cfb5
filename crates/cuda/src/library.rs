//! Products of many tokens by cuBLASLt, where one is in use. The weight is decoded into scratch, as much of it as
//! has room, and multiplied by all tokens; then the next part of the results. Rows that are not narrow are rounded
//! into scratch first, as our own kernels round them on their way.

use std::cell::RefCell;
use std::ops::Range;
use std::path::PathBuf;
use std::rc::Rc;

use halfbyte_ops::error::check;
use halfbyte_ops::tensor::PANEL;
use halfbyte_ops::{Matrix, Product, Result, Rows, Weight, WeightFormat};

use crate::cublaslt::{self, CublasLt, Operand, Results};
use crate::gated::Products;
use crate::launch::{DevicePtr, Grid, args};
use crate::{Cuda, Device, gated, residual};

/// Tokens from which on the library is faster than our own kernels.
pub const MANY: usize = 256;

/// Bytes of scratch: for a decoded part, for rounded rows, for results that are mixed at once, for the library.
const DECODED: usize = 64 << 20;
const ROUNDED: usize = 32 << 20;
/// Half of it, so that results would still be near when they are mixed, was slower: short products cost more.
const RESULTS: usize = 64 << 20;
const WORKSPACE: usize = 32 << 20;
/// What the library wants its workspace to begin at a multiple of.
const ALIGNMENT: usize = 256;

/// Bytes of scratch for all of them.
pub(crate) const SCRATCH: usize = DECODED + ROUNDED + RESULTS + WORKSPACE + ALIGNMENT;

/// The library in use, and how it is used.
#[derive(Clone)]
pub(crate) struct Library {
    inner: Rc<RefCell<CublasLt>>,
    /// Tokens from which on.
    from: usize,
    /// Most tokens and most results of each at once; a test sets few, else memory does.
    pub(crate) most: (usize, usize),
}

impl Device {
    /// Has the products of `from` tokens and more made by cuBLASLt, from the first of these places that has one.
    /// Where none has, the error says so, and our own kernels make them as before.
    pub fn use_library(&mut self, places: &[PathBuf], from: usize) -> Result<()> {
        let found = CublasLt::open(&self.session, places);
        self.library_problem = found.as_ref().err().map(ToString::to_string);
        let inner = Rc::new(RefCell::new(found?));
        self.library = Some(Library { inner, from, most: (usize::MAX, usize::MAX) });
        self.look()
    }

    /// Why no library is in use, where one was looked for.
    pub fn library_problem(&self) -> Option<&str> {
        self.library_problem.as_deref()
    }

    /// Whether a library makes the products of many tokens.
    pub fn has_library(&self) -> bool {
        self.library.is_some()
    }

    /// "cuBLASLt 13.0 from 256 tokens on", or "own".
    pub fn products(&self) -> String {
        self.library.as_ref().map_or("own".to_owned(), |library| {
            let (major, minor) = library.inner.borrow().version();
            format!("cuBLASLt {major}.{minor} from {} tokens on", library.from)
        })
    }
}

/// Whether the library makes these products.
pub(crate) fn takes(cuda: &Cuda, tokens: usize, format: WeightFormat) -> bool {
    let library = cuda.device.library.as_ref();
    library.is_some_and(|library| tokens >= library.from && format != WeightFormat::F32)
}

/// The scratch, part by part.
struct Places {
    decoded: DevicePtr,
    rounded: DevicePtr,
    results: DevicePtr,
    workspace: DevicePtr,
}

fn places(cuda: &Cuda, op: &'static str) -> Result<Places> {
    let start = cuda.scratch(op, SCRATCH)?;
    let workspace = DevicePtr(start.0.next_multiple_of(ALIGNMENT as u64));
    let decoded = workspace.add(WORKSPACE);
    let rounded = decoded.add(DECODED);
    Ok(Places { decoded, rounded, results: rounded.add(ROUNDED), workspace })
}

fn multiply(cuda: &mut Cuda, op: &'static str, product: &cublaslt::Product) -> Result<()> {
    let workspace = places(cuda, op)?.workspace;
    cuda.noted(op, |cuda| match &cuda.device.library {
        Some(library) => library.inner.borrow_mut().multiply(product, workspace, WORKSPACE),
        None => Ok(()),
    })
}

/// `count` in parts of at most `most`, in multiples of 256 or, where that is too many, of 64; no more than `limit`.
fn parts(
    op: &'static str,
    count: usize,
    most: usize,
    limit: usize,
) -> Result<impl Iterator<Item = Range<usize>>> {
    let most = most.min(limit);
    let step = if most >= 256 { most & !255 } else { most & !63 };
    check(step > 0, op, || format!("{count} results do not fit scratch 64 at a time"))?;
    Ok((0..count).step_by(step).map(move |first| first..(first + step).min(count)))
}

/// How many tokens at once, so that what is not narrow can be rounded into so many bytes; in multiples of 16.
fn tokens_at_once(cuda: &Cuda, op: &'static str, sides: &[(Rows, usize)]) -> Result<usize> {
    let limit = cuda.device.library.as_ref().map_or(usize::MAX, |library| library.most.0);
    let wide = sides.iter().filter(|(rows, _)| !rows.narrow);
    let rows = wide.map(|(rows, bytes)| bytes / (rows.columns.next_multiple_of(64) * 2)).min();
    let tokens = rows.unwrap_or(usize::MAX).min(limit) & !15;
    check(tokens > 0, op, || "rows so wide that 16 of them do not fit scratch".to_owned())?;
    Ok(tokens)
}

/// Pieces of so many tokens.
fn pieces(tokens: usize, most: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..tokens).step_by(most).map(move |first| (first, most.min(tokens - first)))
}

/// Rows as bf16: themselves, or rounded into `place`.
fn narrow(cuda: &mut Cuda, op: &'static str, rows: Rows, place: DevicePtr) -> Result<Operand> {
    let from = cuda.pointer(op, rows.buffer)?;
    let stride = rows.columns.next_multiple_of(64);
    if rows.narrow {
        return Ok(Operand { at: from, stride, turned: false });
    }
    residual::narrow(cuda, from, (rows.rows, rows.columns), place)?;
    Ok(Operand { at: place, stride, turned: false })
}

/// Rows and columns of a weight as bf16: where they lie, or decoded into `place`. Columns go to the end of a block
/// of 64 at most.
fn decoded(
    cuda: &mut Cuda,
    op: &'static str,
    weight: &Weight,
    rows: Range<usize>,
    columns: Range<usize>,
    place: DevicePtr,
) -> Result<Operand> {
    let from = cuda.weight(op, weight)?;
    let kernel = match weight.format {
        WeightFormat::Nvfp4 => "decode_nvfp4_part",
        WeightFormat::Int8 => "decode_int8_part",
        WeightFormat::Bf16 | WeightFormat::F32 => {
            // Panels of 16 rows are rows one after the other, padded.
            let stride = weight.columns.next_multiple_of(64);
            let at = from.add(64 + (rows.start * stride + columns.start) * 2);
            return Ok(Operand { at, stride, turned: false });
        }
    };
    let (count, stride) = (rows.len(), columns.len().next_multiple_of(64));
    let arguments = args![from, weight.columns, rows.start, count, columns.start, stride, place];
    let blocks = (stride.div_ceil(512) as u32, count.div_ceil(PANEL) as u32, 1);
    cuda.launch(kernel, Grid { blocks, ..Grid::line(1, 256) }, arguments)?;
    Ok(Operand { at: place, stride, turned: false })
}

/// The tensor's own scale, where it has one.
fn scale(cuda: &Cuda, op: &'static str, weight: &Weight) -> Result<Option<DevicePtr>> {
    let scaled = weight.format == WeightFormat::Nvfp4;
    scaled.then(|| cuda.weight(op, weight)).transpose()
}

/// Most results of each token at once, if each takes `inner` decoded values, and `bytes` of results for each token.
fn most_results(cuda: &Cuda, inner: usize, tokens: usize, bytes: usize) -> (usize, usize) {
    let limit = cuda.device.library.as_ref().map_or(usize::MAX, |library| library.most.1);
    let room = RESULTS.checked_div(tokens * bytes).unwrap_or(usize::MAX);
    ((DECODED / (inner.max(1).next_multiple_of(64) * 2)).min(room), limit)
}

pub(crate) fn linear(cuda: &mut Cuda, x: Rows, product: &Product) -> Result<()> {
    const OP: &str = "linear";
    let Matrix { weight, bias } = product.matrix;
    let to = cuda.rows(OP, product.out)?;
    let most = tokens_at_once(cuda, OP, &[(x, ROUNDED)])?;
    for (first, count) in pieces(x.rows, most) {
        let (most, limit) = most_results(cuda, x.columns, count, 0);
        let out = to.add(first * weight.rows * 4);
        for part in parts(OP, weight.rows, most, limit)? {
            let to = Results::new(out.add(part.start * 4), weight.rows);
            let to = Results { added: product.added, ..to };
            outputs(cuda, OP, x.slice(first, count), &weight, part, to)?;
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
    x: Rows,
    weight: &Weight,
    part: Range<usize>,
    out: Results,
) -> Result<()> {
    let at = places(cuda, op)?;
    let left = narrow(cuda, op, x, at.rounded)?;
    // Both are zero up to the end of their padding.
    let inner = x.columns.next_multiple_of(64);
    let (rows, columns) = (x.rows, part.len());
    let right = Operand { turned: true, ..decoded(cuda, op, weight, part, 0..weight.columns, at.decoded)? };
    let scale = scale(cuda, op, weight)?;
    multiply(cuda, op, &cublaslt::Product { rows, columns, inner, left, right, out, scale })
}

/// Products that are kept are made where they are kept, others beside each other in scratch; either way they are
/// rounded before they are mixed.
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
    let most = tokens_at_once(cuda, OP, &[(x, ROUNDED)])?;
    for (first, count) in pieces(x.rows, most) {
        let of = |rows: Rows| rows.slice(first, count);
        match kept {
            Some(kept) => gated_kept(cuda, of(x), [gate, up], biases, [of(kept.0), of(kept.1)], of(out))?,
            None => gated_at_once(cuda, of(x), [gate, up], biases, of(out))?,
        }
    }
    Ok(())
}

fn gated_kept(
    cuda: &mut Cuda,
    x: Rows,
    matrices: [Matrix; 2],
    biases: [DevicePtr; 2],
    kept: [Rows; 2],
    out: Rows,
) -> Result<()> {
    const OP: &str = "gated";
    let [gate, up] = kept.map(|rows| cuda.pointer(OP, rows.buffer));
    let (gate, up, stride) = (gate?, up?, out.columns.next_multiple_of(64));
    for (matrix, to) in matrices.into_iter().zip([gate, up]) {
        let (most, limit) = most_results(cuda, x.columns, x.rows, 0);
        for part in parts(OP, out.columns, most, limit)? {
            let to = Results { narrow: true, ..Results::new(to.add(part.start * 2), stride) };
            outputs(cuda, OP, x, &matrix.weight, part, to)?;
        }
    }
    let products = Products { gate, up, stride, scales: [DevicePtr::NULL; 2], biases };
    gated::mix(cuda, &products, out, 0..out.columns)
}

fn gated_at_once(
    cuda: &mut Cuda,
    x: Rows,
    [gate, up]: [Matrix; 2],
    biases: [DevicePtr; 2],
    out: Rows,
) -> Result<()> {
    const OP: &str = "gated";
    let at = places(cuda, OP)?;
    let scales = [scale(cuda, OP, &gate.weight)?, scale(cuda, OP, &up.weight)?];
    let scales = scales.map(|scale| scale.unwrap_or(DevicePtr::NULL));
    let left = narrow(cuda, OP, x, at.rounded)?;
    let inner = x.columns.next_multiple_of(64);
    // Of both.
    let (most, limit) = most_results(cuda, 2 * inner, x.rows, 4);
    for part in parts(OP, out.columns, most, limit)? {
        let (count, width) = (part.len(), part.len().next_multiple_of(64));
        let behind = at.decoded.add(count * inner * 2);
        let right = decoded(cuda, OP, &gate.weight, part.clone(), 0..x.columns, at.decoded)?;
        let second = decoded(cuda, OP, &up.weight, part.clone(), 0..x.columns, behind)?;
        let product = |right: Operand, columns, column: usize| cublaslt::Product {
            rows: x.rows,
            columns,
            inner,
            left,
            right: Operand { turned: true, ..right },
            out: Results { narrow: true, ..Results::new(at.results.add(column * 2), 2 * width) },
            scale: None,
        };
        // Where both were decoded, one behind the other, they are one product.
        if right.at == at.decoded && second.at == behind && count == width {
            multiply(cuda, OP, &product(right, 2 * width, 0))?;
        } else {
            multiply(cuda, OP, &product(right, count, 0))?;
            multiply(cuda, OP, &product(second, count, width))?;
        }
        let (gate, up) = (at.results, at.results.add(width * 2));
        gated::mix(cuda, &Products { gate, up, stride: 2 * width, scales, biases }, out, part)?;
    }
    Ok(())
}

pub(crate) fn input_gradient(
    cuda: &mut Cuda,
    dy: Rows,
    weight: &Weight,
    dx: Rows,
    added: bool,
) -> Result<()> {
    const OP: &str = "linear_input_gradient";
    let to = cuda.rows(OP, dx)?;
    let most = tokens_at_once(cuda, OP, &[(dy, ROUNDED)])?;
    for (first, count) in pieces(dy.rows, most) {
        let (most, limit) = most_results(cuda, weight.rows, count, 0);
        let out = to.add(first * weight.columns * 4);
        for part in parts(OP, weight.columns, most, limit)? {
            let to = Results { added, ..Results::new(out.add(part.start * 4), weight.columns) };
            inputs(cuda, OP, dy.slice(first, count), weight, part, to)?;
        }
    }
    Ok(())
}

/// out[t,k] (+)= s * sum_n dy'[t,n] w[n,k] of some inputs k
fn inputs(
    cuda: &mut Cuda,
    op: &'static str,
    dy: Rows,
    weight: &Weight,
    part: Range<usize>,
    out: Results,
) -> Result<()> {
    let at = places(cuda, op)?;
    let left = narrow(cuda, op, dy, at.rounded)?;
    let (rows, columns, inner) = (dy.rows, part.len(), weight.rows);
    let right = decoded(cuda, op, weight, 0..weight.rows, part, at.decoded)?;
    let scale = scale(cuda, op, weight)?;
    multiply(cuda, op, &cublaslt::Product { rows, columns, inner, left, right, out, scale })
}

pub(crate) fn gated_gradient(
    cuda: &mut Cuda,
    dy: Rows,
    down: &Weight,
    kept: (Rows, Rows),
    [dgate, dup]: [Rows; 2],
) -> Result<()> {
    const OP: &str = "gated_gradient";
    let results = places(cuda, OP)?.results;
    let columns = down.columns;
    let most = tokens_at_once(cuda, OP, &[(dy, ROUNDED)])?;
    for (first, count) in pieces(dy.rows, most) {
        let [gate, up] = [kept.0, kept.1].map(|rows| cuda.pointer(OP, rows.slice(first, count).buffer));
        let (gate, up) = (gate?, up?);
        let [to_gate, to_up] = [dgate, dup].map(|rows| cuda.pointer(OP, rows.slice(first, count).buffer));
        let (to_gate, to_up) = (to_gate?, to_up?);
        let (most, limit) = most_results(cuda, down.rows, count, 2);
        for part in parts(OP, columns, most, limit)? {
            let (start, width, stride) = (part.start, part.len(), part.len().next_multiple_of(64));
            let to = Results { narrow: true, ..Results::new(results, stride) };
            inputs(cuda, OP, dy.slice(first, count), down, part, to)?;
            let given = args![results, stride, gate, up, to_gate, to_up, columns, start, width];
            cuda.launch("gated_gradient_narrow", Grid::line(count, 256), given)?;
        }
    }
    Ok(())
}

/// dw[n,k] = sum_t dy'[t,first+n] x'[t,k]
pub(crate) fn weight_gradient(cuda: &mut Cuda, dy: Rows, x: Rows, first: usize, dw: Rows) -> Result<()> {
    const OP: &str = "linear_weight_gradient";
    let out = cuda.rows(OP, dw)?;
    let at = places(cuda, OP)?;
    let most = tokens_at_once(cuda, OP, &[(dy, ROUNDED), (x, DECODED)])?;
    for (token, count) in pieces(dy.rows, most) {
        let dy = narrow(cuda, OP, dy.slice(token, count), at.rounded)?;
        let left = Operand { at: dy.at.add(2 * first), turned: true, ..dy };
        let right = narrow(cuda, OP, x.slice(token, count), at.decoded)?;
        let product = cublaslt::Product {
            rows: dw.rows,
            columns: dw.columns,
            inner: count,
            left,
            right,
            out: Results { added: token > 0, ..Results::new(out, dw.columns) },
            scale: None,
        };
        multiply(cuda, OP, &product)?;
    }
    Ok(())
}
