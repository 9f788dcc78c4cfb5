//! Products of many tokens by cuBLASLt, where one is in use, or else by our own warpgroups where the chip has them
//! (`product_warpgroup`). The weight is decoded into scratch (`decoded`), as much of it as has room, and multiplied by all
//! tokens; then the next part of the results. Rows that are not narrow are rounded into scratch first, as our other kernels
//! round them on their way; or both sides to fewer bits (`few_bits`).

mod decoded;
mod forward;
mod own;

use std::cell::RefCell;
use std::ops::Range;
use std::path::PathBuf;
use std::rc::Rc;

use halfbyte_ops::error::check;
use halfbyte_ops::tensor::UNIT;
use halfbyte_ops::{Buffer, Luck, Result, Rows, Weight, WeightFormat};

use crate::cublaslt::{self, CublasLt, Operand, Results, Values};
use crate::few_bits::{self, Across, Compute, Room};
use crate::launch::{DevicePtr, Grid, args};
use crate::{Cuda, Device, gated as mixed, product_warpgroup, residual};

pub(crate) use decoded::Decoded;
pub(crate) use forward::{ahead, gated, linear};
pub(crate) use own::{input_gradients, sums};

/// Tokens from which on these are faster than kernels that decode weights on the way.
pub const MANY: usize = 256;

/// Bytes of scratch: for decoded weights at least and at most, for rounded rows, for results that are mixed at once, for the
/// library.
const DECODED: usize = 64 << 20;
const MOST_DECODED: usize = 256 << 20;
const ROUNDED: usize = 32 << 20;
/// Half of it, so that results would still be near when they are mixed, was slower: short products cost more.
const RESULTS: usize = 64 << 20;
const WORKSPACE: usize = 32 << 20;
/// What the library wants its workspace to begin at a multiple of.
const ALIGNMENT: usize = 256;

/// Bytes of scratch for all but decoded weights, which lie behind them; and for all.
const BESIDE: usize = WORKSPACE + ROUNDED + RESULTS;
pub(crate) const SCRATCH: usize = BESIDE + DECODED + ALIGNMENT;

/// Bytes of scratch with room for so many of decoded weights, if that is not too much.
pub(crate) fn scratch(decoded: usize) -> usize {
    SCRATCH + decoded.min(MOST_DECODED).saturating_sub(DECODED)
}

/// What multiplies.
#[derive(Clone)]
enum By {
    CublasLt(Rc<RefCell<CublasLt>>),
    Warpgroups,
}

/// What is in use, and how it is used.
#[derive(Clone)]
pub(crate) struct Library {
    by: By,
    /// Tokens from which on.
    pub(crate) from: usize,
    /// In what it computes where it can.
    pub(crate) compute: Compute,
    /// Most tokens and most results of each at once; a test sets few, else memory does.
    pub(crate) most: (usize, usize),
}

impl Library {
    fn new(by: By, from: usize) -> Library {
        Library { by, from, compute: Compute::Bf16, most: (usize::MAX, usize::MAX) }
    }

    /// Our own, where the chip has such products.
    pub(crate) fn own(device: &Device) -> Option<Library> {
        product_warpgroup::fits(device).then(|| Library::new(By::Warpgroups, MANY))
    }

    /// The same for products of any number of tokens.
    pub(crate) fn for_all(&self) -> Library {
        Library { from: 1, ..self.clone() }
    }

    /// "cuBLASLt 13.0"
    pub(crate) fn name(&self) -> String {
        match &self.by {
            By::CublasLt(inner) => {
                let (major, minor) = inner.borrow().version();
                format!("cuBLASLt {major}.{minor}")
            }
            By::Warpgroups => "own warpgroups".to_owned(),
        }
    }

    /// Whether it multiplies such values, or why not.
    pub(crate) fn has(&self, values: Values) -> std::result::Result<(), String> {
        match &self.by {
            By::CublasLt(inner) => inner.borrow().has(values, WORKSPACE),
            By::Warpgroups => Err("only cuBLASLt has them".to_owned()),
        }
    }
}

impl Device {
    /// Has the products of `from` tokens and more made by cuBLASLt, from the first of these places that has one.
    /// Where none has, the error says so, and our own kernels make them as before.
    pub fn use_library(&mut self, places: &[PathBuf], from: usize) -> Result<()> {
        let found = CublasLt::open(&self.session, self.properties.capability, places);
        self.library_problem = found.as_ref().err().map(ToString::to_string);
        self.library = Some(Library::new(By::CublasLt(Rc::new(RefCell::new(found?))), from));
        self.look()
    }

