// Gradients of attention on tensor cores, for heads no wider than 128, rounded to bf16. See `ops::attend` for the
// maths, and `attend_gradient.cu` for the same without tiles.
//
// Everything is rounded into scratch first. A block of 8 warps then has 128 queries, or 128 keys; each warp 16 of
// them in registers. The other side comes by in tiles of 64: one is fetched while the other is used, 16 rows at a time.
#include "attend_gradient.cuh"

const u32 THREADS = 256;

// One call.
struct Heads {
    const u16 *q, *dy, *k, *v;
    const u32 *tiles;
    u32 heads, kv_heads, head_dim, window;
    float scale;
};
#define GIVEN Heads{q, dy, k, v, tiles, heads, kv_heads, head_dim, window, scale}

// Heads of q and dy (`query_rows` each), then of k and v, one behind the other: eight channels for each thread,
// those that a head lacks zero.
extern "C" __global__ void __launch_bounds__(256)
    attend_gradient_round(const float *q, const float *dy, const float *k, const float *v, u32 query_rows,
                          u32 key_rows, u32 head_dim, u32 width, uint4 *to) {
    u32 i = blockIdx.x * 256 + threadIdx.x, row = i / (width / 8), channel = i % (width / 8) * 8;
    if (row >= 2 * (query_rows + key_rows)) return;
    bool is_key = row >= 2 * query_rows;
    u32 of_kind = is_key ? row - 2 * query_rows : row, rows = is_key ? key_rows : query_rows;
    bool second = of_kind >= rows;
    const float *from = is_key ? (second ? v : k) : second ? dy : q;
    from += (u64)(second ? of_kind - rows : of_kind) * head_dim + channel;
    if (head_dim == width) {
        float4 a = ((const float4 *)from)[0], b = ((const float4 *)from)[1];
        to[i] = make_uint4(pair_of(a.x, a.y), pair_of(a.z, a.w), pair_of(b.x, b.y), pair_of(b.z, b.w));
        return;
    }
    u32 pairs[4];
#pragma unroll
    for (u32 j = 0; j < 4; j++)
        pairs[j] = channel + 2 * j < head_dim ? pair_of(from[2 * j], from[2 * j + 1]) : 0;
    to[i] = make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
}

// A head's rows `first..first + 64` start on their way, zeros from `end` on.
template <int WIDTH>
__device__ __forceinline__ void fetch(u8 *tile, const u16 *from, u32 heads, u32 head, u32 first, u32 end) {
    const u32 CHUNKS = WIDTH / 8, STEP = THREADS / CHUNKS;
    static_assert(STEP % 8 == 0, "chunks of all rows of a thread are exchanged alike");
    u32 row = threadIdx.x / CHUNKS, chunk = threadIdx.x % CHUNKS, rows = end - first;
    from += ((u64)(first + row) * heads + head) * WIDTH + chunk * 8;
    u8 *near = channel_chunk(tile, row, chunk);
#pragma unroll
    for (u32 i = 0; i < TILE / STEP; i++, from += heads * (STEP * WIDTH))
        start_copy(near + i * STEP * 128, from, row + i * STEP < rows);
}

// A head's rows `first..first + 16` as the left side of products, zeros from `end` on.
template <int WIDTH>
__device__ __forceinline__ void hold(u32 (&own)[WIDTH / 16][4], const u16 *from, u32 heads, u32 head, u32 first,
                                     u32 end) {
    u32 lane = threadIdx.x % 32;
#pragma unroll
    for (u32 i = 0; i < WIDTH / 4; i++) {
        u32 row = first + lane / 4 + i % 2 * 8, channel = i / 4 * 16 + i % 4 / 2 * 8 + lane % 4 * 2;
        own[i / 4][i % 4] = row < end ? *(const u32 *)(from + ((u64)row * heads + head) * WIDTH + channel) : 0;
    }
}

// Two products of 16 own rows and 16 rows of a tile, along the channels.
template <int WIDTH>
__device__ __forceinline__ void dots(float (&x)[2][4], float (&y)[2][4], const u32 (&own_x)[WIDTH / 16][4],
                                     const u32 (&own_y)[WIDTH / 16][4], u8 *tile_x, u8 *tile_y, u32 row) {
#pragma unroll
    for (u32 i = 0; i < 8; i++) x[i / 4][i % 4] = y[i / 4][i % 4] = 0.0f;
#pragma unroll
    for (u32 step = 0; step < WIDTH / 16; step++) {
        u32 b[4];
        along_channels(b, tile_x, row, step);
        multiply_tile(x[0], own_x[step], b[0], b[1]);
        multiply_tile(x[1], own_x[step], b[2], b[3]);
        along_channels(b, tile_y, row, step);
        multiply_tile(y[0], own_y[step], b[0], b[1]);
        multiply_tile(y[1], own_y[step], b[2], b[3]);
    }
}

// ---- queries ----

