// Attention over bf16 keys by warpgroups, for heads of more than 64 channels: each of a block's two takes 64 queries
// over the same keys, with a running reference and sum for every query.
//
// The queries stay in shared memory, and beside them two tiles of 64 keys and values: one is fetched while the other is
// used. Few registers, so that a multiprocessor has two blocks: one finds its weights while the other multiplies.
#include "keys.cuh"
#include "warpgroup.cuh"

const u32 CHANNELS = 128, THREADS = 256, SIDE = TILE * CHANNELS * 2;
// How far (in powers of two) scores may pass their reference before sums are scaled to a new one.
#define SLACK 8.0f

// What a block of queries has: two heads that share their keys, with the same 64 rows of each, or 128 rows of one where
// such heads are odd in number.
struct Rows {
    // Of the block; then of this warpgroup and of this warp, the first.
    u32 of_block, of_group, of_warp;
    u32 group, head;
};

__device__ __forceinline__ Rows own_rows(u32 heads_of_keys) {
    u32 warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0), group = warp / 4;
    bool paired = heads_of_keys % 2 == 0;
    u32 of_group = paired ? 0 : group * 64;
    u32 head = paired ? blockIdx.x * 2 + group : blockIdx.x;
    return Rows{paired ? 64u : 128u, of_group, of_group + warp % 4 * 16, group, head};
}

// Keys and values of a head from position `first` on, zeros from `end` on.
__device__ __forceinline__ void fetch(const Keys &c, u8 *to, u32 head, u32 first, u32 end) {
    const u32 CHUNKS = CHANNELS / 8, STEP = THREADS / CHUNKS;
    static_assert(STEP % 8 == 0, "chunks of all rows of a thread are exchanged alike");
    u32 row = threadIdx.x / CHUNKS, chunk = threadIdx.x % CHUNKS;
    bool inside = chunk * 8 < c.width();
    u64 at = c.row(head, first + row) + chunk * 8;
    const u16 *keys = (const u16 *)c.keys + at, *values = (const u16 *)c.values + at;
    u8 *near = channel_chunk(to, row, chunk);
#pragma unroll
    for (u32 i = 0; i < TILE; i += STEP) {
        bool there = inside && first + row + i < end;
        start_copy(near + i * 128, keys + i * c.of_position, there);
        start_copy(near + SIDE + i * 128, values + i * c.of_position, there);
    }
}

// 64 queries of a head from row `first` on, rounded, by the threads of their warpgroup; zeros from `last` on and beyond
// the head. Narrow ones start on their way.
__device__ __forceinline__ void bring_queries(u8 *to, const void *q, u32 narrow, u32 heads, u32 h, u32 head_dim,
                                              u32 first, u32 last) {
    u32 chunk = threadIdx.x % 16;
#pragma unroll
    for (u32 row = threadIdx.x % 128 / 16; row < TILE; row += 8) {
        bool there = first + row < last && chunk * 8 < head_dim;
        u64 at = ((u64)(first + row) * heads + h) * head_dim + chunk * 8;
        if (narrow) {
            start_copy(channel_chunk(to, row, chunk), (const u16 *)q + at, there);
            continue;
        }
        float x[8] = {};
        if (there) get_eight((const float *)q + at, x);
        uint4 eight = make_uint4(pair_of(x[0], x[1]), pair_of(x[2], x[3]), pair_of(x[4], x[5]), pair_of(x[6], x[7]));
        *(uint4 *)channel_chunk(to, row, chunk) = eight;
    }
}

// Of two queries of a thread: what their sums are relative to, and the thread's part of the sum of weights.
struct Running {
    float reference[2], total[2];
};

// Queries whose scores passed their reference get the highest as a new one. (Others do not: what a query comes out as
// must not depend on its neighbours.)
__device__ __forceinline__ void rescale(Running &at, float (&mixed)[CHANNELS / 8][4], const float (&top)[2]) {
#pragma unroll
    for (u32 r = 0; r < 2; r++) {
        float highest = top_of_row(top[r]);
        float next = highest > at.reference[r] + SLACK ? highest : at.reference[r];
        float shrink = quick_exp2(at.reference[r] - next);
        at.reference[r] = next, at.total[r] *= shrink;
#pragma unroll
        for (u32 n = 0; n < CHANNELS / 8; n++) mixed[n][2 * r] *= shrink, mixed[n][2 * r + 1] *= shrink;
    }
}

