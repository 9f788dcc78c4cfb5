// Products of bf16 matrices by warpgroups: out[r,c] (+)= sum_i s_i * sum_k left_i[r,k] right_i[k,c]
// (see product_warpgroup.rs, kernels/pairs.cuh).
#include "pairs.cuh"

// Results of each thread behind the stages, where they go one by one.
const u32 SOME = 32;

template <u32 AT_ONCE, bool A_TURNED, bool B_TURNED, u32 MOST> struct Plain {
    static const u32 COLUMNS = AT_ONCE, FACTORS = MOST;
    static const int PIECES = 0;
    static const bool LEFT_TURNED = A_TURNED, RIGHT_TURNED = B_TURNED, GATED = false;
    const Work &work;
    float scale;

    __device__ __forceinline__ Plain(const Work &work)
        : work(work), scale(scale_of(work.factors[factors_of<Plain>(work) - 1])) {}

    __device__ __forceinline__ void finish(int) {}

    // This thread's part of a row of results (of two), if it is `there`; whole and aligned.
    __device__ __forceinline__ void put_row(u64 at, bool there, const float (&sums)[COLUMNS / 8][4], u32 half) {
        u32 lane = threadIdx.x % 32;
        if (work.narrow) {
            u16 *to = (u16 *)work.out + at + lane % 4 * 8;
#pragma unroll
            for (u32 n = 0; n < COLUMNS / 8; n += 4) {
                u32 words[4];
                pairs_of(words, sums, n, half, scale);
                uint4 eight = turned(words);
                if (there) *(uint4 *)(to + n * 8) = eight;
            }
            return;
        }
        at += lane % 2 * 8 + lane % 4 / 2 * 4;
#pragma unroll
        for (u32 n = 0; n < COLUMNS / 8; n += 2) {
            float4 four = four_of(sums[n][half * 2] * scale, sums[n][half * 2 + 1] * scale,
                                  sums[n + 1][half * 2] * scale, sums[n + 1][half * 2 + 1] * scale);
            if (!there) continue;
            float *to = (float *)work.out + at + n * 8;
            if (work.added == work.out) {
                add_four_to(to, four);
                continue;
            }
            if (work.added) {
                float4 before = *(const float4 *)(work.added + at + n * 8);
                four = make_float4(before.x + four.x, before.y + four.y, before.z + four.z, before.w + four.w);
            }
            *(float4 *)to = four;
        }
    }

    __device__ __forceinline__ void put_one(u64 at, float x) {
        if (work.narrow) ((u16 *)work.out)[at] = bf16_of(x);
        else ((float *)work.out)[at] = work.added ? work.added[at] + x : x;
    }

    // This thread's part of 64 rows of results.
    __device__ __forceinline__ void take(Tile tile, const float (&sums)[COLUMNS / 8][4]) {
        u32 lane = threadIdx.x % 32, row = row_of_thread(tile);
        bool aligned = work.stride % (work.narrow ? 8 : 4) == 0 && ((u64)work.out | (u64)work.added) % 16 == 0;
        if (aligned && tile.column + COLUMNS <= work.columns) {
#pragma unroll
            for (u32 half = 0; half < 2; half++) {
                u32 r = row + half * 8;
                put_row((u64)r * work.stride + tile.column, r < work.rows, sums, half);
            }
            return;
        }
        // Edges, and rows that begin anywhere: one by one, from memory, so that the code is short.
        float *some = (float *)(aligned_shared + RING + ARRIVALS) + threadIdx.x;
#pragma unroll
        for (u32 first = 0; first < COLUMNS / 2; first += SOME) {
#pragma unroll
            for (u32 i = 0; i < SOME; i++) some[i * WARPGROUPS * 128] = sums[(first + i) / 4][i % 4] * scale;
#pragma unroll 1
            for (u32 i = 0; i < SOME; i++) {
                u32 r = row + i % 4 / 2 * 8, c = tile.column + lane % 4 * 2 + (first + i) / 4 * 8 + i % 2;
                if (r < work.rows && c < work.columns) put_one((u64)r * work.stride + c, some[i * WARPGROUPS * 128]);
            }
        }
    }
};

// Rows of tokens by rows of a weight, by columns of some; columns of gradients by columns of tokens.
PRODUCT(product_rows_rows_256, Plain<256, false, false, 1>)
PRODUCT(product_rows_rows_128, Plain<128, false, false, 1>)
PRODUCT(product_rows_columns_256, Plain<256, false, true, MOST_FACTORS>)
PRODUCT(product_rows_columns_128, Plain<128, false, true, MOST_FACTORS>)
PRODUCT(product_columns_columns_256, Plain<256, true, true, 1>)
PRODUCT(product_columns_columns_128, Plain<128, true, true, 1>)
