// Attention over bf16 or int8 keys on tensor cores: four warps take 128 queries of a head, 32 each, and go over
// keys 16 at a time, with a running reference and sum for every query.
//
// Two tiles of 64 keys and values stand in shared memory: one is fetched while the other is used. Heads of up to 64
// or 128 channels; channels that a head lacks are zero.
#include "head_tile.cuh"
#include "keys.cuh"
#include "weight_tile.cuh"

const u32 QUERIES = 128, THREADS = 128;
// How far (in powers of two) scores may pass their reference before sums are scaled to a new one.
#define SLACK 8.0f

// Eight int8 codes and their scale as bf16, which holds them exactly.
__device__ __forceinline__ uint4 widen_int8(uint2 codes, float scale) {
    u32 out[4];
    decode_int8(codes.x, scale, out);
    decode_int8(codes.y, scale, out + 2);
    return make_uint4(out[0], out[1], out[2], out[3]);
}

// Keys (0) or values (1) of a head from position `first` on, zeros from `end` on.
template <int FORMAT, int CHANNELS>
__device__ __forceinline__ void fetch_side(const Keys &c, u8 *to, u32 which, u32 head, u32 first, u32 end) {
    const u32 CHUNKS = CHANNELS / 8, STEP = THREADS / CHUNKS;
    static_assert(STEP % 8 == 0, "chunks of all rows of a thread are exchanged alike");
    u32 row = threadIdx.x / CHUNKS, chunk = threadIdx.x % CHUNKS;
    bool inside = chunk * 8 < c.width();
    const u8 *side = which ? c.values : c.keys;
    u64 at = c.row(head, first + row) + chunk * 8;
    u8 *near = channel_chunk(to, row, chunk);
#pragma unroll
    for (u32 i = 0; i < TILE / STEP; i++, at += STEP * c.of_position) {
        bool there = inside && first + row + i * STEP < end;
        if (FORMAT == CACHE_BF16) {
            start_copy(near + i * STEP * 128, (const u16 *)side + at, there);
        } else {
            uint4 values = make_uint4(0, 0, 0, 0);
            if (there) values = widen_int8(*(const uint2 *)(side + at), e8m0(side[c.values_of_side() + at / 16]));
            *(uint4 *)(near + i * STEP * 128) = values;
        }
    }
}

template <int FORMAT, int CHANNELS>
__device__ __forceinline__ void fetch(const Keys &c, u8 *to, u32 head, u32 first, u32 end) {
    fetch_side<FORMAT, CHANNELS>(c, to, 0, head, first, end);
    fetch_side<FORMAT, CHANNELS>(c, to + TILE * CHANNELS * 2, 1, head, first, end);
}

// One call: rows of queries, of which `row` has position `start + row`. `tiles` has for each block its sample's first
// position, its own first row, and the row after the sample's last; without it all rows see keys from position 0 on.
struct Heads {
    const void *q;
    const u32 *tiles;
    u32 narrow_q, queries, start, window, narrow, heads;
    void *out;
};

// Scores of 32 queries and 16 keys.
template <int CHANNELS>
__device__ __forceinline__ void dots(float (&scores)[2][2][4], const u32 (&q)[2][CHANNELS / 16][4], u8 *keys, u32 row) {
#pragma unroll
    for (u32 i = 0; i < 16; i++) scores[i / 8][i / 4 % 2][i % 4] = 0.0f;
#pragma unroll
    for (u32 step = 0; step < CHANNELS / 16; step++) {
        u32 b[4];
        along_channels(b, keys, row, step);
#pragma unroll
        for (u32 m = 0; m < 2; m++) {
            multiply_tile(scores[m][0], q[m][step], b[0], b[1]);
            multiply_tile(scores[m][1], q[m][step], b[2], b[3]);
        }
    }
}

// Queries whose scores passed their reference get the highest as a new one. (Others do not: what a query comes out as
// must not depend on its neighbours.)
template <int CHANNELS>
__device__ __forceinline__ void rescale(float (&reference)[2][2], float (&total)[2][2],
                                        float (&mixed)[2][CHANNELS / 8][4], const float (&scores)[2][2][4],
                                        float scale) {
#pragma unroll
    for (u32 i = 0; i < 4; i++) {
        u32 m = i / 2, r = i % 2;
        float top = top_of_row(top_of(scores[m], r)) * scale;
        float next = top > reference[m][r] + SLACK ? top : reference[m][r];
        float shrink = quick_exp2(reference[m][r] - next);
        reference[m][r] = next, total[m][r] *= shrink;
#pragma unroll
        for (u32 n = 0; n < CHANNELS / 8; n++) mixed[m][n][2 * r] *= shrink, mixed[m][n][2 * r + 1] *= shrink;
    }
}

