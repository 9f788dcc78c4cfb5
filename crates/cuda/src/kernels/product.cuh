// y[t,n] = s * sum_k x'[t,k] w[n,k] + b[n] on tensor cores, x' rounded to bf16; and
// y[t,n] = silu(gate[t,n]) * up[t,n], two such products at once.
//
// A block of 8 warps makes 32 * M tokens by 128 outputs (gated: 64 of each product): two warps along
// the tokens, four along the outputs. Tiles of 64 inner positions stand in shared memory twice, so that
// one is filled while the other is multiplied; the weight is decoded on its way there.
#pragma once
#include "weight_tile.cuh"

// What a launch is given. `up` is the second weight of a gated pair, or the first again.
struct Operands {
    const void *x;
    u32 x_narrow;
    const u8 *weight, *up;
    const float *bias, *up_bias;
    void *out;
    u32 out_narrow, added, tokens, outputs, inputs;
};

#define OPERANDS                                                                                                       \
    const void *x, u32 x_narrow, const u8 *weight, const u8 *up, const float *bias, const float *up_bias, void *out,   \
        u32 out_narrow, u32 added, u32 tokens, u32 outputs, u32 inputs
#define GIVEN Operands{x, x_narrow, weight, up, bias, up_bias, out, out_narrow, added, tokens, outputs, inputs}

// Sum -> result of a linear layer.
__device__ __forceinline__ void finish(const Operands &o, u32 t, u32 n, float sum, float scale) {
    if (t >= o.tokens || n >= o.outputs) return;
    float y = sum * scale;
    if (o.bias) y += o.bias[n];
    float *to = (float *)o.out + (u64)t * o.outputs + n;
    *to = o.added ? *to + y : y;
}

// Sums -> result of a gated pair; beyond the last output come the zeros that pad narrow rows.
__device__ __forceinline__ void finish_gated(const Operands &o, u32 t, u32 n, float gate, float up, float scale,
                                             float up_scale) {
    if (t >= o.tokens || n >= (o.out_narrow ? padded(o.outputs) : o.outputs)) return;
    float y = 0.0f;
    if (n < o.outputs) {
        gate *= scale;
        up *= up_scale;
        if (o.bias) gate += o.bias[n];
        if (o.up_bias) up += o.up_bias[n];
        y = silu(gate) * up;
    }
    put(o.out, o.out_narrow, o.outputs, t, n, y);
}

// Tokens' rows of one tile of 64 inner positions into shared memory.
template <int ROWS> __device__ __forceinline__ void fetch_tokens(const Operands &o, u8 *tile, u32 first, u32 k) {
    if (o.x_narrow) {
        const u16 *x = (const u16 *)o.x;
        u32 width = padded(o.inputs);
#pragma unroll
        for (u32 i = threadIdx.x; i < ROWS * 8; i += 256) {
            u32 row = i / 8, chunk = i % 8, t = first + row;
            start_copy(chunk_at(tile, row, chunk), x + (u64)(t < o.tokens ? t : 0) * width + k + chunk * 8, t < o.tokens);
        }
        return;
    }
    const float *x = (const float *)o.x;
    for (u32 i = threadIdx.x; i < ROWS * 32; i += 256) {
        u32 row = i / 32, t = first + row, c = k + i % 32 * 2;
        const float *from = x + (u64)t * o.inputs + c;
        float low = t < o.tokens && c < o.inputs ? from[0] : 0.0f;
        float high = t < o.tokens && c + 1 < o.inputs ? from[1] : 0.0f;
        *(u32 *)(chunk_at(tile, row, i % 32 / 4) + i % 4 * 4) = pair_of(low, high);
    }
}

// Thirty-two decoded values of a weight's row into shared memory: half of the row's tile.
__device__ __forceinline__ void keep_weight(u8 *tile, u32 row, u32 half, const u32 (&pairs)[16]) {
#pragma unroll
    for (u32 i = 0; i < 4; i++) {
        uint4 *to = (uint4 *)chunk_at(tile, row, half * 4 + i);
        *to = make_uint4(pairs[4 * i], pairs[4 * i + 1], pairs[4 * i + 2], pairs[4 * i + 3]);
    }
}

// One tile of 64 inner positions: each warp its 16 M tokens by 32 outputs.
template <int M>
__device__ __forceinline__ void multiply(u8 *tokens, u8 *weights, float (&sums)[M][4][4], u32 warp_m, u32 warp_n) {
    u32 lane = threadIdx.x % 32;
#pragma unroll
    for (u32 k = 0; k < 8; k += 2) {
        u32 b[2][4];
#pragma unroll
        for (u32 j = 0; j < 2; j++)
            load_tiles(b[j], chunk_at(weights, warp_n * 32 + j * 16 + (lane & 7u) + (lane >> 4) * 8, k + (lane >> 3 & 1u)));
#pragma unroll
        for (u32 i = 0; i < M; i++) {
            u32 a[4];
            load_tiles(a, chunk_at(tokens, (warp_m * M + i) * 16 + (lane & 15u), k + (lane >> 4)));
#pragma unroll
            for (u32 j = 0; j < 4; j++) multiply_tile(sums[i][j], a, b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]);
        }
    }
}