    /// Why no library is in use, where one was looked for.
    pub fn library_problem(&self) -> Option<&str> {
        self.library_problem.as_deref()
    }

    /// Whether cuBLASLt makes the products of many tokens.
    pub fn has_library(&self) -> bool {
        self.library.as_ref().is_some_and(|library| matches!(library.by, By::CublasLt(_)))
    }

    /// Whether products of many tokens are made of weights that are decoded into scratch before.
    pub fn decodes_before(&self) -> bool {
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
    let room = decoded::room(cuda);
    let decoded = cuda.place(op, room)?;
    let workspace = cuda.pointer(op, Buffer { offset: room.offset - BESIDE, bytes: BESIDE })?;
    let rounded = workspace.add(WORKSPACE);
    Ok(Places { decoded, rounded, results: rounded.add(ROUNDED), workspace })
}

fn multiply(cuda: &mut Cuda, op: &'static str, product: &cublaslt::Product) -> Result<()> {
    let workspace = places(cuda, op)?.workspace;
    cuda.noted(op, |cuda| match &cuda.device.library {
        Some(Library { by: By::CublasLt(inner), .. }) => {
            inner.borrow_mut().multiply(product, workspace, WORKSPACE)
        }
        _ => product_warpgroup::multiply(&cuda.device, product),
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

/// The tensor's own scale, where it has one.
fn scale(cuda: &Cuda, op: &'static str, weight: &Weight) -> Result<Option<DevicePtr>> {
    let scaled = weight.format == WeightFormat::Nvfp4;
    scaled.then(|| cuda.weight(op, weight)).transpose()
}

/// Most results of each token at once, if each takes `inner` decoded values, and `bytes` of results for each token.
fn most_results(cuda: &Cuda, inner: usize, tokens: usize, bytes: usize) -> (usize, usize) {
    let limit = cuda.device.library.as_ref().map_or(usize::MAX, |library| library.most.1);
    let room = RESULTS.checked_div(tokens * bytes).unwrap_or(usize::MAX);
    ((decoded::room(cuda).bytes / (inner.max(1).next_multiple_of(64) * 2)).min(room), limit)
}

/// Rows of dy as the left side of products, rounded.
#[derive(Clone, Copy)]
struct Outputs {
    side: Operand,
    rows: usize,
    inner: usize,
    /// What decides the roundings, in four bits.
    luck: Option<Luck>,
    /// What results are multiplied by.
    factor: Option<DevicePtr>,
}

/// What decides the roundings in dy times a weight, if it is made in four bits, and how many tokens at once.
fn way_back(
    cuda: &Cuda,
    op: &'static str,
    dy: Rows,
    weight: &Weight,
    room: Room,
) -> Result<(Option<Luck>, usize)> {
    let luck = few_bits::luck(cuda, weight.columns).filter(|_| weight.format == WeightFormat::Nvfp4);
    let way = if luck.is_some() { Compute::NativeFp4 } else { Compute::Bf16 };
    Ok((luck, forward::tokens(cuda, op, way, dy, room)?))
}

/// Tokens from `first` on, for products with a weight.
fn outputs(
    cuda: &mut Cuda,
    op: &'static str,
    luck: Option<Luck>,
    (dy, first): (Rows, usize),
    weight: &Weight,
    room: Room,
) -> Result<Outputs> {
    let scale = scale(cuda, op, weight)?;
    let ((side, factor), inner) = match luck {
        None => ((narrow(cuda, op, dy, room.at)?, scale), weight.rows),
        Some(luck) => {
            let side = few_bits::results(cuda, op, luck, (dy, first), room, scale)?;
            (side, weight.rows.next_multiple_of(64))
        }
    };
    Ok(Outputs { side, rows: dy.rows, inner, luck, factor })
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
    let room = Room { at: places(cuda, OP)?.results, bytes: RESULTS };
    let (luck, most) = way_back(cuda, OP, dy, weight, room)?;
    for (first, count) in pieces(dy.rows, most) {
        let left = outputs(cuda, OP, luck, (dy.slice(first, count), first), weight, room)?;
        let (most, limit) = most_results(cuda, weight.rows, count, 0);
        for part in parts(OP, weight.columns, most, limit)? {
            let at = to.add((first * stride + part.start) * size);
            let to = Results { added: added.then_some(at), narrow, ..Results::new(at, stride) };
            inputs(cuda, OP, left, weight, part, to)?;
        }
    }
    Ok(())
}

/// out[t,k] (+)= s * sum_n dy'[t,n] w[n,k] of some inputs k
fn inputs(
    cuda: &mut Cuda,
    op: &'static str,
    Outputs { side: left, rows, inner, luck, factor: scale }: Outputs,
    weight: &Weight,
    part: Range<usize>,
    out: Results,
) -> Result<()> {
    let columns = part.len();
    let right = match luck {
        None => decoded::sides(cuda, op, &[(weight, 0..weight.rows)], part)?[0],
        Some(luck) => few_bits::transposed(cuda, op, luck, weight, part, decoded::emptied(cuda, op)?)?,
    };
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
    let Places { results, rounded, .. } = places(cuda, OP)?;
    let (columns, room) = (down.columns, Room { at: rounded, bytes: ROUNDED });
    let (luck, most) = way_back(cuda, OP, dy, down, room)?;
    for (first, count) in pieces(dy.rows, most) {
        let of = |rows: Rows| rows.slice(first, count);
        if luck.is_none() && own::fits(cuda) {
            own::gated_gradient(cuda, of(dy), down, (of(kept.0), of(kept.1)), [of(dgate), of(dup)])?;
            continue;
        }
        let left = outputs(cuda, OP, luck, (of(dy), first), down, room)?;
        let [gate, up] = mixed::places(cuda, Some((of(kept.0), of(kept.1))))?;
        let [to_gate, to_up] = mixed::places(cuda, Some((of(dgate), of(dup))))?;
        let (most, limit) = most_results(cuda, down.rows, count, 2);
        for part in parts(OP, columns, most, limit)? {
            let (start, width, stride) = (part.start, part.len(), part.len().next_multiple_of(64));
            let to = Results { narrow: true, ..Results::new(results, stride) };
            inputs(cuda, OP, left, down, part, to)?;
            let given = args![results, stride, gate, up, to_gate, to_up, columns, start, width];
            cuda.launch("gated_gradient_narrow", Grid::line(count, 256), given)?;
        }
    }
    Ok(())
}

/// Whether gradients of weights come rounded: of narrow rows of so many tokens, which are multiplied at once.
pub(crate) fn narrow_gradients(cuda: &Cuda, tokens: usize) -> bool {
    let most = cuda.device.library.as_ref().map_or(0, |library| library.most.0);
    takes(cuda, tokens, WeightFormat::Bf16) && tokens <= most & !15 && few_bits::luck(cuda, UNIT).is_none()
}

/// dw[n,k] = sum_t dy'[t,first+n] x'[t,k]
pub(crate) fn weight_gradient(cuda: &mut Cuda, dy: Rows, x: Rows, first: usize, dw: Rows) -> Result<()> {
    const OP: &str = "linear_weight_gradient";
    let out = cuda.pointer(OP, dw.buffer)?;
    let at = places(cuda, OP)?;
    let luck = few_bits::luck(cuda, x.columns);
    let for_dy = Room { at: at.results, bytes: RESULTS };
    let for_x = Room { at: at.decoded, bytes: DECODED };
    if luck.is_some() || !x.narrow {
        decoded::emptied(cuda, OP)?;
    }
    let most = match luck {
        None => tokens_at_once(cuda, OP, &[(dy, RESULTS), (x, DECODED)])?,
        Some(_) => in_sixteens(cuda, OP, for_dy.tokens_across(dw.rows).min(for_x.tokens_across(x.columns)))?,
    };
    // What is added to is f32.
    check(!dw.narrow || dy.rows <= most, OP, || {
        "a narrow gradient of more tokens than one product takes".to_owned()
    })?;
    for (token, count) in pieces(dy.rows, most) {
        let ([left, right], inner, scale) = match luck {
            None => {
                let dy = narrow(cuda, OP, dy.slice(token, count), for_dy.at)?;
                let left = Operand { at: dy.at.add(2 * first), turned: true, ..dy };
                ([left, narrow(cuda, OP, x.slice(token, count), for_x.at)?], count, None)
            }
            Some(luck) => {
                let across = |rows: Rows, columns| {
                    let tokens = rows.slice(token, count);
                    Across { tokens, first: token, of: rows.rows, columns }
                };
                let (dy, x) = (across(dy, first..first + dw.rows), across(x, 0..x.columns));
                let (sides, scale) = few_bits::over_tokens(cuda, OP, luck, (&dy, for_dy), (&x, for_x))?;
                (sides, count.next_multiple_of(64), scale)
            }
        };
        let added = (token > 0).then_some(out);
        let out = Results { added, narrow: dw.narrow, ..Results::new(out, dw.columns) };
        let product =
            cublaslt::Product { rows: dw.rows, columns: dw.columns, inner, left, right, out, scale };
        multiply(cuda, OP, &product)?;
    }
    Ok(())
}
