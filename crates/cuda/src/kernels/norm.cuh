// The norm of a row by its sum of squares, as in ops::rms_norm.
#pragma once
#include "common.cuh"

__device__ __forceinline__ float reciprocal(float squares, u32 columns, float eps) {
    return 1.0f / sqrtf(squares / (float)columns + eps);
}
