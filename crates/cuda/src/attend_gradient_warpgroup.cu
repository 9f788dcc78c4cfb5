// Gradients of attention by warpgroups, for heads of more than 64 channels, rounded to bf16: the maths of
// `attend_gradient_tiled.cu`, which rounds everything for these kernels too.
//
// A warpgroup has 64 queries, or 64 keys, in shared memory. The other side comes by in tiles of 64 rows, of which three
// stand there: products of the last one still run while those of this one begin and the next is fetched. Queries are in
// blocks of one warpgroup, of which a multiprocessor has two; keys, which see many more tiles, in blocks of two.
#include "attend_gradient.cuh"
#include "warpgroup.cuh"

const u32 WIDTH = 128, SIDE = TILE * WIDTH * 2;

// A head's rows `first..first + 64` start on their way, zeros from `end` on.
template <int THREADS>
__device__ __forceinline__ void fetch(u8 *tile, const u16 *from, u32 heads, u32 head, u32 first, u32 end) {
    const u32 CHUNKS = WIDTH / 8, STEP = THREADS / CHUNKS;
    u32 row = threadIdx.x / CHUNKS, chunk = threadIdx.x % CHUNKS;
    from += ((u64)(first + row) * heads + head) * WIDTH + chunk * 8;
    u8 *near = channel_chunk(tile, row, chunk);
#pragma unroll
    for (u32 i = 0; i < TILE / STEP; i++, from += heads * (STEP * WIDTH))
        start_copy(near + i * STEP * 128, from, first + row + i * STEP < end);
}

// ---- queries ----

// Queries whose scores passed their reference get the highest as a new one. (Others do not: what a query comes out as
// must not depend on its neighbours.) Gives what sums are to be multiplied by, and whether any of the warp's are.
__device__ __forceinline__ bool raise(Running &at, float (&shrink)[2], const float (&scores)[8][4], float scale) {
    float top[2];
    tops_of(top, scores);
    bool here = top[0] * scale > at.reference[0] + SLACK || top[1] * scale > at.reference[1] + SLACK;
    if (!__any_sync(0xffffffffu, here)) return false;
#pragma unroll
    for (u32 r = 0; r < 2; r++) {
        float highest = top_of_row(top[r]) * scale;
        float next = highest > at.reference[r] + SLACK ? highest : at.reference[r];
        shrink[r] = quick_exp2(at.reference[r] - next);
        at.reference[r] = next, at.sum[r] *= shrink[r], at.turned[r] *= shrink[r];
    }
    return true;
}

// Scores and dp of a tile, under way, into p and p (dp - centre); BEHIND is how many groups of products follow them.
template <int BEHIND>
__device__ __forceinline__ void turn(Running &at, float (&sums)[16][4], float (&p)[8][4], float (&dp)[8][4], u32 own,
                                     u32 key, u32 window, float scale) {
    wait_for_products_but<BEHIND + 1>(p);
    hide_unseen(p, own, key, window);
    float shrink[2];
    bool any = raise(at, shrink, p, scale);
#pragma unroll
    for (u32 i = 0; i < TILE / 2; i++)
        p[i / 4][i % 4] = quick_exp2(__fmaf_rn(p[i / 4][i % 4], scale, -at.reference[i % 4 / 2]));
    settle(p);
    wait_for_products_but<BEHIND>(dp);
#pragma unroll
    for (u32 i = 0; i < TILE / 2; i++) {
        u32 r = i % 4 / 2;
        float &weight = p[i / 4][i % 4], &product = dp[i / 4][i % 4];
        product = weight * (product - at.centre[r]);
        at.sum[r] += weight;
        at.turned[r] += product;
    }
    settle(dp);
    wait_for_products_but<0>(sums);
    if (!any) return;
#pragma unroll
    for (u32 i = 0; i < WIDTH / 2; i++) sums[i / 4][i % 4] *= shrink[i % 4 / 2];
}

