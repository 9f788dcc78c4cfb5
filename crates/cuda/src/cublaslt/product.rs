//! out[r,c] (+)= s * sum_k left[r,k] right[k,c]: bf16 by bf16, or fewer bits with scales of their own, with f32 sums, by
//! an algorithm that is asked for once for each shape. Sums of parts are added in order, so that every run gives the
//! same bits.

use std::collections::HashMap;
use std::ffi::c_int;
use std::path::PathBuf;
use std::rc::Rc;

use halfbyte_ops::Error;

use super::result::check;
use super::sys::{self, Algorithm, Found, Handle, Library};
use crate::driver::{DeviceMemory, DriverError, PinnedMemory, Session};
use crate::launch::DevicePtr;

/// Algorithms asked for.
const CANDIDATES: usize = 8;

/// What the values of a matrix are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Values {
    Bf16,
    /// With an f32 scale for each row.
    E4m3,
    /// With an E4M3 scale for each 16 of a row, in tiles (`formats::blocked`).
    E2m1,
}

impl Values {
    /// The library's number of the type, and of the scales that go with it.
    fn numbers(self) -> (c_int, Option<i32>) {
        match self {
            Values::Bf16 => (sys::BF16, None),
            Values::E4m3 => (sys::E4M3, Some(sys::FOR_EACH_ROW)),
            Values::E2m1 => (sys::E2M1, Some(sys::FOR_EACH_16)),
        }
    }
}

/// Values row after row, `stride` of them from one row to the next; `turned` if what the product calls its columns are
/// these rows. Other values than bf16 are multiplied only if the right side is turned and the left is not.
#[derive(Clone, Copy)]
pub(crate) struct Operand {
    pub(crate) at: DevicePtr,
    pub(crate) stride: usize,
    pub(crate) turned: bool,
    /// The same on both sides.
    pub(crate) values: Values,
    /// Where their scales lie, if they have some.
    pub(crate) scales: DevicePtr,
}

impl Operand {
    pub(crate) fn bf16(at: DevicePtr, stride: usize) -> Operand {
        Operand { at, stride, turned: false, values: Values::Bf16, scales: DevicePtr::NULL }
    }

    /// What lies behind so many rows.
    pub(crate) fn after(&self, rows: usize) -> DevicePtr {
        let values = rows * self.stride;
        self.at.add(match self.values {
            Values::Bf16 => values * 2,
            Values::E4m3 => values,
            Values::E2m1 => values / 2,
        })
    }
}

/// Where results go, row after row, `stride` values from one row to the next: f32, or `narrow` ones bf16.
#[derive(Clone, Copy)]
pub(crate) struct Results {
    pub(crate) at: DevicePtr,
    pub(crate) stride: usize,
    pub(crate) narrow: bool,
    /// What they are added to, which lies as they do: perhaps where they go, perhaps elsewhere.
    pub(crate) added: Option<DevicePtr>,
}

impl Results {
    pub(crate) fn new(at: DevicePtr, stride: usize) -> Results {
        Results { at, stride, narrow: false, added: None }
    }
}

/// A product; every address has been checked by who made it.
pub(crate) struct Product {
    pub(crate) rows: usize,
    pub(crate) columns: usize,
    pub(crate) inner: usize,
    pub(crate) left: Operand,
    pub(crate) right: Operand,
    pub(crate) out: Results,
    /// Where on the device s stands; 1 if nowhere.
    pub(crate) scale: Option<DevicePtr>,
}

/// What an algorithm is chosen by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Shape {
    rows: usize,
    columns: usize,
    inner: usize,
    strides: [usize; 3],
    turned: [bool; 2],
    values: Values,
    narrow: bool,
    added: bool,
    alignments: [u32; 3],
}

impl Product {
    fn shape(&self) -> Shape {
        let Product { left, right, out, .. } = self;
        // No algorithm loads more than 16 bytes at once; saying no more lets the same rows elsewhere have the same bits.
        let alignment = |at: DevicePtr| 1 << at.0.trailing_zeros().min(4);
        Shape {
            rows: self.rows,
            columns: self.columns,
            inner: self.inner,
            strides: [left.stride, right.stride, out.stride],
            turned: [left.turned, right.turned],
            values: left.values,
            narrow: out.narrow,
            added: out.added.is_some(),
            alignments: [left.at, right.at, DevicePtr(out.at.0 | out.added.map_or(0, |added| added.0))]
                .map(alignment),
        }
    }
}

