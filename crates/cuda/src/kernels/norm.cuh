// The norm of a row by its sum of squares, as in ops::rms_norm.
#pragma once
#include "tensor_core.cuh"

__device__ __forceinline__ float reciprocal(float squares, u32 columns, float eps) {
    return 1.0f / sqrtf(squares / (float)columns + eps);
}

__device__ __forceinline__ float value_of(const float *x) { return *x; }
__device__ __forceinline__ float value_of(const u16 *x) { return float_of(*x); }

// The same of a row in shared memory, in f32 or narrow; the threads of a warp call it together.
template <class X> __device__ __forceinline__ float reciprocal_of(const X *row, u32 columns, float eps) {
    float squares = 0.0f;
    for_lane(columns, [&](u64 c) {
        float x = value_of(row + c);
        squares = __fmaf_rn(x, x, squares);
    });
    return reciprocal(fold(squares), columns, eps);
}