// dq of 64 queries in one pass over the keys: p (dp - centre) times k. The logarithm of the sum of p, and the mean of dp,
// stay in `stats`.
extern "C" __global__ void __launch_bounds__(128, 2)
    attend_gradient_queries_warpgroup(HEADS, const void *out, u32 narrow, void *dq, u32 narrow_dq, float4 *stats) {
    const u32 *tile = tiles + blockIdx.y * 3;
    u32 start = tile[0], first = tile[1], end = tile[2], last = min(first + TILE, end);
    u32 h = blockIdx.x, kv = h / (heads / kv_heads), lane = threadIdx.x % 32;
    u32 own = first + __shfl_sync(0xffffffffu, threadIdx.x / 32, 0) * 16, row = own + lane / 4;
    u32 low = window && first + 1 - start > window ? first + 1 - window : start;
    low = start + (low - start) / TILE * TILE;
    float base_two = scale * 1.44269504f;

    // Three tiles of keys, but two of values: nothing is mixed with those.
    u8 *own_q = aligned_shared, *own_dy = own_q + SIDE, *near_k = own_dy + SIDE, *near_v = near_k + 3 * SIDE;
    auto fetch_keys = [&](u32 to_k, u32 to_v, u32 key) {
        if (key < last) {
            fetch<128>(near_k + to_k * SIDE, k, kv_heads, kv, key, end);
            fetch<128>(near_v + to_v * SIDE, v, kv_heads, kv, key, end);
        }
        end_copies();
    };
    fetch<128>(own_q, q, heads, h, first, end);
    fetch<128>(own_dy, dy, heads, h, first, end);
    fetch_keys(0, 0, low);
    fetch_keys(1, 1, low + TILE);

    Running at = {{LOWEST, LOWEST}};
    find_centres<WIDTH>(at, dy, out, narrow, heads, h, head_dim, row, end);
    float sums[16][4] = {}, p[8][4], dp[8][4];
    u32 left[TILE / 16][4], at_k = 0, at_v = 0;
    wait_for_copies_but<1>();
    show_to_products();
    __syncthreads();
    begin_products();
    start_dots(p, own_q, near_k);
    start_dots(dp, own_dy, near_v);
    turn<0>(at, sums, p, dp, own, low, window, base_two);
    as_left(left, dp);
    for (u32 key = low + TILE; key < last; key += TILE) {
        u8 *mixed = near_k + at_k * SIDE;
        at_k = at_k == 2 ? 0 : at_k + 1, at_v ^= 1;
        wait_for_copies();
        show_to_products();
        __syncthreads();
        fetch_keys(at_k == 2 ? 0 : at_k + 1, at_v ^ 1, key + TILE);
        begin_products();
        start_dots(p, own_q, near_k + at_k * SIDE);
        start_dots(dp, own_dy, near_v + at_v * SIDE);
        start_mixing(sums, left, mixed);
        end_products();
        turn<1>(at, sums, p, dp, own, key, window, base_two);
        as_left(left, dp);
    }
    begin_products();
    start_mixing(sums, left, near_k + at_k * SIDE);
    end_products();
    wait_for_products_but<0>(sums);
    wait_for_copies();

    float factor[2];
#pragma unroll
    for (u32 r = 0; r < 2; r++) {
        float sum = sum_of_row(at.sum[r]), mean = sum_of_row(at.turned[r]) / sum;
        factor[r] = sees_one(row + r * 8, start, window) ? 0.0f : scale / sum;
        if (lane % 4 == 0 && row + r * 8 < end)
            stats[(u64)(row + r * 8) * heads + h] =
                make_float4(at.reference[r] + log2f(sum), mean + at.centre[r], 0.0f, 0.0f);
    }
    write<WIDTH>(sums, factor, dq, narrow_dq, heads, h, head_dim, own, end);
}

// ---- keys ----