// Queries whose scores passed their reference get the highest as a new one. (Others do not: what a query comes out as
// must not depend on its neighbours.)
template <int WIDTH>
__device__ __forceinline__ void rescale(Running &at, float (&sums)[1][WIDTH / 8][4], const float (&scores)[2][4],
                                        float scale) {
#pragma unroll
    for (u32 r = 0; r < 2; r++) {
        float top = top_of_row(top_of(scores, r)) * scale;
        float next = top > at.reference[r] + SLACK ? top : at.reference[r];
        float shrink = quick_exp2(at.reference[r] - next);
        at.reference[r] = next, at.sum[r] *= shrink, at.turned[r] *= shrink;
#pragma unroll
        for (u32 i = 0; i < WIDTH / 4; i++) sums[0][i / 2][2 * r + i % 2] *= shrink;
    }
}

// dq of 128 queries, in one pass over the keys: p (dp - centre) times k. The logarithm of the sum of p, and the mean of
// dp, stay in `stats`.
template <int WIDTH>
__device__ __forceinline__ void queries(const Heads &of, const void *out, u32 narrow, void *dq, u32 narrow_dq,
                                        float4 *stats) {
    const u32 SIDE = TILE * WIDTH * 2;
    const u32 *tile = of.tiles + blockIdx.y * 3;
    u32 start = tile[0], first = tile[1], end = tile[2], h = blockIdx.x, kv = h / (of.heads / of.kv_heads);
    u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, own = first + warp * 16, row = own + lane / 4;
    u32 last = min(first + 128, end);
    u32 low = of.window && first + 1 - start > of.window ? first + 1 - of.window : start;
    low = start + (low - start) / TILE * TILE;
    float scale = of.scale * 1.44269504f;

    fetch<WIDTH>(dynamic_shared, of.k, of.kv_heads, kv, low, end);
    fetch<WIDTH>(dynamic_shared + SIDE, of.v, of.kv_heads, kv, low, end);
    u32 q[WIDTH / 16][4], dy[WIDTH / 16][4];
    hold<WIDTH>(q, of.q, of.heads, h, own, end);
    hold<WIDTH>(dy, of.dy, of.heads, h, own, end);
    Running at = {{LOWEST, LOWEST}};
    find_centres<WIDTH>(at, of.dy, out, narrow, of.heads, h, of.head_dim, row, end);
    float sums[1][WIDTH / 8][4] = {};
    u32 stage = 0;
    for (u32 keys = low; keys < last; keys += TILE, stage ^= 1) {
        u8 *near_k = dynamic_shared + stage * 2 * SIDE, *near_v = near_k + SIDE;
        wait_for_copies();
        __syncthreads();
        if (keys + TILE < last) {
            u8 *next = dynamic_shared + (stage ^ 1) * 2 * SIDE;
            fetch<WIDTH>(next, of.k, of.kv_heads, kv, keys + TILE, end);
            fetch<WIDTH>(next + SIDE, of.v, of.kv_heads, kv, keys + TILE, end);
        }
#pragma unroll 1
        for (u32 key = keys; key < keys + TILE; key += 16) {
            if (!any_seen(own, 16, key, of.window)) continue;
            float p[2][4], dp[2][4];
            dots<WIDTH>(p, dp, q, dy, near_k, near_v, key - keys);
            if (!all_seen(own, 16, key, 16, of.window)) {
#pragma unroll
                for (u32 i = 0; i < 8; i++) {
                    bool seen = sees(row + i % 4 / 2 * 8, key + i / 4 * 8 + lane % 4 * 2 + i % 2, of.window);
                    if (!seen) p[i / 4][i % 4] = MINUS_INFINITY;
                }
            }
            bool passed = top_of(p, 0) * scale > at.reference[0] + SLACK;
            passed = passed || top_of(p, 1) * scale > at.reference[1] + SLACK;
            if (__any_sync(0xffffffffu, passed)) rescale<WIDTH>(at, sums, p, scale);
#pragma unroll
            for (u32 i = 0; i < 8; i++) {
                u32 r = i % 4 / 2;
                float &score = p[i / 4][i % 4], &product = dp[i / 4][i % 4];
                score = quick_exp2(__fmaf_rn(score, scale, -at.reference[r]));
                product = score * (product - at.centre[r]);
                at.sum[r] += score;
                at.turned[r] += product;
            }
            u32 left[1][4];
            as_left(left[0], dp);
            mix<WIDTH, 1>(sums, left, near_k, key - keys);
        }
    }

    float factor[2];
#pragma unroll
    for (u32 r = 0; r < 2; r++) {
        float sum = sum_of_row(at.sum[r]), mean = sum_of_row(at.turned[r]) / sum;
        factor[r] = sees_one(row + r * 8, start, of.window) ? 0.0f : of.scale / sum;
        if (lane % 4 == 0 && row + r * 8 < end)
            stats[(u64)(row + r * 8) * of.heads + h] =
                make_float4(at.reference[r] + log2f(sum), mean + at.centre[r], 0.0f, 0.0f);
    }
    write<WIDTH>(sums[0], factor, dq, narrow_dq, of.heads, h, of.head_dim, own, end);
}