// Scores of this warp's queries, from `query` on, and the keys from `key` on, into weights.
__device__ __forceinline__ void weigh(float (&scores)[TILE / 8][4], Running &at, float (&mixed)[CHANNELS / 8][4],
                                      u32 query, u32 key, u32 window, float scale) {
    hide_unseen(scores, query, key, window);
    float top[2];
    tops_of(top, scores);
    top[0] *= scale, top[1] *= scale;
    bool passed = top[0] > at.reference[0] + SLACK || top[1] > at.reference[1] + SLACK;
    if (__any_sync(0xffffffffu, passed)) rescale(at, mixed, top);
#pragma unroll
    for (u32 i = 0; i < TILE / 2; i++) {
        float &score = scores[i / 4][i % 4];
        score = quick_exp2(__fmaf_rn(score, scale, -at.reference[i % 4 / 2]));
        at.total[i % 4 / 2] += score;
    }
}

// Query `row` is at `start + row`. `tiles` has for each block its sample's first position, its own first row, and
// the row after the sample's last; without it all rows see keys from position 0 on.
extern "C" __global__ void __launch_bounds__(THREADS, 2)
    attend_warpgroup(const void *q, u32 narrow_q, KEYS, u32 queries, u32 start, u32 window, void *out, u32 narrow,
                     u32 heads, const u32 *tiles) {
    Keys c = GIVEN_KEYS;
    Rows own = own_rows(heads / kv_heads);
    // The longest first: late blocks are short ones.
    u32 sample = 0, first = (gridDim.y - 1 - blockIdx.y) * own.of_block, last = queries;
    if (tiles) sample = tiles[blockIdx.y * 3], first = tiles[blockIdx.y * 3 + 1], last = tiles[blockIdx.y * 3 + 2];
    u32 h = own.head, head = h / (heads / kv_heads), lane = threadIdx.x % 32;
    u32 position = start + first, end = min(position + own.of_block, start + last);
    u32 low = window && position + 1 > sample + window ? position + 1 - window : sample;
    low = sample + (low - sample) / TILE * TILE;

    u8 *near_q = aligned_shared + own.group * SIDE, *ring = aligned_shared + 2 * SIDE;
    fetch(c, ring, head, low, end);
    bring_queries(near_q, q, narrow_q, heads, h, head_dim, first + own.of_group, last);
    u32 query = first + own.of_warp;
    float scale = 1.44269504f / sqrtf((float)head_dim);
    Running at = {{LOWEST, LOWEST}};
    float mixed[CHANNELS / 8][4] = {};
    u32 stage = 0;
#pragma unroll 1
    for (u32 key = low; key < end; key += TILE, stage ^= 1) {
        u8 *near = ring + stage * 2 * SIDE;
        wait_for_copies();
        show_to_products();
        __syncthreads();
        if (key + TILE < end) fetch(c, ring + (stage ^ 1) * 2 * SIDE, head, key + TILE, end);
        float scores[TILE / 8][4];
        begin_products();
        start_dots(scores, near_q, near);
        wait_for_products_but<0>(scores);
        weigh(scores, at, mixed, start + query, key, window, scale);
        u32 weights[TILE / 16][4];
        as_left(weights, scores);
        begin_products();
        start_mixing(mixed, weights, near + SIDE);
        end_products();
        wait_for_products_but<0>(mixed);
    }

#pragma unroll
    for (u32 r = 0; r < 2; r++) {
        u32 t = query + lane / 4 + r * 8, columns = heads * head_dim;
        float inverse = 1.0f / sum_of_row(at.total[r]);
        if (t >= last) continue;
        u64 to = (u64)t * (narrow ? padded(columns) : columns) + h * head_dim + lane % 4 * 2;
#pragma unroll
        for (u32 n = 0; n < CHANNELS / 8; n++, to += 8) {
            if (n * 8 >= head_dim) break;
            float x = mixed[n][2 * r] * inverse, y = mixed[n][2 * r + 1] * inverse;
            if (narrow) *(u32 *)((u16 *)out + to) = pair_of(x, y);
            else *(float2 *)((float *)out + to) = make_float2(x, y);
        }
        if (h == heads - 1) pad(out, narrow, columns, t, lane % 4, 4);
    }
}