const u32 THREADS = 256;
// A tile of two operands, and what is known of its rows.
const u32 STAGE = 2 * SIDE + TILE * 16;

// Scores and dp of a tile, under way, into p and ds (but for its scale); BEHIND is how many groups follow them.
template <int BEHIND>
__device__ __forceinline__ void turn(float (&p)[8][4], float (&dp)[8][4], const float4 *stats, u32 own, u32 query,
                                     u32 window, float scale) {
    u32 lane = threadIdx.x % 32, row = own + lane / 4;
    wait_for_products_but<BEHIND + 1>(p);
    if (!all_seen(query, TILE, own, 16, window)) {
#pragma unroll
        for (u32 i = 0; i < TILE / 2; i++) {
            bool seen = sees(query + i / 4 * 8 + lane % 4 * 2 + i % 2, row + i % 4 / 2 * 8, window);
            if (!seen) p[i / 4][i % 4] = MINUS_INFINITY;
        }
    }
#pragma unroll
    for (u32 i = 0; i < TILE / 2; i++) {
        float kept = stats[i / 4 * 8 + lane % 4 * 2 + i % 2].x;
        p[i / 4][i % 4] = quick_exp2(__fmaf_rn(p[i / 4][i % 4], scale, -kept));
    }
    settle(p);
    wait_for_products_but<BEHIND>(dp);
#pragma unroll
    for (u32 i = 0; i < TILE / 2; i++) {
        float mean = stats[i / 4 * 8 + lane % 4 * 2 + i % 2].y;
        dp[i / 4][i % 4] = p[i / 4][i % 4] * (dp[i / 4][i % 4] - mean);
    }
    settle(dp);
}

// Blocks that share their keys leave their sums in `parts`; the last of them gets those of all, added in order.
// `tickets` says how many are done, zero before and after.
__device__ __forceinline__ bool add_shares(float (&a)[16][4], float (&b)[16][4], float4 *parts, u32 *tickets) {
    u32 block = blockIdx.y * gridDim.x + blockIdx.x, *counter = tickets + block;
    float4 *of_block = parts + (u64)block * gridDim.z * (32 * THREADS) + threadIdx.x;
    float4 *mine = of_block + blockIdx.z * (32 * THREADS);
#pragma unroll
    for (u32 i = 0; i < 16; i++) {
        mine[i * THREADS] = make_float4(a[i][0], a[i][1], a[i][2], a[i][3]);
        mine[(i + 16) * THREADS] = make_float4(b[i][0], b[i][1], b[i][2], b[i][3]);
    }
    // What this block wrote is there before its ticket is; who draws the last one sees it all.
    u32 *last = (u32 *)aligned_shared;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        *last = atomicAdd(counter, 1u) == gridDim.z - 1;
        if (*last) *counter = 0;
        __threadfence();
    }
    __syncthreads();
    if (!*last) return false;
#pragma unroll
    for (u32 i = 0; i < 64; i++) a[i / 4][i % 4] = b[i / 4][i % 4] = 0.0f;
#pragma unroll 1
    for (u32 share = 0; share < gridDim.z; share++, of_block += 32 * THREADS) {
#pragma unroll
        for (u32 i = 0; i < 16; i++) {
            float4 x = of_block[i * THREADS], y = of_block[(i + 16) * THREADS];
            a[i][0] += x.x, a[i][1] += x.y, a[i][2] += x.z, a[i][3] += x.w;
            b[i][0] += y.x, b[i][1] += y.y, b[i][2] += y.z, b[i][3] += y.w;
        }
    }
    return true;
}

