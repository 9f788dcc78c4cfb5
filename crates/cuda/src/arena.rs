//! Handles become addresses here, after a bounds check; copies go through the pinned ring.

use halfbyte_ops::error::check;
use halfbyte_ops::{Buffer, Error, Result, Rows, Vector, Weight};

use crate::Cuda;
use crate::launch::DevicePtr;
use crate::ring::{PIECE, RING};

/// Numbers of 64 bits that kernels may give back.
pub(crate) const COUNTERS: usize = 4096;

/// Blocks' tickets, see [`Cuda::tickets`].
pub(crate) const TICKETS: usize = 16 << 10;

/// Numbers whose bytes may be copied as they are.
pub(crate) trait Plain: Copy {}
impl Plain for u8 {}
impl Plain for u32 {}
impl Plain for f32 {}
impl Plain for u64 {}

/// The bytes of numbers.
pub(crate) fn bytes_of<T: Plain>(values: &[T]) -> &[u8] {
    // SAFETY: `Plain` types have no padding, and any byte may be read.
    unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values)) }
}

/// The bytes of numbers, to be written.
pub(crate) fn bytes_of_mut<T: Plain>(values: &mut [T]) -> &mut [u8] {
    // SAFETY: as above, and any bytes are a number.
    unsafe { std::slice::from_raw_parts_mut(values.as_mut_ptr().cast(), size_of_val(values)) }
}

impl Cuda {
    /// Where a buffer lies that may be written: what was decoded of it or lies in it is forgotten.
    pub(crate) fn pointer(&self, op: &'static str, buffer: Buffer) -> Result<DevicePtr> {
        self.decoded.borrow_mut().forget(buffer);
        self.place(op, buffer)
    }

    /// Where a buffer lies; it must be inside the arena and begin with a whole number.
    pub(crate) fn place(&self, op: &'static str, buffer: Buffer) -> Result<DevicePtr> {
        let place = self.arena.at(buffer.offset, buffer.bytes).filter(|_| buffer.offset.is_multiple_of(4));
        place.map(DevicePtr).ok_or(Error::Bounds {
            op,
            offset: buffer.offset,
            bytes: buffer.bytes,
            arena: self.arena.bytes(),
        })
    }

    /// f32 rows; refuses narrow ones.
    pub(crate) fn rows(&self, op: &'static str, rows: Rows) -> Result<DevicePtr> {
        check(!rows.narrow, op, || format!("narrow rows {}x{} where f32 is taken", rows.rows, rows.columns))?;
        self.pointer(op, rows.buffer)
    }

    /// A gain or a bias.
    pub(crate) fn vector(&self, op: &'static str, vector: Vector) -> Result<DevicePtr> {
        check(vector.len * 4 <= vector.buffer.bytes, op, || {
            format!("{} values in {} bytes", vector.len, vector.buffer.bytes)
        })?;
        self.pointer(op, vector.buffer)
    }

    /// A weight that will be written.
    pub(crate) fn changed_weight(&self, op: &'static str, weight: &Weight) -> Result<DevicePtr> {
        self.pointer(op, weight.buffer)?;
        self.weight(op, weight)
    }

    /// A weight that is only read, whole: its header and its panels (see `weight`).
    pub(crate) fn weight(&self, op: &'static str, weight: &Weight) -> Result<DevicePtr> {
        let bytes = weight.format.bytes(weight.rows, weight.columns);
        check(weight.buffer.bytes == bytes && weight.buffer.offset.is_multiple_of(64), op, || {
            format!(
                "{} bytes at {} for a {} weight {}x{}",
                weight.buffer.bytes,
                weight.buffer.offset,
                weight.format.name(),
                weight.rows,
                weight.columns
            )
        })?;
        self.place(op, weight.buffer)
    }

    /// The planned scratch, if it has so many bytes.
    pub(crate) fn scratch(&self, op: &'static str, bytes: usize) -> Result<DevicePtr> {
        check(bytes <= self.scratch.bytes, op, || {
            format!("needs {bytes} bytes of scratch, planned were {}", self.scratch.bytes)
        })?;
        self.pointer(op, Buffer { bytes, ..self.scratch })
    }

    /// A list for the kernels of this op alone (tokens, targets): a few of them may be up at once.
    pub(crate) fn upload<T: Plain>(&mut self, op: &'static str, values: &[T]) -> Result<DevicePtr> {
        let bytes = bytes_of(values);
        check(bytes.len() <= PIECE, op, || {
            format!("a list of {} bytes is longer than the {PIECE} that go up at once", bytes.len())
        })?;
        self.start_chain()?;
        let at = self.ring.put(bytes.len(), |place| place.copy_from_slice(bytes))?;
        self.note_list(op, at);
        let to = self.lists.at(at, bytes.len()).unwrap_or_default();
        self.ring.send(at, bytes.len(), to)?;
        Ok(DevicePtr(to))
    }

    /// So many u32 that are zero, for blocks to find out which is the last; it leaves zeros behind.
    pub(crate) fn tickets(&self, op: &'static str, count: usize) -> Result<DevicePtr> {
        check(count <= TICKETS, op, || {
            format!("{count} groups of blocks, of {TICKETS} that may wait for each other")
        })?;
        Ok(DevicePtr(self.tickets.at(0, count * 4).unwrap_or_default()))
    }

    /// So many counters (u64, or f64 by their bits) at zero, for kernels to write.
    pub(crate) fn counters(&mut self, count: usize) -> Result<DevicePtr> {
        assert!(count <= COUNTERS);
        let start = self.counters.at(0, count * 8).unwrap_or_default();
        self.counters.clear(start, count * 8)?;
        Ok(DevicePtr(start))
    }

    /// What the kernels since [`Cuda::counters`] made of them. Waits.
    pub(crate) fn read_counters(&mut self, count: usize) -> Result<Vec<u64>> {
        let start = self.counters.at(0, count * 8).unwrap_or_default();
        let mut bytes = vec![0; count * 8];
        self.copy_out(DevicePtr(start), &mut bytes)?;
        let words = bytes.as_chunks::<8>().0.iter();
        Ok(words.map(|word| u64::from_le_bytes(*word)).collect())
    }

    /// Copies bytes to the device, piece by piece through the ring.
    pub(crate) fn copy_in(&mut self, to: DevicePtr, bytes: &[u8]) -> Result<()> {
        let mut to = to;
        for piece in bytes.chunks(PIECE) {
            self.fill_in(to, piece.len(), |place| place.copy_from_slice(piece))?;
            to = to.add(piece.len());
        }
        Ok(())
    }

    /// Has a piece filled in the ring itself, and starts its copy to the device.
    pub(crate) fn fill_in(
        &mut self,
        to: DevicePtr,
        bytes: usize,
        fill: impl FnOnce(&mut [u8]),
    ) -> Result<()> {
        self.start_chain()?;
        let at = self.ring.put(bytes, fill)?;
        self.note_write(to, at);
        self.ring.send(at, bytes, to.0)
    }

    /// Copies bytes from the device; waits for all that was started before.
    pub(crate) fn copy_out(&mut self, from: DevicePtr, bytes: &mut [u8]) -> Result<()> {
        self.start_chain()?;
        let mut from = from;
        for piece in bytes.chunks_mut(RING) {
            self.ring.fetch(from.0, piece)?;
            self.chain.begun = false;
            from = from.add(piece.len());
        }
        Ok(())
    }
}
