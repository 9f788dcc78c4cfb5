//! Products of many tokens by cuBLASLt, where one is in use. The weight is decoded into scratch, as much of it as
//! has room, and multiplied by all tokens; then the next part of the results. Rows that are not narrow are rounded
//! into scratch first, as our own kernels round them on their way; on the way forward perhaps to fewer bits (`few_bits`).

mod forward;

use std::cell::RefCell;
use std::ops::Range;
use std::path::PathBuf;
use std::rc::Rc;

use halfbyte_ops::error::check;
use halfbyte_ops::tensor::PANEL;
use halfbyte_ops::{Result, Rows, Weight, WeightFormat};

use crate::cublaslt::{self, CublasLt, Operand, Results, Values};
use crate::few_bits::Compute;
use crate::launch::{DevicePtr, Grid, args};
use crate::{Cuda, Device, residual};

pub(crate) use forward::{gated, linear};

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
    /// In what it computes where it can.
    pub(crate) compute: Compute,
    /// Most tokens and most results of each at once; a test sets few, else memory does.
    pub(crate) most: (usize, usize),
}

impl Library {
    /// "cuBLASLt 13.0"
    pub(crate) fn name(&self) -> String {
        let (major, minor) = self.inner.borrow().version();
        format!("cuBLASLt {major}.{minor}")
    }

    /// Whether it multiplies such values, or why not.
    pub(crate) fn has(&self, values: Values) -> std::result::Result<(), String> {
        self.inner.borrow().has(values, WORKSPACE)
    }
}

impl Device {
    /// Has the products of `from` tokens and more made by cuBLASLt, from the first of these places that has one.
    /// Where none has, the error says so, and our own kernels make them as before.
    pub fn use_library(&mut self, places: &[PathBuf], from: usize) -> Result<()> {
        let found = CublasLt::open(&self.session, places);
        self.library_problem = found.as_ref().err().map(ToString::to_string);
        let inner = Rc::new(RefCell::new(found?));
        self.library = Some(Library { inner, from, compute: Compute::Bf16, most: (usize::MAX, usize::MAX) });
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

    /// "cuBLASLt 13.0 from 256 tokens on, bf16", or "own".
    pub fn products(&self) -> String {
        self.library.as_ref().map_or("own".to_owned(), |library| {
            format!("{} from {} tokens on, {}", library.name(), library.from, library.compute.name())
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
    let wide = sides.iter().filter(|(rows, _)| !rows.narrow);
    let rows = wide.map(|(rows, bytes)| bytes / (rows.columns.next_multiple_of(64) * 2)).min();
    in_sixteens(cuda, op, rows.unwrap_or(usize::MAX))
}

fn in_sixteens(cuda: &Cuda, op: &'static str, tokens: usize) -> Result<usize> {
    let limit = cuda.device.library.as_ref().map_or(usize::MAX, |library| library.most.0);
    let tokens = tokens.min(limit) & !15;
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
        return Ok(Operand::bf16(from, stride));
    }
    residual::narrow(cuda, from, (rows.rows, rows.columns), place)?;
    Ok(Operand::bf16(place, stride))
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
            return Ok(Operand::bf16(at, stride));
        }
    };
    let (count, stride) = (rows.len(), columns.len().next_multiple_of(64));
    let arguments = args![from, weight.columns, rows.start, count, columns.start, stride, place];
    let blocks = (stride.div_ceil(512) as u32, count.div_ceil(PANEL) as u32, 1);
    cuda.launch(kernel, Grid { blocks, ..Grid::line(1, 256) }, arguments)?;
    Ok(Operand::bf16(place, stride))
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

pub(crate) fn input_gradient(
    cuda: &mut Cuda,
    dy: Rows,
    weight: &Weight,
    dx: Rows,
    added: bool,
) -> Result<()> {
    const OP: &str = "linear_input_gradient";
    let (to, narrow) = (cuda.pointer(OP, dx.buffer)?, dx.narrow);
    let (stride, size) = if narrow { (dx.columns.next_multiple_of(64), 2) } else { (dx.columns, 4) };
    let most = tokens_at_once(cuda, OP, &[(dy, ROUNDED)])?;
    for (first, count) in pieces(dy.rows, most) {
        let (most, limit) = most_results(cuda, weight.rows, count, 0);
        for part in parts(OP, weight.columns, most, limit)? {
            let at = to.add((first * stride + part.start) * size);
            let to = Results { added, narrow, ..Results::new(at, stride) };
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