/// A shape's descriptions and algorithm.
struct Known {
    product: Handle,
    layouts: [Handle; 3],
    algorithm: Algorithm,
}

/// The library in use on a device.
pub(crate) struct CublasLt {
    library: Library,
    session: Rc<Session>,
    /// Its capability.
    chip: (u32, u32),
    handle: Handle,
    version: (u32, u32),
    known: HashMap<Shape, Known>,
    /// 0 and 1, which products take as factors.
    factors: DeviceMemory,
}

impl CublasLt {
    /// The first of these that can be loaded and accepts the device.
    pub(crate) fn open(
        session: &Rc<Session>,
        chip: (u32, u32),
        places: &[PathBuf],
    ) -> Result<CublasLt, Error> {
        let (mut missing, mut refused) = (None, None);
        for place in places {
            match Library::load(place) {
                Err(reason) => missing = missing.or(Some(reason)),
                Ok(library) => match CublasLt::start(session, chip, library) {
                    Ok(library) => return Ok(library),
                    Err(reason) => refused = refused.or(Some(reason)),
                },
            }
        }
        // One that is there but does not work says more than those that are not there.
        let reason = refused.or(missing).unwrap_or_else(|| "no place to look".to_owned());
        Err(Error::Device(format!(
            "no cuBLASLt: {reason}. The Python package nvidia-cublas and the CUDA toolkit bring one that fits the driver."
        )))
    }

    fn start(session: &Rc<Session>, chip: (u32, u32), library: Library) -> Result<CublasLt, String> {
        let mut version = [0; 2];
        for (value, which) in version.iter_mut().zip(sys::VERSION) {
            // SAFETY: writes one number.
            check(|| "cublasLtGetProperty".to_owned(), unsafe { (library.property)(which, value) })?;
        }
        let factors = factors(session).map_err(|error| error.to_string())?;
        let mut handle: Handle = std::ptr::null_mut();
        // SAFETY: writes a handle, which is destroyed in `drop`.
        check(|| "cublasLtCreate".to_owned(), unsafe { (library.create)(&mut handle) })?;
        let version = (version[0] as u32, version[1] as u32);
        Ok(CublasLt {
            library,
            session: session.clone(),
            chip,
            handle,
            version,
            known: HashMap::new(),
            factors,
        })
    }

    /// Major and minor.
    pub(crate) fn version(&self) -> (u32, u32) {
        self.version
    }

    /// Whether it has an algorithm for such values on this chip; with workspace of so many bytes.
    pub(crate) fn has(&self, values: Values, workspace: usize) -> Result<(), String> {
        let side = Operand {
            values,
            scales: DevicePtr(self.factors.at(0, 8).unwrap_or_default()),
            ..Operand::bf16(DevicePtr::NULL, 256)
        };
        let right = Operand { turned: true, ..side };
        let out = Results::new(DevicePtr::NULL, 256);
        let of = Product { rows: 256, columns: 256, inner: 256, left: side, right, out, scale: None };
        self.describe(&of.shape(), [side.scales; 2], workspace).map(|known| self.forget(&known))
    }

    /// Starts a product behind what was started before it; `workspace` is so long.
    pub(crate) fn multiply(&mut self, of: &Product, workspace: DevicePtr, bytes: usize) -> Result<(), Error> {
        let remedy = "Our own products do without cuBLASLt.";
        self.start_product(of, workspace, bytes)
            .map_err(|reason| Error::Device(format!("{reason}. {remedy}")))
    }