// Floats from one token's sums to the next in shared memory: 128, and 8 that keep rows in other banks.
const u32 RESULTS = 136;

template <int FORMAT, int M, bool GATED> __device__ __forceinline__ void many_tokens(const Operands &o) {
    const u32 ROWS = 32 * M, TOKENS = ROWS * 128, STAGE = TOKENS + 128 * 128;
    u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, warp_m = warp / 4, warp_n = warp % 4;
    u32 first_t = blockIdx.x * ROWS, first_n = blockIdx.y * (GATED ? 64 : 128);
    // The weight's row that this thread brings, two threads for each. Gated: 16 gates, then their 16 ups.
    u32 row = threadIdx.x / 2, half = threadIdx.x % 2;
    bool is_up = GATED && (row & 16u);
    u32 n = GATED ? first_n + row / 32 * 16 + row % 16 : first_n + row;
    WeightRow<FORMAT> source(is_up ? o.up : o.weight, o.outputs, o.inputs, n);

    float sums[M][4][4] = {};
    u32 tiles = padded(o.inputs) / 64, pairs[16];
    fetch_tokens<ROWS>(o, dynamic_shared, first_t, 0);
    decode<FORMAT>(source.load(half), pairs);
    keep_weight(dynamic_shared + TOKENS, row, half, pairs);
    wait_for_copies();
    __syncthreads();
    for (u32 k = 0; k < tiles; k++) {
        u8 *now = dynamic_shared + (k % 2) * STAGE, *next = dynamic_shared + (k + 1) % 2 * STAGE;
        RawValues<FORMAT> raw;
        bool more = k + 1 < tiles;
        if (more) {
            fetch_tokens<ROWS>(o, next, first_t, (k + 1) * 64);
            raw = source.load((k + 1) * 2 + half);
        }
        multiply<M>(now, now + TOKENS, sums, warp_m, warp_n);
        if (more) {
            decode<FORMAT>(raw, pairs);
            keep_weight(next + TOKENS, row, half, pairs);
        }
        wait_for_copies();
        __syncthreads();
    }

    // The sums go through shared memory, so that neighbours write neighbours.
    float *results = (float *)dynamic_shared;
#pragma unroll
    for (u32 i = 0; i < M; i++) {
#pragma unroll
        for (u32 j = 0; j < 4; j++) {
            u32 row = (warp_m * M + i) * 16 + lane / 4, column = warp_n * 32 + j * 8 + lane % 4 * 2;
            *(float2 *)(results + row * RESULTS + column) = make_float2(sums[i][j][0], sums[i][j][1]);
            *(float2 *)(results + (row + 8) * RESULTS + column) = make_float2(sums[i][j][2], sums[i][j][3]);
        }
    }
    __syncthreads();
    float scale = tensor_scale(o.weight, FORMAT), up_scale = tensor_scale(o.up, FORMAT);
    const u32 WIDTH = GATED ? 64 : 128;
#pragma unroll 1
    for (u32 i = threadIdx.x; i < ROWS * WIDTH; i += 256) {
        u32 row = i / WIDTH, c = i % WIDTH;
        const float *sum = results + row * RESULTS + (GATED ? c / 16 * 32 + c % 16 : c);
        if (GATED) finish_gated(o, first_t + row, first_n + c, sum[0], sum[16], scale, up_scale);
        else finish(o, first_t + row, first_n + c, sum[0], scale);
    }
}

// Thirty-two values of a token's row as pairs of bf16.
__device__ __forceinline__ void token_pairs(const Operands &o, u32 t, u32 part, u32 (&out)[16]) {
    u32 width = padded(o.inputs);
    bool there = t < o.tokens && part * 32 < width;
    if (o.x_narrow) {
        const uint4 *from = (const uint4 *)((const u16 *)o.x + (u64)(there ? t : 0) * width + (there ? part * 32 : 0));
#pragma unroll
        for (int i = 0; i < 4; i++) {
            uint4 x = there ? from[i] : make_uint4(0, 0, 0, 0);
            out[4 * i] = x.x, out[4 * i + 1] = x.y, out[4 * i + 2] = x.z, out[4 * i + 3] = x.w;
        }
        return;
    }
    const float *from = (const float *)o.x + (u64)t * o.inputs + part * 32;
#pragma unroll
    for (int i = 0; i < 16; i++) {
        u32 c = part * 32 + 2 * i;
        float low = there && c < o.inputs ? from[2 * i] : 0.0f, high = there && c + 1 < o.inputs ? from[2 * i + 1] : 0.0f;
        out[i] = pair_of(low, high);
    }
}

