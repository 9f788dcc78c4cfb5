// Cross-entropy over chunks of the vocabulary, with the bits of `ops::loss`. State of a token: the largest
// logit, the sum of e^(logit - largest), the target's logit.
#include "common.cuh"

constexpr u32 THREADS = 128, EACH = 16; // logits of a tile that a thread has

// exp_of where x is not above zero: its power of two needs neither a bound from above nor two halves.
__device__ __forceinline__ float exp_of_difference(float x) {
    const float shift = 12582912.0f;
    float clamped = x < -87.0f ? -87.0f : x;
    float shifted = __fmaf_rn(clamped, 1.44269504088896340736f, shift);
    float n = shifted - shift;
    float r = __fmaf_rn(n, -0.69314575f, clamped);
    r = __fmaf_rn(n, -1.4286068e-6f, r);
    float value = exp_polynomial(r) * __uint_as_float((__float_as_uint(shifted) << 23) + 0x3f800000u);
    return x < -87.0f ? 0.0f : value;
}

// The part of a tile of logits that a thread has: four neighbours of every 512, or one of every 128 where rows are not
// whole fours. Beyond the end there is nothing.
struct Tile {
    const float *row;
    u32 columns;
    bool fours;

    __device__ __forceinline__ u32 place(u32 i) const {
        return fours ? threadIdx.x * 4 + i / 4 * (THREADS * 4) + i % 4 : threadIdx.x + i * THREADS;
    }

    __device__ __forceinline__ void load(u32 start, float (&x)[EACH]) const {
#pragma unroll
        for (u32 i = 0; i < EACH; i += 4) {
            if (fours) {
                float4 four = make_float4(MINUS_INFINITY, MINUS_INFINITY, MINUS_INFINITY, MINUS_INFINITY);
                if (start + place(i) < columns) four = *(const float4 *)(row + start + place(i));
                x[i] = four.x, x[i + 1] = four.y, x[i + 2] = four.z, x[i + 3] = four.w;
            } else {
#pragma unroll
                for (u32 j = i; j < i + 4; j++)
                    x[j] = start + place(j) < columns ? row[start + place(j)] : MINUS_INFINITY;
            }
        }
    }
};

// A block for each token. Exponentials are made by all, and added by sixteen in order.
extern "C" __global__ void __launch_bounds__(THREADS)
    loss(const float *logits, u32 columns, u64 first, const u32 *targets, float *states) {
    __shared__ float4 near_fours[THREADS * EACH / 4];
    __shared__ float tops[THREADS / 32];
    float *near = (float *)near_fours, x[EACH];
    Tile tile = {logits + (u64)blockIdx.x * columns, columns, columns % 4 == 0 && (u64)logits % 16 == 0};
    float *state = states + blockIdx.x * 3, before = state[0], top = before;
    // NaN is passed over, so that it shows in the sum.
    for (u32 start = 0; start < columns; start += THREADS * EACH) {
        tile.load(start, x);
#pragma unroll
        for (u32 i = 0; i < EACH; i++) top = x[i] > top ? x[i] : top;
    }
    for (int width = 16; width > 0; width /= 2) {
        float other = __shfl_xor_sync(0xffffffffu, top, width);
        top = other > top ? other : top;
    }
    if (threadIdx.x % 32 == 0) tops[threadIdx.x / 32] = top;
    __syncthreads();
    for (u32 warp = 0; warp < THREADS / 32; warp++) top = tops[warp] > top ? tops[warp] : top;
    float lane = 0.0f;
    for (u32 start = 0; start < columns; start += THREADS * EACH) {
        if (columns > THREADS * EACH) tile.load(start, x);
#pragma unroll
        for (u32 i = 0; i < EACH; i++) x[i] = exp_of_difference(x[i] - top);
        if (start > 0) __syncthreads();
#pragma unroll
        for (u32 i = 0; i < EACH; i += 4) {
            if (tile.fours) {
                near_fours[threadIdx.x + i / 4 * THREADS] = make_float4(x[i], x[i + 1], x[i + 2], x[i + 3]);
            } else {
#pragma unroll
                for (u32 j = i; j < i + 4; j++) near[tile.place(j)] = x[j];
            }
        }
        __syncthreads();
        if (threadIdx.x < 16) for_lane(min(columns - start, THREADS * EACH), [&](u64 c) { lane += near[c]; });
    }
    if (threadIdx.x >= 32) return;
    float sum = fold(lane);
    if (threadIdx.x > 0) return;
    state[1] = __fmaf_rn(state[1], exp_of_difference(before - top), sum);
    state[0] = top;
    u64 at = targets[blockIdx.x] - first;
    if (at < columns) state[2] = tile.row[at];
}

// Eight columns for each thread; `out` may be the logits, or narrow. A token without a target (all ones) has zeros.
extern "C" __global__ void __launch_bounds__(256)
    loss_gradient(const float *logits, u32 columns, u64 first, const u32 *targets, const float *states, float weight,
                  void *out, u32 narrow) {
    u32 column = (blockIdx.y * 256 + threadIdx.x) * 8, target = targets[blockIdx.x];
    if (column >= (narrow ? padded(columns) : columns)) return;
    const float *row = logits + (u64)blockIdx.x * columns, *state = states + blockIdx.x * 3;
    bool whole = columns % 8 == 0 && ((u64)logits | (u64)out) % 16 == 0;
    float x[8] = {0, 0, 0, 0, 0, 0, 0, 0};
    if (target != 0xffffffffu && column < columns) {
        if (whole) {
            get_eight(row + column, x);
        } else {
#pragma unroll
            for (u32 i = 0; i < 8; i++) x[i] = column + i < columns ? row[column + i] : MINUS_INFINITY;
        }
        float top = state[0], factor = weight / state[1];
#pragma unroll
        for (u32 i = 0; i < 8; i++) x[i] = exp_of_difference(x[i] - top) * factor;
        u64 place = target - first;
        if (place < columns && place / 8 == column / 8) {
#pragma unroll
            for (u32 i = 0; i < 8; i++) x[i] = column + i == place ? x[i] - weight : x[i];
        }
    }
    if (narrow) {
        *(uint4 *)((u16 *)out + (u64)blockIdx.x * padded(columns) + column) = eight_bf16(x);
    } else if (whole) {
        put_eight((float *)out + (u64)blockIdx.x * columns + column, x);
    } else {
        float *to = (float *)out + (u64)blockIdx.x * columns + column;
#pragma unroll
        for (u32 i = 0; i < 8; i++)
            if (column + i < columns) to[i] = x[i];
    }
}
