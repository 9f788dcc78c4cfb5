// Attention over a bf16 or int8 cache on tensor cores: four warps take 64 queries of a head, 16 each, and go over
// keys in tiles of 64 counted from position 0, with a running maximum and sum for every query.
//
// Two tiles of keys and values stand in shared memory: one is fetched while the other is used. Heads of up
// to 64 or 128 channels; channels that a head lacks are zero.
#include "cache.cuh"
#include "weight_tile.cuh"

const u32 QUERIES = 64, TILE = 64;

// Rows of CHANNELS bf16 as parts of 64 channels, each `[64 rows][64]`.
__device__ __forceinline__ u8 *channel_chunk(u8 *tile, u32 row, u32 chunk) {
    return chunk_at(tile + chunk / 8 * (TILE * 128), row, chunk % 8);
}

// Eight int8 codes and their scale as bf16, which holds them exactly.
__device__ __forceinline__ uint4 widen_int8(uint2 codes, float scale) {
    u32 out[4];
    decode_int8(codes.x, scale, out);
    decode_int8(codes.y, scale, out + 2);
    return make_uint4(out[0], out[1], out[2], out[3]);
}

template <int FORMAT, int CHANNELS>
__device__ __forceinline__ void fetch_keys(const Cache &c, u8 *to, u32 which, u32 head, u32 first, u32 end) {
    const u8 *from = c.side(which);
    for (u32 i = threadIdx.x; i < TILE * CHANNELS / 8; i += 128) {
        u32 row = i / (CHANNELS / 8), chunk = i % (CHANNELS / 8);
        bool there = first + row < end && chunk * 8 < c.width();
        u64 at = c.row(head, there ? first + row : 0) + (there ? chunk * 8 : 0);
        u8 *place = channel_chunk(to, row, chunk);
        if (FORMAT == CACHE_BF16) {
            start_copy(place, (const u16 *)from + at, there);
        } else {
            float scale = e8m0(from[c.values_of_side() + at / 16]);
            *(uint4 *)place = there ? widen_int8(*(const uint2 *)(from + at), scale) : make_uint4(0, 0, 0, 0);
        }
    }
}

