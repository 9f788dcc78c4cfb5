//! The driver's calls, as its library exports them; only those that we make.

use std::ffi::{c_char, c_int, c_uint, c_void};

use super::result::DriverError;
use crate::dynamic::{calls, open};

/// `CUresult`: 0 is success.
pub(crate) type Status = c_int;
/// `CUdevice`
pub(crate) type Device = c_int;
/// An address on the device.
pub(crate) type Address = u64;
/// `CUcontext`, `CUstream`, `CUevent`, `CUmodule`, `CUfunction`, `CUgraph`, `CUgraphExec`: what the driver owns.
pub(crate) type Handle = *mut c_void;

/// `CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES`
pub(crate) const DYNAMIC_SHARED: c_int = 8;
/// `CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT`
pub(crate) const MULTIPROCESSORS: c_int = 16;
/// `CU_DEVICE_ATTRIBUTE_INTEGRATED`
pub(crate) const INTEGRATED: c_int = 18;
/// `CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR`, `_MINOR`
pub(crate) const CAPABILITY: [c_int; 2] = [75, 76];
/// `CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH`
pub(crate) const COOPERATIVE_LAUNCH: c_int = 95;
/// `CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN`
pub(crate) const SHARED_OPTIN: c_int = 97;
/// `CU_JIT_ERROR_LOG_BUFFER`, `CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES`
pub(crate) const JIT_ERROR_LOG: [c_uint; 2] = [5, 6];

/// `CU_STREAM_CAPTURE_MODE_RELAXED`: what else this thread asks for meanwhile is done at once.
pub(crate) const CAPTURE: c_uint = 2;

/// `CU_LAUNCH_ATTRIBUTE_COOPERATIVE`
const COOPERATIVE: c_uint = 2;
/// `CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION`
const CLUSTER: c_uint = 4;

/// `CU_TENSOR_MAP_DATA_TYPE_BFLOAT16`
pub(crate) const MAP_BF16: c_int = 9;
/// `CU_TENSOR_MAP_INTERLEAVE_NONE`, `_SWIZZLE_128B`, `_L2_PROMOTION_L2_256B`, `_FLOAT_OOB_FILL_NONE` (zeros)
pub(crate) const MAP_SETTINGS: [c_int; 4] = [0, 3, 3, 0];

/// `CUlaunchAttribute`
#[repr(C)]
pub(crate) struct LaunchAttribute {
    id: c_uint,
    /// 64 bytes, aligned to 8.
    value: [u64; 8],
}

impl LaunchAttribute {
    /// All blocks are there at the same time, or the launch is refused.
    pub(crate) const TOGETHER: LaunchAttribute =
        LaunchAttribute { id: COOPERATIVE, value: [1, 0, 0, 0, 0, 0, 0, 0] };
    /// Two neighbouring blocks, along x, are there at the same time and reach each other's shared memory. The value is
    /// three numbers of 32 bits.
    pub(crate) const PAIRS: LaunchAttribute =
        LaunchAttribute { id: CLUSTER, value: [2 | 1 << 32, 1, 0, 0, 0, 0, 0, 0] };
}

/// `CUlaunchConfig`
#[repr(C)]
pub(crate) struct LaunchSettings {
    pub(crate) blocks: [c_uint; 3],
    pub(crate) threads: [c_uint; 3],
    pub(crate) shared: c_uint,
    pub(crate) stream: Handle,
    pub(crate) attributes: *const LaunchAttribute,
    pub(crate) count: c_uint,
}

/// Where the library may be: the loader's own places, then that of containers.
const PLACES: [&str; 2] = ["libcuda.so.1", "/usr/local/nvidia/lib64/libcuda.so.1"];

