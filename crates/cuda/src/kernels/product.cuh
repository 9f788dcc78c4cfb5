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
    // Narrow rows for the products of a gated pair, where they are kept.
    void *kept, *kept_up;
};

#define OPERANDS                                                                                                       \
    const void *x, u32 x_narrow, const u8 *weight, const u8 *up, const float *bias, const float *up_bias, void *out,   \
        u32 out_narrow, u32 added, u32 tokens, u32 outputs, u32 inputs
#define GIVEN                                                                                                          \
    Operands{x, x_narrow, weight, up, bias, up_bias, out, out_narrow, added, tokens, outputs, inputs, nullptr, nullptr}
#define KEPT void *kept, void *kept_up
#define GIVEN_KEPT                                                                                                     \
    Operands{x, x_narrow, weight, up, bias, up_bias, out, out_narrow, added, tokens, outputs, inputs, kept, kept_up}

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
    if (t >= o.tokens || n >= padded(o.outputs)) return;
    bool there = n < o.outputs;
    gate = there ? gate * scale : 0.0f;
    up = there ? up * up_scale : 0.0f;
    if (there && o.bias) gate += o.bias[n];
    if (there && o.up_bias) up += o.up_bias[n];
    if (there || o.out_narrow) put(o.out, o.out_narrow, o.outputs, t, n, there ? silu(gate) * up : 0.0f);
    if (!o.kept) return;
    put(o.kept, true, o.outputs, t, n, gate);
    put(o.kept_up, true, o.outputs, t, n, up);
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

// The kernels of one format for many tokens: blocks of 128 and of 32.
#define PRODUCTS(FORMAT, name)                                                                                         \
    extern "C" __global__ void __launch_bounds__(256, 2) linear_##name##_128(OPERANDS) {                               \
        many_tokens<FORMAT, 4, false>(GIVEN);                                                                          \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(256) linear_##name##_32(OPERANDS) {                                   \
        many_tokens<FORMAT, 1, false>(GIVEN);                                                                          \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(256, 2) gated_##name##_128(OPERANDS, KEPT) {                          \
        many_tokens<FORMAT, 4, true>(GIVEN_KEPT);                                                                           \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(256) gated_##name##_32(OPERANDS, KEPT) {                              \
        many_tokens<FORMAT, 1, true>(GIVEN_KEPT);                                                                           \
    }
