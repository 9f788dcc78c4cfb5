// The norm of a row by its sum of squares, as in ops::rms_norm.
#pragma once
#include "tensor_core.cuh"

__device__ __forceinline__ float reciprocal(float squares, u32 columns, float eps) {
    return 1.0f / sqrtf(squares / (float)columns + eps);
}

// The same of a row in shared memory; the threads of a warp call it together.
__device__ __forceinline__ float reciprocal_of(const float *row, u32 columns, float eps) {
    float squares = 0.0f;
    for_lane(columns, [&](u64 c) { squares = __fmaf_rn(row[c], row[c], squares); });
    return reciprocal(fold(squares), columns, eps);
}
