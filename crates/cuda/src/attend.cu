// Keys and values into the cache; attention of any format and width, a block of four warps for each query
// and head. Scores and sums are f32; with a bf16 or int8 cache q and p are rounded to bf16 first.
#include "cache.cuh"

// A thread for each 8 channels of a position and head; keys if blockIdx.y is 0, else values.
extern "C" __global__ void __launch_bounds__(128) store(const float *keys, const float *values, u32 rows, u32 first,
                                                        u8 *cache, int format, u32 kv_heads, u32 head_dim,
                                                        u32 capacity) {
    Cache c = {cache, format, kv_heads, head_dim, capacity};
    u32 eights = c.width() / 8, index = blockIdx.x * blockDim.x + threadIdx.x;
    u32 channel = index % eights * 8, of_head = index / eights, head = of_head % kv_heads, t = of_head / kv_heads;
    bool there = t < rows;
    const float *from = (blockIdx.y ? values : keys) + (u64)of_head * head_dim + channel;
    float x[8];
    if (there && head_dim % 8 == 0 && channel < head_dim && (u64)from % 16 == 0) {
        get_eight(from, x);
    } else {
#pragma unroll
        for (u32 i = 0; i < 8; i++) x[i] = there && channel + i < head_dim ? from[i] : 0.0f;
    }
    u8 *side = (u8 *)c.side(blockIdx.y);
    u64 at = c.row(head, first + t) + channel;
    if (format == CACHE_F32) {
        if (there) put_eight((float *)side + at, x);
    } else if (format == CACHE_BF16) {
        if (there) *(uint4 *)((u16 *)side + at) = eight_bf16(x);
    } else {
        u32 largest = 0, codes[2] = {0, 0};
#pragma unroll
        for (u32 i = 0; i < 8; i++) largest = max(largest, __float_as_uint(x[i]) & 0x7fffffffu);
        // A neighbour has the other half of the block.
        u32 exponent = int8_exponent(max(largest, __shfl_xor_sync(0xffffffffu, largest, 1)));
#pragma unroll
        for (u32 i = 0; i < 8; i++) codes[i / 4] |= (u32)(u8)int8_code(x[i], exponent) << i % 4 * 8;
        if (there) *(uint2 *)(side + at) = make_uint2(codes[0], codes[1]);
        if (there && channel % 16 == 0) side[c.values_of_side() + at / 16] = (u8)exponent;
    }
}

const u32 WIDEST = 512, WARPS = 4;

// Largest and sum over the lanes of a warp.
__device__ __forceinline__ float warp_max(float x) {
    for (int apart = 16; apart > 0; apart /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, apart));
    return x;
}

__device__ __forceinline__ float warp_sum(float x) {
    for (int apart = 16; apart > 0; apart /= 2) x += __shfl_xor_sync(0xffffffffu, x, apart);
    return x;
}

// Warp w takes the tiles of 32 keys whose number is w modulo 4, counted from position 0, with a maximum,
// a sum and a weighted sum of its own; the four are put together at the end. So a query's result depends
// on the keys that it sees and on nothing else.
extern "C" __global__ void __launch_bounds__(128)
    attend(const float *q, u8 *cache, int format, u32 kv_heads, u32 head_dim, u32 capacity, u32 start, u32 window,
           void *out, u32 narrow, u32 heads) {
    Cache c = {cache, format, kv_heads, head_dim, capacity};
    float *query = (float *)dynamic_shared, *partial = query + WIDEST, *tops = partial + WARPS * WIDEST,
          *totals = tops + WARPS;
    u32 t = blockIdx.x, h = blockIdx.y, head = h / (heads / kv_heads), columns = heads * head_dim;
    u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    bool rounds = format != CACHE_F32;
    for (u32 i = threadIdx.x; i < head_dim; i += 128) {
        float x = q[(u64)t * columns + h * head_dim + i];
        query[i] = rounds ? rounded(x) : x;
    }
    __syncthreads();

    u32 end = start + t + 1, low = window && end > window ? end - window : 0;
    float scale = 1.0f / sqrtf((float)head_dim), top = MINUS_INFINITY, total = 0.0f, sums[WIDEST / 32] = {};
    for (u32 tile = low / 32 + (warp + WARPS - low / 32 % WARPS) % WARPS; tile * 32 < end; tile += WARPS) {
        u32 key = tile * 32 + lane;
        bool seen = key >= low && key < end;
        float score = 0.0f;
        u64 at = c.row(head, seen ? key : low);
        for (u32 i = 0; i < head_dim; i++) score = __fmaf_rn(query[i], c.value(0, at + i), score);
        score = seen ? score * scale : MINUS_INFINITY;
        float highest = fmaxf(top, warp_max(score)), p = exp_of(score - highest), shrink = exp_of(top - highest);
        top = highest;
        total = total * shrink + p;
        p = rounds ? rounded(p) : p;
#pragma unroll
        for (u32 i = 0; i < WIDEST / 32; i++) sums[i] *= shrink;
        for (u32 j = 0; j < 32; j++) {
            float weight = __shfl_sync(0xffffffffu, p, j);
            if (tile * 32 + j < low || tile * 32 + j >= end) continue;
            u64 value = c.row(head, tile * 32 + j);
#pragma unroll
            for (u32 i = 0; i < WIDEST / 32; i++)
                if (i * 32 + lane < head_dim) sums[i] = __fmaf_rn(weight, c.value(1, value + i * 32 + lane), sums[i]);
        }
    }
    total = warp_sum(total);
#pragma unroll
    for (u32 i = 0; i < WIDEST / 32; i++) partial[warp * WIDEST + i * 32 + lane] = sums[i];
    if (lane == 0) {
        tops[warp] = top;
        totals[warp] = total;
    }
    __syncthreads();

    float highest = fmaxf(fmaxf(tops[0], tops[1]), fmaxf(tops[2], tops[3])), shares[WARPS], all = 0.0f;
#pragma unroll
    for (u32 w = 0; w < WARPS; w++) {
        shares[w] = exp_of(tops[w] - highest);
        all = __fmaf_rn(totals[w], shares[w], all);
    }
    float inverse = 1.0f / all;
    for (u32 i = threadIdx.x; i < head_dim; i += 128) {
        float y = 0.0f;
#pragma unroll
        for (u32 w = 0; w < WARPS; w++) y = __fmaf_rn(partial[w * WIDEST + i], shares[w], y);
        put(out, narrow, columns, t, h * head_dim + i, y * inverse);
    }
    if (h == heads - 1) pad(out, narrow, columns, t, threadIdx.x, 128);
}