// Sixteen rows of the weight, 128 inner positions from 128 * step on, by up to 8 tokens. Each thread brings
// 32 positions of two rows and of one token straight from memory; which positions meet in one instruction
// does not matter as long as they are the same on both sides.
template <int FORMAT>
__device__ __forceinline__ void multiply_rows(const WeightRow<FORMAT> (&rows)[2], const u32 (&x)[16], u32 part, bool there,
                                              float (&sums)[4]) {
    u32 w[2][16];
#pragma unroll
    for (int r = 0; r < 2; r++) {
        WeightRow<FORMAT> row = rows[r];
        row.there = row.there && there;
        decode<FORMAT>(row.load(part), w[r]);
    }
#pragma unroll
    for (int j = 0; j < 16; j += 2) {
        const u32 a[4] = {w[0][j], w[1][j], w[0][j + 1], w[1][j + 1]};
        multiply_tile(sums, a, x[j], x[j + 1]);
    }
}

// At most 8 tokens: a block makes 16 outputs (gated: of each product), its 8 warps share the inner positions.
template <int FORMAT, bool GATED> __device__ __forceinline__ void few_tokens(const Operands &o) {
    float *results = (float *)dynamic_shared;
    const u32 COUNT = GATED ? 2 : 1;
    u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, first_n = blockIdx.x * 16, width = padded(o.inputs);
    u32 n = first_n + lane / 4;
    const WeightRow<FORMAT> rows[2] = {WeightRow<FORMAT>(o.weight, o.outputs, o.inputs, n),
                                       WeightRow<FORMAT>(o.weight, o.outputs, o.inputs, n + 8)};
    const WeightRow<FORMAT> ups[2] = {WeightRow<FORMAT>(o.up, o.outputs, o.inputs, n),
                                      WeightRow<FORMAT>(o.up, o.outputs, o.inputs, n + 8)};
    float sums[COUNT][4] = {};
#pragma unroll(FORMAT == BF16 || GATED ? 1 : 2)
    for (u32 step = warp; step * 128 < width; step += 8) {
        u32 part = step * 4 + lane % 4, x[16];
        bool there = part * 32 < width;
        token_pairs(o, lane / 4, part, x);
        multiply_rows<FORMAT>(rows, x, part, there, sums[0]);
        if (GATED) multiply_rows<FORMAT>(ups, x, part, there, sums[COUNT - 1]);
    }
    // [product][warp][output][token]
#pragma unroll
    for (u32 side = 0; side < COUNT; side++) {
        float *to = results + (side * 8 + warp) * 128 + lane / 4 * 8 + lane % 4 * 2;
        to[0] = sums[side][0], to[1] = sums[side][1], to[64] = sums[side][2], to[65] = sums[side][3];
    }
    __syncthreads();
    if (threadIdx.x >= 128) return;
    float totals[COUNT] = {};
#pragma unroll
    for (u32 side = 0; side < COUNT; side++)
#pragma unroll
        for (u32 w = 0; w < 8; w++) totals[side] += results[(side * 8 + w) * 128 + threadIdx.x];
    float scale = tensor_scale(o.weight, FORMAT), up_scale = tensor_scale(o.up, FORMAT);
    u32 t = threadIdx.x % 8, output = first_n + threadIdx.x / 8;
    if (GATED) finish_gated(o, t, output, totals[0], totals[COUNT - 1], scale, up_scale);
    else finish(o, t, output, totals[0], scale);
}

// The kernels of one format: blocks of 128, of 32 and of 8 tokens.
#define PRODUCTS(FORMAT, name)                                                                                         \
    extern "C" __global__ void __launch_bounds__(256, 2) linear_##name##_128(OPERANDS) {                               \
        many_tokens<FORMAT, 4, false>(GIVEN);                                                                          \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(256) linear_##name##_32(OPERANDS) {                                   \
        many_tokens<FORMAT, 1, false>(GIVEN);                                                                          \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(256) linear_##name##_8(OPERANDS) {                                    \
        few_tokens<FORMAT, false>(GIVEN);                                                                              \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(256, 2) gated_##name##_128(OPERANDS) {                                \
        many_tokens<FORMAT, 4, true>(GIVEN);                                                                           \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(256) gated_##name##_32(OPERANDS) {                                    \
        many_tokens<FORMAT, 1, true>(GIVEN);                                                                           \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(256) gated_##name##_8(OPERANDS) {                                     \
        few_tokens<FORMAT, true>(GIVEN);                                                                               \
    }
