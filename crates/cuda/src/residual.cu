// y[t,c] += x[t,c], and rows made narrow
#include "common.cuh"

extern "C" __global__ void add(const float *x, float *out, u64 count) {
    u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x;
    if (i < count) out[i] += x[i];
}

const u32 EACH = 4; // fours of columns that a thread takes, all on their way at once

// The columns' padding becomes zero.
extern "C" __global__ void __launch_bounds__(256) narrow(const float *x, uint2 *out, u32 rows, u32 columns) {
    u32 fours = padded(columns) / 4, count = rows * fours, first = blockIdx.x * (256 * EACH) + threadIdx.x;
    bool whole = columns % 64 == 0 && (u64)x % 16 == 0;
    float4 four[EACH];
#pragma unroll
    for (u32 i = 0; i < EACH; i++) {
        u32 at = first + i * 256;
        four[i] = make_float4(0, 0, 0, 0);
        if (at >= count) continue;
        if (whole) {
            four[i] = ((const float4 *)x)[at];
            continue;
        }
        u32 column = at % fours * 4;
        const float *from = x + (u64)(at / fours) * columns + column;
        if (column < columns) four[i].x = from[0];
        if (column + 1 < columns) four[i].y = from[1];
        if (column + 2 < columns) four[i].z = from[2];
        if (column + 3 < columns) four[i].w = from[3];
    }
#pragma unroll
    for (u32 i = 0; i < EACH; i++) {
        u32 at = first + i * 256;
        if (at < count) out[at] = four_bf16(four[i]);
    }
}