    fn start_product(&mut self, of: &Product, workspace: DevicePtr, bytes: usize) -> Result<(), String> {
        let shape = of.shape();
        // Theirs are exchanged: A is our right side, B our left.
        let scales = [of.right.scales, of.left.scales];
        if !self.known.contains_key(&shape) {
            let known = self.describe(&shape, scales, bytes)?;
            self.known.insert(shape, known);
        }
        let known = &self.known[&shape];
        self.tell_scales(known.product, shape.values, scales)?;
        let factor = |which: usize| self.factors.at(which * 4, 4).unwrap_or_default();
        let scale = of.scale.map_or(factor(1), |scale| scale.0);
        let [left, right, out] = known.layouts;
        // SAFETY: descriptions live with the library; addresses were checked by who made the product, and every
        // matrix of this shape lies inside its buffer.
        let status = unsafe {
            (self.library.multiply)(
                self.handle,
                known.product,
                scale,
                of.right.at.0,
                right,
                of.left.at.0,
                left,
                factor(usize::from(of.out.added.is_some())),
                of.out.added.unwrap_or(of.out.at).0,
                out,
                of.out.at.0,
                out,
                &known.algorithm,
                workspace.0,
                bytes,
                self.session.stream,
            )
        };
        check(|| format!("cublasLtMatmul of {shape:?}"), status)
    }

    /// The library counts columns first, so it makes out' = right' left': what is a row here is a column there.
    fn describe(&self, shape: &Shape, scales: [DevicePtr; 2], workspace: usize) -> Result<Known, String> {
        let Shape { rows, columns, inner, strides, turned, values, narrow, .. } = *shape;
        let (kind, _) = values.numbers();
        let mut known = Known {
            product: std::ptr::null_mut(),
            layouts: [std::ptr::null_mut(); 3],
            algorithm: Algorithm::default(),
        };
        let told = self.tell(&mut known, turned, values).and_then(|()| {
            self.tell_scales(known.product, values, scales)?;
            let sides = [
                (if turned[0] { (rows, inner) } else { (inner, rows) }, kind),
                (if turned[1] { (inner, columns) } else { (columns, inner) }, kind),
                ((columns, rows), if narrow { sys::BF16 } else { sys::F32 }),
            ];
            for ((layout, stride), ((height, width), kind)) in
                known.layouts.iter_mut().zip(strides).zip(sides)
            {
                let (height, width) = (height as u64, width as u64);
                // SAFETY: writes a handle.
                let status =
                    unsafe { (self.library.layout_create)(layout, kind, height, width, stride as i64) };
                check(|| format!("cublasLtMatrixLayoutCreate of {shape:?}"), status)?;
            }
            self.choose(&mut known, shape, workspace)
        });
        told.inspect_err(|_| self.forget(&known)).map(|()| known)
    }

    fn tell(&self, known: &mut Known, turned: [bool; 2], values: Values) -> Result<(), String> {
        // SAFETY: writes a handle.
        let status = unsafe { (self.library.product_create)(&mut known.product, sys::COMPUTE_F32, sys::F32) };
        check(|| "cublasLtMatmulDescCreate".to_owned(), status)?;
        let (a, b) = (i32::from(turned[1]), i32::from(turned[0]));
        let [of_a, of_b] = sys::TRANSPOSED;
        for (attribute, value) in [(sys::POINTER_MODE, sys::ON_DEVICE), (of_a, a), (of_b, b)] {
            self.set(known.product, attribute, &value)?;
        }
        let (_, Some(mode)) = values.numbers() else { return Ok(()) };
        sys::SCALE_MODES.into_iter().try_for_each(|attribute| self.set(known.product, attribute, &mode))
    }

    /// Where the scales of A and B lie, if there are some.
    fn tell_scales(&self, product: Handle, values: Values, scales: [DevicePtr; 2]) -> Result<(), String> {
        if values == Values::Bf16 {
            return Ok(());
        }
        let mut both = sys::SCALES.into_iter().zip(scales);
        both.try_for_each(|(attribute, scales)| self.set(product, attribute, &scales.0))
    }

    fn set<T>(&self, product: Handle, attribute: c_int, value: &T) -> Result<(), String> {
        // SAFETY: the value lives through the call and is as long as it says.
        let status = unsafe {
            (self.library.product_set)(product, attribute, std::ptr::from_ref(value).cast(), size_of::<T>())
        };
        check(|| format!("cublasLtMatmulDescSetAttribute of {attribute}"), status)
    }