template <int FORMAT, int CHANNELS>
__device__ __forceinline__ void attend_tiles(const float *q, const Cache &c, u32 queries, u32 start, u32 window, void *out,
                                             u32 narrow, u32 heads) {
    const u32 SIDE = TILE * CHANNELS * 2, STEPS = CHANNELS / 16;
    u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, h = blockIdx.y, head = h / (heads / c.kv_heads);
    // The longest first: late blocks are short ones.
    u32 first = (gridDim.x - 1 - blockIdx.x) * QUERIES, columns = heads * c.head_dim;
    u32 row = first + warp * 16 + lane / 4;

    // This warp's queries as the left side of products.
    u32 queries_of[STEPS][4];
#pragma unroll
    for (u32 s = 0; s < STEPS; s++) {
#pragma unroll
        for (u32 r = 0; r < 4; r++) {
            u32 t = row + r % 2 * 8, channel = s * 16 + r / 2 * 8 + lane % 4 * 2;
            const float *from = q + (u64)t * columns + h * c.head_dim + channel;
            bool there = t < queries && channel < c.head_dim;
            queries_of[s][r] = there ? pair_of(from[0], from[1]) : 0;
        }
    }

    u32 end = start + min(first + QUERIES, queries);
    u32 lowest = window && start + first + 1 > window ? start + first + 1 - window : 0;
    float scale = 1.0f / sqrtf((float)c.head_dim), top[2] = {MINUS_INFINITY, MINUS_INFINITY}, total[2] = {};
    float mixed[CHANNELS / 8][4] = {};
    u32 stage = 0, tile = lowest / TILE;
    fetch_keys<FORMAT, CHANNELS>(c, dynamic_shared, 0, head, tile * TILE, end);
    fetch_keys<FORMAT, CHANNELS>(c, dynamic_shared + SIDE, 1, head, tile * TILE, end);
    for (; tile * TILE < end; tile++, stage ^= 1) {
        u8 *keys = dynamic_shared + stage * 2 * SIDE, *values = keys + SIDE;
        wait_for_copies();
        __syncthreads();
        if ((tile + 1) * TILE < end) {
            u8 *next = dynamic_shared + (stage ^ 1) * 2 * SIDE;
            fetch_keys<FORMAT, CHANNELS>(c, next, 0, head, (tile + 1) * TILE, end);
            fetch_keys<FORMAT, CHANNELS>(c, next + SIDE, 1, head, (tile + 1) * TILE, end);
        }

        float scores[TILE / 8][4] = {};
#pragma unroll
        for (u32 s = 0; s < STEPS; s++) {
#pragma unroll
            for (u32 j = 0; j < TILE / 16; j++) {
                u32 b[4];
                load_tiles(b, channel_chunk(keys, j * 16 + (lane & 7u) + (lane >> 4) * 8, s * 2 + (lane >> 3 & 1u)));
                multiply_tile(scores[2 * j], queries_of[s], b[0], b[1]);
                multiply_tile(scores[2 * j + 1], queries_of[s], b[2], b[3]);
            }
        }

        // Two queries of each thread: row and row + 8.
        float highest[2] = {top[0], top[1]};
#pragma unroll
        for (u32 j = 0; j < TILE / 8; j++) {
#pragma unroll
            for (u32 i = 0; i < 4; i++) {
                u32 key = tile * TILE + j * 8 + lane % 4 * 2 + i % 2, position = start + row + i / 2 * 8;
                bool seen = key <= position && (!window || key + window > position);
                scores[j][i] = seen ? scores[j][i] * scale : MINUS_INFINITY;
                highest[i / 2] = fmaxf(highest[i / 2], scores[j][i]);
            }
        }
#pragma unroll
        for (u32 r = 0; r < 2; r++) {
            highest[r] = fmaxf(highest[r], __shfl_xor_sync(0xffffffffu, highest[r], 1));
            highest[r] = fmaxf(highest[r], __shfl_xor_sync(0xffffffffu, highest[r], 2));
            // Nothing seen so far: any finite number keeps the zeros.
            float base = highest[r] == MINUS_INFINITY ? 0.0f : highest[r], shrink = quick_exp(top[r] - base);
            top[r] = highest[r];
            total[r] *= shrink;
#pragma unroll
            for (u32 n = 0; n < CHANNELS / 8; n++) {
                mixed[n][2 * r] *= shrink;
                mixed[n][2 * r + 1] *= shrink;
            }
            highest[r] = base;
        }
#pragma unroll
        for (u32 j = 0; j < TILE / 8; j++) {
#pragma unroll
            for (u32 i = 0; i < 4; i++) {
                scores[j][i] = quick_exp(scores[j][i] - highest[i / 2]);
                total[i / 2] += scores[j][i];
            }
        }

#pragma unroll
        for (u32 s = 0; s < TILE / 16; s++) {
            const u32 p[4] = {pair_of(scores[2 * s][0], scores[2 * s][1]), pair_of(scores[2 * s][2], scores[2 * s][3]),
                              pair_of(scores[2 * s + 1][0], scores[2 * s + 1][1]),
                              pair_of(scores[2 * s + 1][2], scores[2 * s + 1][3])};
#pragma unroll
            for (u32 n = 0; n < CHANNELS / 16; n++) {
                u32 b[4];
                load_tiles_transposed(b, channel_chunk(values, s * 16 + (lane & 15u), n * 2 + (lane >> 4)));
                multiply_tile(mixed[2 * n], p, b[0], b[1]);
                multiply_tile(mixed[2 * n + 1], p, b[2], b[3]);
            }
        }
    }

#pragma unroll
    for (u32 r = 0; r < 2; r++) {
        total[r] += __shfl_xor_sync(0xffffffffu, total[r], 1);
        total[r] += __shfl_xor_sync(0xffffffffu, total[r], 2);
        u32 t = row + r * 8;
        if (t >= queries) continue;
        float inverse = 1.0f / total[r];
#pragma unroll
        for (u32 n = 0; n < CHANNELS / 8; n++) {
            u32 channel = n * 8 + lane % 4 * 2;
            if (channel >= c.head_dim) continue;
            put(out, narrow, columns, t, h * c.head_dim + channel, mixed[n][2 * r] * inverse);
            put(out, narrow, columns, t, h * c.head_dim + channel + 1, mixed[n][2 * r + 1] * inverse);
        }
        if (h == heads - 1) pad(out, narrow, columns, t, lane % 4, 4);
    }
}

#define ATTEND(name, FORMAT, channels)                                                                                 \
    extern "C" __global__ void __launch_bounds__(128)                                                                  \
        attend_##name##_##channels(const float *q, u8 *cache, u32 kv_heads, u32 head_dim, u32 capacity, u32 queries,   \
                                   u32 start, u32 window, void *out, u32 narrow, u32 heads) {                          \
        Cache c = {cache, FORMAT, kv_heads, head_dim, capacity};                                                       \
        attend_tiles<FORMAT, channels>(q, c, queries, start, window, out, narrow, heads);                              \
    }

ATTEND(bf16, CACHE_BF16, 64)
ATTEND(bf16, CACHE_BF16, 128)
ATTEND(int8, CACHE_INT8, 64)
ATTEND(int8, CACHE_INT8, 128)