template <int FORMAT, int CHANNELS> __device__ __forceinline__ void attend_tiles(const Heads &of, const Keys &c) {
    const u32 STAGE = 2 * TILE * CHANNELS * 2, STEPS = CHANNELS / 16;
    u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, h = blockIdx.x, head = h / (of.heads / c.kv_heads);
    // The longest first: late blocks are short ones.
    u32 sample = 0, first = (gridDim.y - 1 - blockIdx.y) * QUERIES, last = of.queries;
    if (of.tiles) {
        const u32 *tile = of.tiles + blockIdx.y * 3;
        sample = tile[0], first = tile[1], last = tile[2];
    }
    u32 own = first + warp * 32, row = own + lane / 4, columns = of.heads * c.head_dim;

    u32 position = of.start + first, end = min(position + QUERIES, of.start + last);
    u32 low = of.window && position + 1 > sample + of.window ? position + 1 - of.window : sample;
    low = sample + (low - sample) / TILE * TILE;
    fetch<FORMAT, CHANNELS>(c, dynamic_shared, head, low, end);

    u32 q[2][STEPS][4];
#pragma unroll
    for (u32 i = 0; i < 2 * STEPS * 4; i++) {
        u32 t = row + i / (STEPS * 4) * 16 + i % 2 * 8, channel = i / 4 % STEPS * 16 + i % 4 / 2 * 8 + lane % 4 * 2;
        u64 at = (u64)t * columns + h * c.head_dim + channel;
        u32 pair = 0;
        if (t < last && channel < c.head_dim) {
            float2 two;
            if (of.narrow_q) pair = *(const u32 *)((const u16 *)of.q + at);
            else two = *(const float2 *)((const float *)of.q + at), pair = pair_of(two.x, two.y);
        }
        q[i / (STEPS * 4)][i / 4 % STEPS][i % 4] = pair;
    }
    float scale = 1.44269504f / sqrtf((float)c.head_dim);
    float reference[2][2] = {{LOWEST, LOWEST}, {LOWEST, LOWEST}}, total[2][2] = {};
    float mixed[2][CHANNELS / 8][4] = {};
    u32 stage = 0;
    position = of.start + own;
    for (u32 tile = low; tile < end; tile += TILE, stage ^= 1) {
        u8 *keys = dynamic_shared + stage * STAGE, *values = keys + STAGE / 2;
        wait_for_copies();
        __syncthreads();
        if (tile + TILE < end) fetch<FORMAT, CHANNELS>(c, dynamic_shared + (stage ^ 1) * STAGE, head, tile + TILE, end);
#pragma unroll 1
        for (u32 key = tile; key < tile + TILE; key += 16) {
            if (own >= last || !any_seen(position, 32, key, of.window)) continue;
            float p[2][2][4];
            dots<CHANNELS>(p, q, keys, key - tile);
            if (!all_seen(position, 32, key, 16, of.window)) {
#pragma unroll
                for (u32 i = 0; i < 16; i++) {
                    u32 query = position + lane / 4 + i / 8 * 16 + i % 4 / 2 * 8;
                    bool seen = sees(query, key + i / 4 % 2 * 8 + lane % 4 * 2 + i % 2, of.window);
                    if (!seen) p[i / 8][i / 4 % 2][i % 4] = MINUS_INFINITY;
                }
            }
            bool passed = false;
#pragma unroll
            for (u32 i = 0; i < 4; i++)
                passed = passed || top_of(p[i / 2], i % 2) * scale > reference[i / 2][i % 2] + SLACK;
            if (__any_sync(0xffffffffu, passed)) rescale<CHANNELS>(reference, total, mixed, p, scale);
#pragma unroll
            for (u32 i = 0; i < 16; i++) {
                float &score = p[i / 8][i / 4 % 2][i % 4];
                score = quick_exp2(__fmaf_rn(score, scale, -reference[i / 8][i % 4 / 2]));
                total[i / 8][i % 4 / 2] += score;
            }
            u32 left[2][4];
            as_left(left[0], p[0]);
            as_left(left[1], p[1]);
            mix<CHANNELS, 2>(mixed, left, values, key - tile);
        }
    }

#pragma unroll
    for (u32 i = 0; i < 4; i++) {
        u32 m = i / 2, r = i % 2, t = row + m * 16 + r * 8;
        float inverse = 1.0f / sum_of_row(total[m][r]);
        if (t >= last) continue;
        u64 at = (u64)t * (of.narrow ? padded(columns) : columns) + h * c.head_dim + lane % 4 * 2;
#pragma unroll
        for (u32 n = 0; n < CHANNELS / 8; n++, at += 8) {
            if (n * 8 + lane % 4 * 2 >= c.head_dim) break;
            float x = mixed[m][n][2 * r] * inverse, y = mixed[m][n][2 * r + 1] * inverse;
            if (of.narrow) *(u32 *)((u16 *)of.out + at) = pair_of(x, y);
            else *(float2 *)((float *)of.out + at) = make_float2(x, y);
        }
        if (h == of.heads - 1) pad(of.out, of.narrow, columns, t, lane % 4, 4);
    }
}

#define ATTEND(name, FORMAT, channels)                                                                                 \
    extern "C" __global__ void __launch_bounds__(128)                                                                  \
        attend_##name##_##channels(const void *q, u32 narrow_q, KEYS, u32 queries, u32 start, u32 window, void *out,   \
                                   u32 narrow, u32 heads, const u32 *tiles) {                                          \
        Heads of = {q, tiles, narrow_q, queries, start, window, narrow, heads, out};                                   \
        attend_tiles<FORMAT, channels>(of, GIVEN_KEYS);                                                                \
    }

ATTEND(bf16, CACHE_BF16, 64)
ATTEND(bf16, CACHE_BF16, 128)
ATTEND(int8, CACHE_INT8, 64)
ATTEND(int8, CACHE_INT8, 128)
