//! Matrices as the copy engine of sm_90 knows them.

use super::device::Session;
use super::result::DriverError;
use super::sys;

/// Rows and columns of what it brings at once: 128 bytes of each row.
const BOX: u32 = 64;

/// `CUtensorMap`: a kernel takes it as an argument.
#[derive(Default)]
#[repr(C, align(64))]
pub(crate) struct TensorMap([u64; 16]);

impl TensorMap {
    /// A matrix of bf16 values, so many columns and rows, whose rows are so many bytes apart. The first begins at a
    /// multiple of 16, and so does every other.
    pub(crate) fn of_bf16(
        session: &Session,
        at: u64,
        extents: [usize; 2],
        apart: usize,
    ) -> Result<TensorMap, DriverError> {
        let mut map = TensorMap([0; 16]);
        let (sizes, strides) = (extents.map(|extent| extent as u64), [apart as u64]);
        let [interleave, swizzle, near, fill] = sys::MAP_SETTINGS;
        // SAFETY: writes the map; all lists live through the call and are as long as two dimensions want them.
        let status = unsafe {
            (session.driver.map_encode)(
                &mut map.0,
                sys::MAP_BF16,
                2,
                at,
                sizes.as_ptr(),
                strides.as_ptr(),
                [BOX; 2].as_ptr(),
                [1; 2].as_ptr(),
                interleave,
                swizzle,
                near,
                fill,
            )
        };
        let call = || format!("cuTensorMapEncodeTiled of {extents:?} values, rows {apart} bytes apart");
        if status == 0 { Ok(map) } else { session.driver.check(&call(), status).map(|()| map) }
    }
}
