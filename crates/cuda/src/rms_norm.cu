// y[t,c] = g[c] * (x[t,c] * r[t]),  r[t] = 1 / sqrt(mean_c x[t,c]^2 + eps)
//
// The sum of squares has 16 lanes, as in ops::math, so its bits are those of the CPU: 16 threads
// hold them, the others of a block bring the row into shared memory and write the result.
#include "common.cuh"

__device__ __forceinline__ float reciprocal(float squares, u32 columns, float eps) {
    return 1.0f / sqrtf(squares / (float)columns + eps);
}

// A block for each row. `out` may be `x`.
extern "C" __global__ void rms_norm(const float *x, const float *gain, float eps, void *out, u32 narrow, u32 rows,
                                    u32 columns) {
    float *r = (float *)dynamic_shared, *row = r + 4;
    u64 t = blockIdx.x;
    for (u32 c = threadIdx.x; c < columns; c += blockDim.x) row[c] = x[t * columns + c];
    __syncthreads();
    if (threadIdx.x < 32) {
        float lane = 0.0f;
#pragma unroll 8
        for (u32 c = threadIdx.x & 15u; c < columns; c += 16) lane = __fmaf_rn(row[c], row[c], lane);
        lane = fold(lane);
        if (threadIdx.x == 0) *r = reciprocal(lane, columns, eps);
    }
    __syncthreads();
    for (u32 c = threadIdx.x; c < columns; c += blockDim.x) put(out, narrow, columns, t, c, gain[c] * (row[c] * *r));
    pad(out, narrow, columns, t, threadIdx.x, blockDim.x);
}

// Sixteen threads for each row. `out` may be `x`.
extern "C" __global__ void rms_norm_heads(const float *x, const float *gain, float eps, void *out, u32 narrow,
                                          u32 rows, u32 columns) {
    u64 t = (blockIdx.x * (u64)blockDim.x + threadIdx.x) / 16;
    u32 first = threadIdx.x & 15u;
    bool there = t < rows;
    float lane = 0.0f;
    for (u32 c = first; there && c < columns; c += 16) {
        float value = x[t * columns + c];
        lane = __fmaf_rn(value, value, lane);
    }
    float r = reciprocal(fold(lane), columns, eps);
    if (!there) return;
    for (u32 c = first; c < columns; c += 16) put(out, narrow, columns, t, c, gain[c] * (x[t * columns + c] * r));
    pad(out, narrow, columns, t, first, 16);
}
