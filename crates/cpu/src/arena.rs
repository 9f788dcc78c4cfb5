//! The one allocation of a run. Handles become pointers here, after a bounds check, and nowhere else.

use std::alloc::{Layout, alloc_zeroed, dealloc};

use halfbyte_ops::error::check;
use halfbyte_ops::{Buffer, Error, Result, Rows, Vector};

use crate::narrow::{NarrowRows, Output};

const ALIGN: usize = 64;
const LARGE_PAGE: usize = 2 << 20;

/// Zeroed bytes, 64-byte aligned; pages are taken from the system when first touched.
pub(crate) struct Arena {
    allocation: *mut u8,
    layout: Layout,
    start: *mut u8,
    bytes: usize,
}

// SAFETY: the arena owns its bytes; who may touch which part is decided by the ops, which take
// the backend by exclusive reference and give each chunk of work its own output.
unsafe impl Send for Arena {}
// SAFETY: as above.
unsafe impl Sync for Arena {}

/// A pointer that a chunk of parallel work may carry to its thread.
#[derive(Clone, Copy)]
pub(crate) struct Place<T>(pub(crate) *mut T);

// SAFETY: ops hand each chunk disjoint outputs and shared inputs that nobody writes meanwhile.
unsafe impl<T> Send for Place<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Place<T> {}

impl<T> Place<T> {
    pub(crate) fn pointer(self) -> *mut T {
        self.0
    }

    pub(crate) fn cast<U>(self) -> Place<U> {
        Place(self.0.cast())
    }

    /// # Safety
    /// `first + len` values lie inside the buffer this place was made from, and nobody writes them.
    pub(crate) unsafe fn slice<'a>(self, first: usize, len: usize) -> &'a [T] {
        // SAFETY: by the caller's promise.
        unsafe { std::slice::from_raw_parts(self.0.add(first), len) }
    }

    /// # Safety
    /// As [`Place::slice`], and nobody else reads or writes them.
    pub(crate) unsafe fn slice_mut<'a>(self, first: usize, len: usize) -> &'a mut [T] {
        // SAFETY: by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.0.add(first), len) }
    }
}

impl Arena {
    /// Refuses with the number of bytes where the system has none.
    pub(crate) fn new(bytes: usize) -> Result<Arena> {
        let refused = || Error::Device(format!("the system refused an arena of {bytes} bytes"));
        // Aligned by hand: an aligned zeroed allocation would touch every page.
        let layout = Layout::from_size_align(bytes + LARGE_PAGE, 16).map_err(|_| refused())?;
        // SAFETY: the size is not zero.
        let allocation = unsafe { alloc_zeroed(layout) };
        if allocation.is_null() {
            return Err(refused());
        }
        let align = if bytes >= LARGE_PAGE { LARGE_PAGE } else { ALIGN };
        // SAFETY: the padding of LARGE_PAGE keeps the aligned start inside the allocation.
        let start = unsafe { allocation.add(allocation.align_offset(align)) };
        if bytes >= LARGE_PAGE {
            crate::system::suggest_large_pages(start, bytes);
        }
        Ok(Arena { allocation, layout, start, bytes })
    }

    pub(crate) fn place<T>(&self, op: &'static str, buffer: Buffer) -> Result<Place<T>> {
        let fits = buffer.offset.checked_add(buffer.bytes).is_some_and(|end| end <= self.bytes)
            && buffer.offset.is_multiple_of(align_of::<T>());
        if !fits {
            return Err(Error::Bounds { op, offset: buffer.offset, bytes: buffer.bytes, arena: self.bytes });
        }
        // SAFETY: inside the allocation, checked above.
        Ok(Place(unsafe { self.start.add(buffer.offset) }.cast()))
    }

    /// f32 rows; refuses narrow ones.
    pub(crate) fn rows(&self, op: &'static str, rows: Rows) -> Result<Place<f32>> {
        check(!rows.narrow, op, || format!("narrow rows {}x{} where f32 is taken", rows.rows, rows.columns))?;
        self.place(op, rows.buffer)
    }

    /// Narrow rows.
    pub(crate) fn narrow(&self, op: &'static str, rows: Rows) -> Result<NarrowRows> {
        Ok(NarrowRows::new(self.place(op, rows.buffer)?, rows.columns))
    }

    /// Rows to be written, of either kind.
    pub(crate) fn output(&self, op: &'static str, rows: Rows) -> Result<Output> {
        Ok(Output::new(self.place(op, rows.buffer)?, rows))
    }

    pub(crate) fn vector<'a>(&self, op: &'static str, vector: Vector) -> Result<&'a [f32]> {
        let place = self.place(op, vector.buffer)?;
        // SAFETY: bounds checked; gains and biases are never outputs of an op.
        Ok(unsafe { place.slice(0, vector.len.min(vector.buffer.bytes / 4)) })
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout.
        unsafe { dealloc(self.allocation, self.layout) }
    }
}
