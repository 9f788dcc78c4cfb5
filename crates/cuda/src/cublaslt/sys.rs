//! The library's calls and numbers, as its header has them; only those that we use.

use std::ffi::{c_int, c_void};
use std::path::Path;

use crate::dynamic::{calls, open};

/// `cublasStatus_t`: 0 is success.
pub(crate) type Status = c_int;
/// `cublasLtHandle_t`, `cublasLtMatmulDesc_t`, `cublasLtMatrixLayout_t`, `cublasLtMatmulPreference_t`,
/// `cudaStream_t`: what the library or the driver owns.
pub(crate) type Handle = *mut c_void;

/// `CUBLAS_COMPUTE_32F`
pub(crate) const COMPUTE_F32: c_int = 68;
/// `CUDA_R_32F`
pub(crate) const F32: c_int = 0;
/// `CUDA_R_16BF`
pub(crate) const BF16: c_int = 14;
/// `CUDA_R_8F_E4M3`
pub(crate) const E4M3: c_int = 28;
/// `CUDA_R_4F_E2M1`
pub(crate) const E2M1: c_int = 33;
/// `CUBLASLT_MATMUL_DESC_POINTER_MODE`, an i32
pub(crate) const POINTER_MODE: c_int = 2;
/// `CUBLASLT_POINTER_MODE_DEVICE`: both factors are read on the device
pub(crate) const ON_DEVICE: i32 = 1;
/// `CUBLASLT_MATMUL_DESC_TRANSA`, `_TRANSB`: an i32 each, `CUBLAS_OP_N` = 0, `CUBLAS_OP_T` = 1
pub(crate) const TRANSPOSED: [c_int; 2] = [3, 4];
/// `CUBLASLT_MATMUL_DESC_A_SCALE_POINTER`, `_B_`: an address each
pub(crate) const SCALES: [c_int; 2] = [17, 18];
/// `CUBLASLT_MATMUL_DESC_A_SCALE_MODE`, `_B_`: an i32 each
pub(crate) const SCALE_MODES: [c_int; 2] = [31, 32];
/// `CUBLASLT_MATMUL_MATRIX_SCALE_VEC16_UE4M3`
pub(crate) const FOR_EACH_16: i32 = 1;
/// `CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F`
pub(crate) const FOR_EACH_ROW: i32 = 3;
/// `CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES`, a u64
pub(crate) const MOST_WORKSPACE: c_int = 1;
/// `CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK`, a u32
pub(crate) const REDUCTIONS: c_int = 3;
/// `CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE`: sums of parts are stored in f32 and added in a step of its own
pub(crate) const IN_ORDER: u32 = 2;
/// `CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES`, `_B_`, `_C_`, `_D_`, a u32 each
pub(crate) const ALIGNMENTS: [c_int; 4] = [5, 6, 7, 8];
/// `CUBLASLT_ALGO_CONFIG_TILE_ID`, a u32
pub(crate) const TILE: c_int = 1;
/// `MAJOR_VERSION`, `MINOR_VERSION` of `libraryPropertyType`
pub(crate) const VERSION: [c_int; 2] = [0, 1];

/// `cublasLtMatmulAlgo_t`
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct Algorithm([u64; 8]);

/// `cublasLtMatmulHeuristicResult_t`
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct Found {
    pub(crate) algorithm: Algorithm,
    pub(crate) workspace: usize,
    pub(crate) state: Status,
    waves: f32,
    reserved: [c_int; 4],
}

calls! {
    /// The library and its functions.
    pub(crate) struct Library {
        property = "cublasLtGetProperty"(c_int, *mut c_int);
        create = "cublasLtCreate"(*mut Handle);
        destroy = "cublasLtDestroy"(Handle);
        product_create = "cublasLtMatmulDescCreate"(*mut Handle, c_int, c_int);
        product_set = "cublasLtMatmulDescSetAttribute"(Handle, c_int, *const c_void, usize);
        product_destroy = "cublasLtMatmulDescDestroy"(Handle);
        layout_create = "cublasLtMatrixLayoutCreate"(*mut Handle, c_int, u64, u64, i64);
        layout_destroy = "cublasLtMatrixLayoutDestroy"(Handle);
        preference_create = "cublasLtMatmulPreferenceCreate"(*mut Handle);
        preference_set = "cublasLtMatmulPreferenceSetAttribute"(Handle, c_int, *const c_void, usize);
        preference_destroy = "cublasLtMatmulPreferenceDestroy"(Handle);
        find = "cublasLtMatmulAlgoGetHeuristic"(
            Handle, Handle, Handle, Handle, Handle, Handle, Handle, c_int, *mut Found, *mut c_int
        );
        algorithm_get = "cublasLtMatmulAlgoConfigGetAttribute"(
            *const Algorithm, c_int, *mut u32, usize, *mut usize
        );
        multiply = "cublasLtMatmul"(
            Handle, Handle, u64, u64, Handle, u64, Handle, u64, u64, Handle, u64, Handle, *const Algorithm, u64,
            usize, Handle
        );
    }
}

impl Library {
    pub(crate) fn load(place: &Path) -> Result<Library, String> {
        Library::of(open(place)?).map_err(|(call, why)| format!("{} has no {call}: {why}", place.display()))
    }
}