// dk and dv of 128 keys: queries that see them come by, one head of theirs after the other. Blocks may share the heads.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
    attend_gradient_keys_warpgroup(HEADS, void *dk, void *dv, u32 narrow, const float4 *stats, float4 *parts, u32 *tickets) {
    const u32 *tile = tiles + blockIdx.y * 3;
    u32 first = tile[1], end = tile[2], kv = blockIdx.x, group = heads / kv_heads;
    u32 warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0), own = first + warp * 16;
    u32 last = window && end - first > window + 127 ? first + 127 + window : end;
    float base_two = scale * 1.44269504f;

    u8 *own_k = aligned_shared + warp / 4 * (2 * SIDE), *own_v = own_k + SIDE, *ring = aligned_shared + 4 * SIDE;
#pragma unroll
    for (u32 half = 0; half < 2; half++) {
        fetch<THREADS>(aligned_shared + half * 2 * SIDE, k, kv_heads, kv, first + 64 * half, end);
        fetch<THREADS>(aligned_shared + half * 2 * SIDE + SIDE, v, kv_heads, kv, first + 64 * half, end);
    }
    // Tile after tile of the queries of one head after the other.
    u32 tiles_of_head = (last - first + TILE - 1) / TILE, share = group / gridDim.z, count = tiles_of_head * share;
    u32 h = kv * group + blockIdx.z * share, query = first, fetched = 0;
    auto fetch_next = [&](u32 stage) {
        u8 *to = ring + stage * STAGE;
        if (fetched < count) {
            fetch<THREADS>(to, q, heads, h, query, end);
            fetch<THREADS>(to + SIDE, dy, heads, h, query, end);
            // Zeros do no harm: q and dy of such a row are zero too.
            u32 t = query + threadIdx.x;
            if (threadIdx.x < TILE) start_copy(to + 2 * SIDE + threadIdx.x * 16, stats + (u64)t * heads + h, t < end);
        }
        fetched++, query += TILE;
        if (query >= last) query = first, h++;
        end_copies();
    };
    fetch_next(0);
    fetch_next(1);

    float key_sums[16][4] = {}, value_sums[16][4] = {}, p[8][4], dp[8][4];
    u32 left[2][TILE / 16][4], stage = 0, queries = first;
    wait_for_copies_but<1>();
    show_to_products();
    __syncthreads();
    begin_products();
    start_dots(p, own_k, ring);
    start_dots(dp, own_v, ring + SIDE);
    turn<0>(p, dp, (const float4 *)(ring + 2 * SIDE), own, queries, window, base_two);
    as_left(left[0], p);
    as_left(left[1], dp);
    for (u32 i = 1; i < count; i++) {
        u8 *mixed = ring + stage * STAGE;
        stage = stage == 2 ? 0 : stage + 1;
        u8 *near = ring + stage * STAGE;
        queries += TILE;
        if (queries >= last) queries = first;
        wait_for_copies();
        show_to_products();
        __syncthreads();
        fetch_next(stage == 2 ? 0 : stage + 1);
        begin_products();
        start_dots(p, own_k, near);
        start_dots(dp, own_v, near + SIDE);
        start_mixing(value_sums, left[0], mixed + SIDE);
        start_mixing(key_sums, left[1], mixed);
        end_products();
        turn<1>(p, dp, (const float4 *)(near + 2 * SIDE), own, queries, window, base_two);
        wait_for_products_but<0>(key_sums);
        settle(value_sums);
        as_left(left[0], p);
        as_left(left[1], dp);
    }
    begin_products();
    start_mixing(value_sums, left[0], ring + stage * STAGE + SIDE);
    start_mixing(key_sums, left[1], ring + stage * STAGE);
    end_products();
    wait_for_products_but<0>(key_sums);
    settle(value_sums);
    wait_for_copies();
    if (gridDim.z > 1 && !add_shares(key_sums, value_sums, parts, tickets)) return;
    const float scaled[2] = {scale, scale}, whole[2] = {1.0f, 1.0f};
    write<WIDTH>(key_sums, scaled, dk, narrow, kv_heads, kv, head_dim, own, end);
    write<WIDTH>(value_sums, whole, dv, narrow, kv_heads, kv, head_dim, own, end);
}