calls! {
    /// The library and its functions.
    pub struct Driver {
        init = "cuInit"(c_uint);
        driver_version = "cuDriverGetVersion"(*mut c_int);
        error_name = "cuGetErrorName"(Status, *mut *const c_char);
        error_string = "cuGetErrorString"(Status, *mut *const c_char);
        device_count = "cuDeviceGetCount"(*mut c_int);
        device_get = "cuDeviceGet"(*mut Device, c_int);
        device_name = "cuDeviceGetName"(*mut c_char, c_int, Device);
        device_attribute = "cuDeviceGetAttribute"(*mut c_int, c_int, Device);
        device_memory = "cuDeviceTotalMem_v2"(*mut usize, Device);
        context_retain = "cuDevicePrimaryCtxRetain"(*mut Handle, Device);
        context_release = "cuDevicePrimaryCtxRelease_v2"(Device);
        context_use = "cuCtxSetCurrent"(Handle);
        memory_info = "cuMemGetInfo_v2"(*mut usize, *mut usize);
        memory_take = "cuMemAlloc_v2"(*mut Address, usize);
        memory_free = "cuMemFree_v2"(Address);
        pinned_take = "cuMemAllocHost_v2"(*mut *mut c_void, usize);
        pinned_free = "cuMemFreeHost"(*mut c_void);
        copy_in = "cuMemcpyHtoDAsync_v2"(Address, *const c_void, usize, Handle);
        copy_out = "cuMemcpyDtoHAsync_v2"(*mut c_void, Address, usize, Handle);
        copy = "cuMemcpyDtoDAsync_v2"(Address, Address, usize, Handle);
        fill = "cuMemsetD8Async"(Address, u8, usize, Handle);
        stream_create = "cuStreamCreate"(*mut Handle, c_uint);
        stream_destroy = "cuStreamDestroy_v2"(Handle);
        stream_wait = "cuStreamSynchronize"(Handle);
        capture_begin = "cuStreamBeginCapture_v2"(Handle, c_uint);
        capture_end = "cuStreamEndCapture"(Handle, *mut Handle);
        graph_make = "cuGraphInstantiateWithFlags"(*mut Handle, Handle, u64);
        graph_launch = "cuGraphLaunch"(Handle, Handle);
        graph_destroy = "cuGraphDestroy"(Handle);
        graph_made_destroy = "cuGraphExecDestroy"(Handle);
        event_create = "cuEventCreate"(*mut Handle, c_uint);
        event_destroy = "cuEventDestroy_v2"(Handle);
        event_note = "cuEventRecord"(Handle, Handle);
        event_wait = "cuEventSynchronize"(Handle);
        event_time = "cuEventElapsedTime"(*mut f32, Handle, Handle);
        module_load = "cuModuleLoadDataEx"(*mut Handle, *const c_void, c_uint, *mut c_uint, *mut *mut c_void);
        module_unload = "cuModuleUnload"(Handle);
        module_function = "cuModuleGetFunction"(*mut Handle, Handle, *const c_char);
        function_attribute = "cuFuncSetAttribute"(Handle, c_int, c_int);
        map_encode = "cuTensorMapEncodeTiled"(
            *mut [u64; 16], c_int, c_uint, Address, *const u64, *const u64, *const c_uint, *const c_uint, c_int,
            c_int, c_int, c_int
        );
        launch = "cuLaunchKernelEx"(*const LaunchSettings, Handle, *mut *mut c_void, *mut *mut c_void);
    }
}

impl Driver {
    /// Loads the library and starts it. Where there is none, the error says what to install.
    pub fn load() -> Result<Driver, DriverError> {
        let mut reason = None;
        for place in PLACES {
            match open(place) {
                Ok(library) => {
                    let driver =
                        Driver::of(library).map_err(|(call, why)| DriverError::call_missing(call, &why))?;
                    // SAFETY: the flags are zero, as they must be.
                    driver.check("cuInit", unsafe { (driver.init)(0) })?;
                    return Ok(driver);
                }
                Err(error) => reason = reason.or(Some(error)),
            }
        }
        Err(DriverError::library_missing(&reason.unwrap_or_default()))
    }
}
