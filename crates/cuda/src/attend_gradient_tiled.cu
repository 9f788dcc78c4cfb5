// Gradients of attention on tensor cores, for heads no wider than 128, rounded to bf16. See `ops::attend` for the
// maths, and `attend_gradient.cu` for the same without tiles.
//
// A block of 4 warps has a tile of 64 queries, or of 64 keys; each warp 16 of them. The other side comes by, 64
// at a time. Tiles of 64 rows stand in shared memory as WIDTH / 64 tiles of 64 by 64.
#include "tensor_core.cuh"

const u32 SQUARE = 64 * 128; // bytes: 64 rows of 64 bf16

// One call. A tile is a sample's first row, the row after its last, and the tile's first row.
struct Heads {
    const float *q, *k, *v, *dy;
    const u32 *tiles;
    u32 heads, kv_heads, head_dim, window;
    float scale;
};

#define HEADS                                                                                                          \
    const float *q, const float *k, const float *v, const float *dy, const u32 *tiles, u32 heads, u32 kv_heads,        \
        u32 head_dim, u32 window, float scale
#define GIVEN Heads{q, k, v, dy, tiles, heads, kv_heads, head_dim, window, scale}

// A head of rows `first..`, rounded, zeros from `end` on and beside the head.
template <int WIDTH>
__device__ __forceinline__ void fetch(u8 *tile, const float *from, u32 heads, u32 head, u32 head_dim, u32 first,
                                      u32 end) {
#pragma unroll 4
    for (u32 i = threadIdx.x; i < 64 * WIDTH / 2; i += 128) {
        u32 row = i / (WIDTH / 2), column = i % (WIDTH / 2) * 2;
        const float *place = from + ((u64)(first + row) * heads + head) * head_dim + column;
        bool there = first + row < end;
        u32 pair = pair_of(there && column < head_dim ? place[0] : 0.0f,
                           there && column + 1 < head_dim ? place[1] : 0.0f);
        *(u32 *)(chunk_at(tile + column / 64 * SQUARE, row, column % 64 / 8) + column % 8 * 2) = pair;
    }
}

// out[16 x 64] = a[16 rows of this warp] b[64 rows]^T along the head.
template <int WIDTH> __device__ __forceinline__ void scores(float (&out)[8][4], u8 *a, u8 *b) {
    u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
    for (u32 i = 0; i < 8; i++) out[i][0] = out[i][1] = out[i][2] = out[i][3] = 0.0f;
#pragma unroll
    for (u32 c = 0; c < WIDTH; c += 16) {
        u32 of_a[4], of_b[4], chunk = c % 64 / 8;
        u8 *a_tile = a + c / 64 * SQUARE, *b_tile = b + c / 64 * SQUARE;
        load_tiles(of_a, chunk_at(a_tile, warp * 16 + (lane & 15u), chunk + (lane >> 4)));
#pragma unroll
        for (u32 n = 0; n < 4; n++) {
            load_tiles(of_b, chunk_at(b_tile, n * 16 + (lane & 7u) + (lane >> 4) * 8, chunk + (lane >> 3 & 1u)));
            multiply_tile(out[2 * n], of_a, of_b[0], of_b[1]);
            multiply_tile(out[2 * n + 1], of_a, of_b[2], of_b[3]);
        }
    }
}

// sums[16 x WIDTH] += a[16 x 64], rounded, times b[64 rows].
template <int WIDTH>
__device__ __forceinline__ void mix(float (&sums)[WIDTH / 8][4], const float (&a)[8][4], u8 *b) {
    u32 lane = threadIdx.x % 32;
#pragma unroll
    for (u32 k = 0; k < 4; k++) {
        // Results of a product lie as the next one wants its left side.
        u32 of_a[4] = {pair_of(a[2 * k][0], a[2 * k][1]), pair_of(a[2 * k][2], a[2 * k][3]),
                       pair_of(a[2 * k + 1][0], a[2 * k + 1][1]), pair_of(a[2 * k + 1][2], a[2 * k + 1][3])};
#pragma unroll
        for (u32 c = 0; c < WIDTH; c += 16) {
            u32 of_b[4];
            u8 *tile = b + c / 64 * SQUARE;
            load_tiles_transposed(
                of_b, chunk_at(tile, k * 16 + (lane & 7u) + (lane >> 3 & 1u) * 8, c % 64 / 8 + (lane >> 4)));
            multiply_tile(sums[c / 8], of_a, of_b[0], of_b[1]);
            multiply_tile(sums[c / 8 + 1], of_a, of_b[2], of_b[3]);
        }
    }
}

