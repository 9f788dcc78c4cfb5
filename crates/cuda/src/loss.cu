// Cross-entropy over chunks of the vocabulary, with the bits of `ops::loss`. State of a token: the largest
// logit, the sum of e^(logit - largest), the target's logit.
#include "tensor_core.cuh"

constexpr u32 EACH = 4; // fours of a tile of logits that a thread has
constexpr u32 MOST = 512; // threads of a block: with so many the usual chunks are one tile, read once

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

// The part of a tile of logits that a thread has: four neighbours in each round of the block, fetched together where rows
// are whole fours. Beyond the end there is nothing.
struct Tile {
    const float *row;
    u32 columns;
    bool fours;

    __device__ __forceinline__ u32 place(u32 four) const { return (threadIdx.x + four * blockDim.x) * 4; }

    __device__ __forceinline__ void load(u32 start, float4 (&x)[EACH]) const {
#pragma unroll
        for (u32 i = 0; i < EACH; i++) {
            u32 c = start + place(i);
            x[i] = make_float4(MINUS_INFINITY, MINUS_INFINITY, MINUS_INFINITY, MINUS_INFINITY);
            if (c >= columns) continue;
            if (fours) {
                x[i] = *(const float4 *)(row + c);
                continue;
            }
            x[i].x = row[c];
            if (c + 1 < columns) x[i].y = row[c + 1];
            if (c + 2 < columns) x[i].z = row[c + 2];
            if (c + 3 < columns) x[i].w = row[c + 3];
        }
    }
};

__device__ __forceinline__ float larger(float x, float top) { return x > top ? x : top; }

// Where exponentials go; nowhere for the loss alone.
struct Kept {
    void *rows;
    u32 narrow;

    __device__ __forceinline__ void put(const Tile &tile, u64 token, u32 c, float4 x) const {
        if (c >= tile.columns) return;
        if (!tile.fours) {
            float four[4] = {x.x, x.y, x.z, x.w};
            for (u32 i = 0; i < 4 && c + i < tile.columns; i++) ::put(rows, narrow, tile.columns, token, c + i, four[i]);
        } else if (narrow) {
            uint2 pairs = make_uint2(pair_of(x.x, x.y), pair_of(x.z, x.w));
            *(uint2 *)((u16 *)rows + token * padded(tile.columns) + c) = pairs;
        } else {
            *(float4 *)((float *)rows + token * tile.columns + c) = x;
        }
    }
};

// A block for each token. Exponentials are made by all, and added by sixteen in order; gives the largest logit so far.
template <bool KEEP>
__device__ __forceinline__ float take(const float *logits, u32 columns, u64 first, const u32 *targets, float *states,
                                      Kept out) {
    __shared__ float tops[MOST / 32];
    const u32 tile_columns = blockDim.x * EACH * 4;
    float *near = (float *)dynamic_shared;
    float4 x[EACH];
    u64 token = blockIdx.x, at = targets[token] - first;
    Tile tile = {logits + token * columns, columns, columns % 4 == 0 && ((u64)logits | (u64)out.rows) % 16 == 0};
    float *state = states + token * 3, before = state[0], top = before, of_target = state[2];
    // Before its place is taken.
    if (threadIdx.x == 0 && at < columns) of_target = tile.row[at];
    // NaN is passed over, so that it shows in the sum.
    for (u32 start = 0; start < columns; start += tile_columns) {
        tile.load(start, x);
#pragma unroll
        for (u32 i = 0; i < EACH; i++) top = larger(x[i].x, larger(x[i].y, larger(x[i].z, larger(x[i].w, top))));
    }
    for (int width = 16; width > 0; width /= 2) top = larger(__shfl_xor_sync(0xffffffffu, top, width), top);
    if (threadIdx.x % 32 == 0) tops[threadIdx.x / 32] = top;
    __syncthreads();
    for (u32 warp = 0; warp < blockDim.x / 32; warp++) top = larger(tops[warp], top);
    float lane = 0.0f;
    for (u32 start = 0; start < columns; start += tile_columns) {
        if (columns > tile_columns) tile.load(start, x);
        if (start > 0) __syncthreads();
#pragma unroll
        for (u32 i = 0; i < EACH; i++) {
            x[i].x = exp_of_difference(x[i].x - top), x[i].y = exp_of_difference(x[i].y - top);
            x[i].z = exp_of_difference(x[i].z - top), x[i].w = exp_of_difference(x[i].w - top);
            *(float4 *)(near + tile.place(i)) = x[i];
            if (KEEP) out.put(tile, token, start + tile.place(i), x[i]);
        }
        __syncthreads();
        if (threadIdx.x < 16) for_lane(min(columns - start, tile_columns), [&](u64 c) { lane += near[c]; });
    }
    if (KEEP) pad(out.rows, out.narrow, columns, token, threadIdx.x, blockDim.x);
    if (threadIdx.x >= 32) return top;
    float sum = fold(lane);
    if (threadIdx.x > 0) return top;
    state[1] = __fmaf_rn(state[1], exp_of_difference(before - top), sum);
    state[0] = top, state[2] = of_target;
    return top;
}

extern "C" __global__ void __launch_bounds__(MOST, 3)
    loss(const float *logits, u32 columns, u64 first, const u32 *targets, float *states) {
    take<false>(logits, columns, first, targets, states, {0, 0});
}

// `out` may be the logits, or narrow. Where the largest logit rises, the token's sums follow: rarely, after a few chunks.
extern "C" __global__ void __launch_bounds__(MOST, 3)
    loss_exponentials(const float *logits, u32 columns, u64 first, const u32 *targets, float *states, void *out,
                      u32 narrow, float *sums, u32 width) {
    float before = states[blockIdx.x * 3];
    float top = take<true>(logits, columns, first, targets, states, {out, narrow});
    // The first warp is still adding.
    if (!(top > before && before > MINUS_INFINITY) || threadIdx.x < 32) return;
    float factor = exp_of_difference(before - top), *row = sums + (u64)blockIdx.x * width;
    for (u32 c = threadIdx.x - 32; c < width; c += blockDim.x - 32) row[c] *= factor;
}

// dx = weight (dx / s - the target's row), a block for each token and each of its pieces; no target, no gradient.
extern "C" __global__ void loss_input_gradient(const u32 *targets, const float *states, float weight,
                                               const float *of_targets, float *dx, u32 columns) {
    u32 c = blockIdx.y * blockDim.x + threadIdx.x;
    u64 at = (u64)blockIdx.x * columns + c;
    if (c >= columns) return;
    float factor = weight / states[blockIdx.x * 3 + 1];
    dx[at] = targets[blockIdx.x] == 0xffffffffu ? 0.0f : __fmaf_rn(dx[at], factor, -(weight * of_targets[at]));
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
        uint4 pairs = make_uint4(pair_of(x[0], x[1]), pair_of(x[2], x[3]), pair_of(x[4], x[5]), pair_of(x[6], x[7]));
        *(uint4 *)((u16 *)out + (u64)blockIdx.x * padded(columns) + column) = pairs;
    } else if (whole) {
        put_eight((float *)out + (u64)blockIdx.x * columns + column, x);
    } else {
        float *to = (float *)out + (u64)blockIdx.x * columns + column;
#pragma unroll
        for (u32 i = 0; i < 8; i++)
            if (column + i < columns) to[i] = x[i];
    }
}
