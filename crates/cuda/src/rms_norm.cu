// y[t,c] = g[c] * (x[t,c] * r[t]),  r[t] = 1 / sqrt(mean_c x[t,c]^2 + eps)
//
// The sum of squares has 16 lanes, as in ops::math, so its bits are those of the CPU: 16 threads
// hold them, the others of a block bring the row into shared memory and write the result.
// X may be narrow; or it is made so on the way, left in `kept`, and that is normed.
#include "norm.cuh"

#define NORM const void *x, u32 x_narrow, void *kept, const float *gain, float eps, void *out, u32 narrow, u32 rows, u32 columns

// A value as it is normed; one that is to be kept rounded is.
__device__ __forceinline__ float taken(const void *x, u32 x_narrow, void *kept, u32 columns, u64 t, u32 c) {
    float value = get(x, x_narrow, columns, t, c);
    if (!kept) return value;
    put(kept, true, columns, t, c, value);
    return rounded(value);
}

// A block for each row, four columns for each thread at a time; the row stays in shared memory. `out` may be `x`.
extern "C" __global__ void __launch_bounds__(1024) rms_norm(NORM) {
    float *r = (float *)dynamic_shared, *row = r + 4;
    u64 t = blockIdx.x;
    bool whole = columns % 4 == 0 && ((u64)x | (u64)gain | (u64)out) % 16 == 0 && !kept;
    // The gain comes along with the row.
    float4 g = whole && threadIdx.x * 4 < columns ? ((const float4 *)gain)[threadIdx.x] : make_float4(0, 0, 0, 0);
    if (whole) {
        for (u32 i = threadIdx.x; i * 4 < columns; i += blockDim.x)
            ((float4 *)row)[i] = get_four(x, x_narrow, columns, t, i * 4);
    } else {
        for (u32 c = threadIdx.x; c < columns; c += blockDim.x) row[c] = taken(x, x_narrow, kept, columns, t, c);
    }
    __syncthreads();
    if (threadIdx.x < 32) {
        float lane = 0.0f;
#pragma unroll 16
        for (u32 c = threadIdx.x & 15u; c < columns; c += 16) lane = __fmaf_rn(row[c], row[c], lane);
        lane = fold(lane);
        if (threadIdx.x == 0) *r = reciprocal(lane, columns, eps);
    }
    __syncthreads();
    float scale = *r;
    if (whole) {
        for (u32 i = threadIdx.x; i * 4 < columns; i += blockDim.x) {
            if (i != threadIdx.x) g = ((const float4 *)gain)[i];
            float4 v = ((const float4 *)row)[i];
            v.x = g.x * (v.x * scale), v.y = g.y * (v.y * scale), v.z = g.z * (v.z * scale), v.w = g.w * (v.w * scale);
            put_four(out, narrow, columns, t, i * 4, v);
        }
    } else {
        for (u32 c = threadIdx.x; c < columns; c += blockDim.x) put(out, narrow, columns, t, c, gain[c] * (row[c] * scale));
    }
    pad(out, narrow, columns, t, threadIdx.x, blockDim.x);
    pad(kept, kept != nullptr, columns, t, threadIdx.x, blockDim.x);
}

// The same for many rows of whole fours: small blocks, of which a multiprocessor has many, so that one's row comes while
// another's is summed. A thread rounds what it has fetched itself.
extern "C" __global__ void __launch_bounds__(128) rms_norm_many(NORM) {
    float *r = (float *)dynamic_shared, *row = r + 4;
    u64 t = blockIdx.x;
    if (x_narrow) {
#pragma unroll 5
        for (u32 c = threadIdx.x * 4; c < columns; c += 512) *(float4 *)(row + c) = get_four(x, true, columns, t, c);
    } else {
        const float *from = (const float *)x + t * columns;
        for (u32 c = threadIdx.x * 4; c < columns; c += 512) start_copy(row + c, from + c, true);
        wait_for_copies();
        for (u32 c = threadIdx.x * 4; kept && c < columns; c += 512) {
            uint2 four = four_bf16(*(const float4 *)(row + c));
            *(uint2 *)((u16 *)kept + t * padded(columns) + c) = four;
            *(float4 *)(row + c) = four_of(four);
        }
    }
    __syncthreads();
    if (threadIdx.x < 32) {
        float of_row = reciprocal_of(row, columns, eps);
        if (threadIdx.x == 0) *r = of_row;
    }
    __syncthreads();
    float scale = *r;
    for (u32 start = threadIdx.x * 4; start < columns; start += 2048) {
        float4 g[4];
#pragma unroll
        for (u32 i = 0; i < 4; i++)
            if (start + i * 512 < columns) g[i] = *(const float4 *)(gain + start + i * 512);
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            if (start + i * 512 >= columns) break;
            float4 v = *(const float4 *)(row + start + i * 512);
            v.x = g[i].x * (v.x * scale), v.y = g[i].y * (v.y * scale);
            v.z = g[i].z * (v.z * scale), v.w = g[i].w * (v.w * scale);
            put_four(out, narrow, columns, t, start + i * 512, v);
        }
    }
    pad(out, narrow, columns, t, threadIdx.x, 128);
    pad(kept, kept != nullptr, columns, t, threadIdx.x, 128);
}

// Sixteen threads for each row. `out` may be `x`.
extern "C" __global__ void rms_norm_heads(NORM) {
    u64 t = (blockIdx.x * (u64)blockDim.x + threadIdx.x) / 16;
    u32 first = threadIdx.x & 15u;
    bool there = t < rows;
    float lane = 0.0f;
    for (u32 c = first; there && c < columns; c += 16) {
        float value = taken(x, x_narrow, kept, columns, t, c);
        lane = __fmaf_rn(value, value, lane);
    }
    float r = reciprocal(fold(lane), columns, eps);
    if (!there) return;
    const void *from = kept ? kept : x;
    u32 from_narrow = kept || x_narrow;
    for (u32 c = first; c < columns; c += 16)
        put(out, narrow, columns, t, c, gain[c] * (get(from, from_narrow, columns, t, c) * r));
    pad(out, narrow, columns, t, first, 16);
    pad(kept, kept != nullptr, columns, t, first, 16);
}