// 16 rows of this warp, from `first` on, of a head; those before `end` are there.
template <int WIDTH>
__device__ __forceinline__ void write(const float (&sums)[WIDTH / 8][4], float *to, u32 heads, u32 head, u32 head_dim,
                                      u32 first, u32 end) {
    u32 lane = threadIdx.x % 32;
#pragma unroll
    for (u32 i = 0; i < WIDTH / 8 * 4; i++) {
        u32 row = first + lane / 4 + i % 4 / 2 * 8, column = i / 4 * 8 + lane % 4 * 2 + i % 2;
        if (row < end && column < head_dim) to[((u64)row * heads + head) * head_dim + column] = sums[i / 4][i % 4];
    }
}

__device__ __forceinline__ bool sees(const Heads &of, u32 query, u32 key, u32 end) {
    return key <= query && query < end && (of.window == 0 || query - key < of.window);
}

// The four threads that share a row.
__device__ __forceinline__ float sum_of_row(float x) {
    x += __shfl_xor_sync(0xffffffffu, x, 1);
    return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

__device__ __forceinline__ float top_of_row(float x) {
    float other = __shfl_xor_sync(0xffffffffu, x, 1);
    x = other > x ? other : x;
    other = __shfl_xor_sync(0xffffffffu, x, 2);
    return other > x ? other : x;
}

// dq of a tile of queries. Keys come by twice: for the top, sum and mean of each query, which stay in `stats`, and
// then for dS.
template <int WIDTH> __device__ __forceinline__ void queries(const Heads &of, float *dq, float *stats) {
    u8 *near_q = dynamic_shared, *near_dy = near_q + WIDTH / 64 * SQUARE;
    u8 *near_k = near_dy + WIDTH / 64 * SQUARE, *near_v = near_k + WIDTH / 64 * SQUARE;
    const u32 *tile = of.tiles + blockIdx.x * 3;
    u32 start = tile[0], end = tile[1], first = tile[2], h = blockIdx.y, kv = h / (of.heads / of.kv_heads);
    u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, row = first + warp * 16 + lane / 4;
    u32 last = first + 64 < end ? first + 64 : end;
    u32 low = of.window > 0 && first + 1 - start > of.window ? first + 1 - of.window : start;
    low = start + (low - start) / 64 * 64;
    fetch<WIDTH>(near_q, of.q, of.heads, h, of.head_dim, first, end);
    fetch<WIDTH>(near_dy, of.dy, of.heads, h, of.head_dim, first, end);
    const float NONE = -__uint_as_float(0x7f800000);
    float top[2] = {NONE, NONE}, sum[2] = {}, mean[2] = {};
    float p[8][4], dp[8][4], sums[WIDTH / 8][4] = {};
    for (u32 pass = 0; pass < 2; pass++) {
        for (u32 keys = low; keys < last; keys += 64) {
            __syncthreads();
            fetch<WIDTH>(near_k, of.k, of.kv_heads, kv, of.head_dim, keys, end);
            fetch<WIDTH>(near_v, of.v, of.kv_heads, kv, of.head_dim, keys, end);
            __syncthreads();
            scores<WIDTH>(p, near_q, near_k);
            scores<WIDTH>(dp, near_dy, near_v);
            float now[2] = {top[0], top[1]};
#pragma unroll
            for (u32 i = 0; i < 32; i++) {
                float &score = p[i / 4][i % 4];
                u32 which = i % 4 / 2, key = keys + i / 4 * 8 + lane % 4 * 2 + i % 2;
                score = sees(of, row + which * 8, key, end) ? score * of.scale : NONE;
                now[which] = score > now[which] ? score : now[which];
            }
            if (pass == 0) {
#pragma unroll
                for (u32 which = 0; which < 2; which++) {
                    now[which] = top_of_row(now[which]);
                    float shrink = quick_exp(top[which] - (now[which] == NONE ? 0.0f : now[which]));
                    sum[which] *= shrink, mean[which] *= shrink, top[which] = now[which];
                }
            }
            // Where nothing was seen yet, e^(-infinity - 0) = 0.
            float base[2] = {top[0] == NONE ? 0.0f : top[0], top[1] == NONE ? 0.0f : top[1]};
#pragma unroll
            for (u32 i = 0; i < 32; i++) {
                float &score = p[i / 4][i % 4], &product = dp[i / 4][i % 4];
                u32 which = i % 4 / 2;
                score = quick_exp(score - base[which]);
                if (pass == 0) {
                    sum[which] += score;
                    mean[which] = __fmaf_rn(score, product, mean[which]);
                } else {
                    product = score * sum[which] * (product - mean[which]) * of.scale;
                }
            }
            if (pass == 1) mix<WIDTH>(sums, dp, near_k);
        }
        if (pass == 1) break;
#pragma unroll
        for (u32 which = 0; which < 2; which++) {
            sum[which] = 1.0f / sum_of_row(sum[which]);
            mean[which] = sum_of_row(mean[which]) * sum[which];
            float *kept = stats + ((u64)(row + which * 8) * of.heads + h) * 3;
            if (row + which * 8 < end && lane % 4 == 0) kept[0] = top[which], kept[1] = sum[which], kept[2] = mean[which];
        }
    }
    write<WIDTH>(sums, dq, of.heads, h, of.head_dim, first + warp * 16, end);
}

// dk and dv of a tile of keys: queries that see them come by, one head of theirs after the other.
template <int WIDTH> __device__ __forceinline__ void keys(const Heads &of, float *dk, float *dv, const float *stats) {
    __shared__ float near_stats[64][3];
    u8 *near_k = dynamic_shared, *near_v = near_k + WIDTH / 64 * SQUARE;
    u8 *near_q = near_v + WIDTH / 64 * SQUARE, *near_dy = near_q + WIDTH / 64 * SQUARE;
    const u32 *tile = of.tiles + blockIdx.x * 3;
    u32 end = tile[1], first = tile[2], kv = blockIdx.y, group = of.heads / of.kv_heads;
    u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, row = first + warp * 16 + lane / 4;
    u32 last = of.window > 0 && end - first > of.window + 63 ? first + 63 + of.window : end;
    fetch<WIDTH>(near_k, of.k, of.kv_heads, kv, of.head_dim, first, end);
    fetch<WIDTH>(near_v, of.v, of.kv_heads, kv, of.head_dim, first, end);
    float p[8][4], dp[8][4], key_sums[WIDTH / 8][4] = {}, value_sums[WIDTH / 8][4] = {};
    for (u32 h = kv * group; h < (kv + 1) * group; h++) {
        for (u32 query = first; query < last; query += 64) {
            __syncthreads();
            fetch<WIDTH>(near_q, of.q, of.heads, h, of.head_dim, query, end);
            fetch<WIDTH>(near_dy, of.dy, of.heads, h, of.head_dim, query, end);
            for (u32 i = threadIdx.x; i < 192; i += 128)
                near_stats[i / 3][i % 3] = query + i / 3 < end ? stats[((u64)(query + i / 3) * of.heads + h) * 3 + i % 3] : 0.0f;
            __syncthreads();
            scores<WIDTH>(p, near_k, near_q);
            scores<WIDTH>(dp, near_v, near_dy);
#pragma unroll
            for (u32 i = 0; i < 32; i++) {
                u32 column = i / 4 * 8 + lane % 4 * 2 + i % 2;
                float &score = p[i / 4][i % 4], &product = dp[i / 4][i % 4];
                const float *kept = near_stats[column];
                bool seen = sees(of, query + column, row + i % 4 / 2 * 8, end);
                score = seen ? quick_exp(score * of.scale - kept[0]) * kept[1] : 0.0f;
                product = score * (product - kept[2]) * of.scale;
            }
            mix<WIDTH>(value_sums, p, near_dy);
            mix<WIDTH>(key_sums, dp, near_q);
        }
    }
    write<WIDTH>(key_sums, dk, of.kv_heads, kv, of.head_dim, first + warp * 16, end);
    write<WIDTH>(value_sums, dv, of.kv_heads, kv, of.head_dim, first + warp * 16, end);
}

extern "C" __global__ void __launch_bounds__(128) attend_gradient_queries_64(HEADS, float *dq, float *stats) {
    queries<64>(GIVEN, dq, stats);
}
extern "C" __global__ void __launch_bounds__(128) attend_gradient_queries_128(HEADS, float *dq, float *stats) {
    queries<128>(GIVEN, dq, stats);
}
extern "C" __global__ void __launch_bounds__(128)
    attend_gradient_keys_64(HEADS, float *dk, float *dv, const float *stats) {
    keys<64>(GIVEN, dk, dv, stats);
}
extern "C" __global__ void __launch_bounds__(128)
    attend_gradient_keys_128(HEADS, float *dk, float *dv, const float *stats) {
    keys<128>(GIVEN, dk, dv, stats);
}