    fn choose(&self, known: &mut Known, shape: &Shape, workspace: usize) -> Result<(), String> {
        let library = &self.library;
        let mut preference: Handle = std::ptr::null_mut();
        // SAFETY: writes a handle, which is destroyed below.
        let status = unsafe { (library.preference_create)(&mut preference) };
        check(|| "cublasLtMatmulPreferenceCreate".to_owned(), status)?;
        let set = |attribute: c_int, value: u64, bytes: usize| {
            // SAFETY: the value lives through the call; its low bytes come first.
            let status = unsafe {
                (library.preference_set)(preference, attribute, std::ptr::from_ref(&value).cast(), bytes)
            };
            check(|| format!("cublasLtMatmulPreferenceSetAttribute of {attribute}"), status)
        };
        let [left, right, out] = shape.alignments;
        let mut asked = set(sys::MOST_WORKSPACE, workspace as u64, 8);
        asked = asked.and_then(|()| set(sys::REDUCTIONS, u64::from(sys::IN_ORDER), 4));
        for (attribute, alignment) in sys::ALIGNMENTS.into_iter().zip([right, left, out, out]) {
            asked = asked.and_then(|()| set(attribute, u64::from(alignment), 4));
        }
        let (mut found, mut count) = ([Found::default(); CANDIDATES], 0);
        let [left, right, out] = known.layouts;
        // SAFETY: all were just described; room for as many answers as are asked for.
        let status = unsafe {
            (library.find)(
                self.handle,
                known.product,
                right,
                left,
                out,
                out,
                preference,
                CANDIDATES as c_int,
                found.as_mut_ptr(),
                &mut count,
            )
        };
        // SAFETY: made above, used no more.
        unsafe { (library.preference_destroy)(preference) };
        asked?;
        check(|| format!("cublasLtMatmulAlgoGetHeuristic of {shape:?}"), status)?;
        let found = &found[..(count.max(0) as usize).min(CANDIDATES)];
        let works = |found: &&Found| found.state == 0 && found.workspace <= workspace;
        let liked = self.tiles(shape).iter().find_map(|tile| {
            found.iter().filter(works).find(|found| self.tile(&found.algorithm) == Some(*tile))
        });
        let found = liked.or(found.iter().find(works));
        known.algorithm = found.ok_or_else(|| format!("cuBLASLt has no algorithm for {shape:?}"))?.algorithm;
        Ok(())
    }

    /// Tiles that were faster than its first proposal on the chip they were measured on, best first. The choice is by
    /// shape alone, so the bits are the same at every run.
    fn tiles(&self, shape: &Shape) -> &'static [u32] {
        if self.chip != (9, 0) || shape.values != Values::Bf16 || shape.turned[0] {
            return &[];
        }
        match (shape.narrow, shape.added) {
            (true, _) => &[29],
            (false, true) => &[20, 184, 247],
            (false, false) => &[197, 201],
        }
    }

    fn tile(&self, algorithm: &sys::Algorithm) -> Option<u32> {
        let (mut tile, mut written) = (0, 0);
        // SAFETY: writes two numbers.
        let status =
            unsafe { (self.library.algorithm_get)(algorithm, sys::TILE, &mut tile, 4, &mut written) };
        (status == 0).then_some(tile)
    }

    fn forget(&self, known: &Known) {
        // SAFETY: each is destroyed once, and only if it was made.
        unsafe {
            known.layouts.iter().filter(|layout| !layout.is_null()).for_each(|layout| {
                (self.library.layout_destroy)(*layout);
            });
            if !known.product.is_null() {
                (self.library.product_destroy)(known.product);
            }
        }
    }
}

/// 0 and 1 on the device.
fn factors(session: &Rc<Session>) -> Result<DeviceMemory, DriverError> {
    let memory = DeviceMemory::take(session, 8)?;
    let mut host = PinnedMemory::take(session, 8)?;
    host.part(4, 4).copy_from_slice(&1.0f32.to_le_bytes());
    host.send(0, 8, memory.at(0, 8).unwrap_or_default())?;
    session.wait()?;
    Ok(memory)
}

impl Drop for CublasLt {
    fn drop(&mut self) {
        self.known.values().for_each(|known| self.forget(known));
        // SAFETY: created in `start`; what it started may still run, so the stream is waited for.
        unsafe {
            (self.session.driver.stream_wait)(self.session.stream);
            (self.library.destroy)(self.handle);
        }
    }
}