// ---- keys ----

// A tile of queries, one of dy, and what was found out about each query.
template <int WIDTH>
__device__ __forceinline__ void fetch_queries(const Heads &of, u8 *to, const float4 *stats, u32 h, u32 first, u32 end) {
    fetch<WIDTH>(to, of.q, of.heads, h, first, end);
    fetch<WIDTH>(to + TILE * WIDTH * 2, of.dy, of.heads, h, first, end);
    u32 row = threadIdx.x;
    if (row >= TILE) return;
    // Zeros do no harm: q and dy of such a row are zero too.
    bool there = first + row < end;
    start_copy(to + 2 * TILE * WIDTH * 2 + row * 16, stats + (u64)(first + row) * of.heads + h, there);
}

// dk and dv of 128 keys: queries that see them come by, one head of theirs after the other.
template <int WIDTH>
__device__ __forceinline__ void keys(const Heads &of, void *dk, void *dv, u32 narrow, const float4 *stats) {
    const u32 SIDE = TILE * WIDTH * 2, STAGE = 2 * SIDE + TILE * 16;
    const u32 *tile = of.tiles + blockIdx.y * 3;
    u32 first = tile[1], end = tile[2], kv = blockIdx.x, group = of.heads / of.kv_heads;
    u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, own = first + warp * 16, row = own + lane / 4;
    u32 last = of.window && end - first > of.window + 127 ? first + 127 + of.window : end;
    float scale = of.scale * 1.44269504f;

    u32 h = kv * group, query = first, stage = 0;
    fetch_queries<WIDTH>(of, dynamic_shared, stats, h, query, end);
    u32 k[WIDTH / 16][4], v[WIDTH / 16][4];
    hold<WIDTH>(k, of.k, of.kv_heads, kv, own, end);
    hold<WIDTH>(v, of.v, of.kv_heads, kv, own, end);
    float key_sums[1][WIDTH / 8][4] = {}, value_sums[1][WIDTH / 8][4] = {};
    while (h < (kv + 1) * group) {
        u8 *near_q = dynamic_shared + stage * STAGE, *near_dy = near_q + SIDE;
        const float4 *near_stats = (const float4 *)(near_dy + SIDE);
        wait_for_copies();
        __syncthreads();
        u32 queries = query;
        query += TILE, stage ^= 1;
        if (query >= last) query = first, h++;
        if (h < (kv + 1) * group) fetch_queries<WIDTH>(of, dynamic_shared + stage * STAGE, stats, h, query, end);
#pragma unroll 1
        for (u32 t = queries; t < queries + TILE; t += 16) {
            if (!any_seen(t, 16, own, of.window)) continue;
            float p[2][4], dp[2][4];
            dots<WIDTH>(p, dp, k, v, near_q, near_dy, t - queries);
            if (!all_seen(t, 16, own, 16, of.window)) {
#pragma unroll
                for (u32 i = 0; i < 8; i++) {
                    bool seen = sees(t + i / 4 * 8 + lane % 4 * 2 + i % 2, row + i % 4 / 2 * 8, of.window);
                    if (!seen) p[i / 4][i % 4] = MINUS_INFINITY;
                }
            }
#pragma unroll
            for (u32 i = 0; i < 8; i++) {
                u32 of_t = t - queries + i / 4 * 8 + lane % 4 * 2 + i % 2;
                float2 kept = *(const float2 *)&near_stats[of_t];
                float &score = p[i / 4][i % 4], &product = dp[i / 4][i % 4];
                score = quick_exp2(__fmaf_rn(score, scale, -kept.x));
                product = score * (product - kept.y) * of.scale;
            }
            u32 left[1][4];
            as_left(left[0], p);
            mix<WIDTH, 1>(value_sums, left, near_dy, t - queries);
            as_left(left[0], dp);
            mix<WIDTH, 1>(key_sums, left, near_q, t - queries);
        }
    }
    const float whole[2] = {1.0f, 1.0f};
    write<WIDTH>(key_sums[0], whole, dk, narrow, of.kv_heads, kv, of.head_dim, own, end);
    write<WIDTH>(value_sums[0], whole, dv, narrow, of.kv_heads, kv, of.head_dim, own, end);
}

#define GRADIENTS(width)                                                                                               \
    extern "C" __global__ void __launch_bounds__(256)                                                                  \
        attend_gradient_queries_##width(HEADS, const void *out, u32 narrow, void *dq, u32 narrow_dq, float4 *stats) {  \
        queries<width>(GIVEN, out, narrow, dq, narrow_dq, stats);                                                      \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(256)                                                                  \
        attend_gradient_keys_##width(HEADS, void *dk, void *dv, u32 narrow, const float4 *stats) {                     \
        keys<width>(GIVEN, dk, dv, narrow, stats);                                                                     \
    }

GRADIENTS(64)
GRADIENTS(128)
