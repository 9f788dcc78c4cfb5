// Attention on tensor cores: rows of a head come by in tiles that stand in shared memory, and each warp has rows of
// its own in registers. What both directions share.
#pragma once
#include "tensor_core.cuh"

const u32 TILE = 64;

// Rows of WIDTH channels as parts of 64 channels, each `[64 rows][64]`.
__device__ __forceinline__ u8 *channel_chunk(u8 *tile, u32 row, u32 chunk) {
    return chunk_at(tile + chunk / 8 * (TILE * 128), row, chunk % 8);
}

// Rows `row..row + 16` of a tile, channels `16 * step..`, as the right side of a product along the channels. `row` is a
// multiple of 8: chunks are exchanged as those of row 0 on.
__device__ __forceinline__ void along_channels(u32 (&b)[4], u8 *tile, u32 row, u32 step) {
    u32 lane = threadIdx.x % 32;
    load_tiles(b, channel_chunk(tile + row * 128, (lane & 7u) + (lane >> 4) * 8, step * 2 + (lane >> 3 & 1u)));
}

// The same as the right side of a product along the rows.
__device__ __forceinline__ void along_rows(u32 (&b)[4], u8 *tile, u32 row, u32 step) {
    u32 lane = threadIdx.x % 32;
    load_tiles_transposed(b, channel_chunk(tile + row * 128, lane & 15u, step * 2 + (lane >> 4)));
}

// A product's result, 16 by 16, as the left side of the next one: it lies as that wants it.
__device__ __forceinline__ void as_left(u32 (&a)[4], const float (&x)[2][4]) {
#pragma unroll
    for (u32 i = 0; i < 4; i++) a[i] = pair_of(x[i / 2][i % 2 * 2], x[i / 2][i % 2 * 2 + 1]);
}

// sums[m][16 x WIDTH] += a[m][16 x 16] times rows `row..row + 16` of a tile, which are loaded once for both.
template <int WIDTH, int M>
__device__ __forceinline__ void mix(float (&sums)[M][WIDTH / 8][4], const u32 (&a)[M][4], u8 *tile, u32 row) {
#pragma unroll
    for (u32 step = 0; step < WIDTH / 16; step++) {
        u32 b[4];
        along_rows(b, tile, row, step);
#pragma unroll
        for (u32 m = 0; m < M; m++) {
            multiply_tile(sums[m][2 * step], a[m], b[0], b[1]);
            multiply_tile(sums[m][2 * step + 1], a[m], b[2], b[3]);
        }
    }
}

// ---- who sees whom: a query those keys that are not after it, and not before its window where it has one ----

__device__ __forceinline__ bool sees(u32 query, u32 key, u32 window) {
    return key <= query && (!window || query < key + window);
}

// Whether any of so many queries sees any of 16 keys, and whether all see all of so many.
__device__ __forceinline__ bool any_seen(u32 query, u32 queries, u32 key, u32 window) {
    return key < query + queries && (!window || query < key + 15 + window);
}
__device__ __forceinline__ bool all_seen(u32 query, u32 queries, u32 key, u32 keys, u32 window) {
    return sees(query, key + keys - 1, window) && sees(query + queries - 1, key, window);
}

// ---- a row of a product's result is held by four threads ----

__device__ __forceinline__ float sum_of_row(float x) {
    x += __shfl_xor_sync(0xffffffffu, x, 1);
    return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

__device__ __forceinline__ float top_of_row(float x) {
    x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
    return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}

// ---- a running softmax, in powers of two ----

// What stands for a row's highest score before any was seen; finite, so that differences are numbers.
#define LOWEST (-1e30f)

// The highest score of row `r` (of two) that this thread holds.
__device__ __forceinline__ float top_of(const float (&scores)[2][4], u32 r) {
    return fmaxf(fmaxf(scores[0][2 * r], scores[0][2 * r + 1]), fmaxf(scores[1][2 * r], scores[1][2 * r + 1]));
}
