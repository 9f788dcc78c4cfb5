// Keys and values into the cache; attention of any format and width, a block of four warps for each query
// and head. Scores and sums are f32; with a bf16 or int8 cache q and p are rounded to bf16 first.
#include "cache.cuh"

// A block of 16 as halfbyte_formats::int8_block encodes it; gives the scale.
__device__ __forceinline__ u8 encode_int8(const float (&x)[16], i8 *codes) {
    u32 largest = 0;
    for (int i = 0; i < 16; i++) largest = max(largest, __float_as_uint(x[i]) & 0x7fffffffu);
    u32 exponent = int8_exponent(largest);
    for (int i = 0; i < 16; i++) codes[i] = int8_code(x[i], exponent);
    return (u8)exponent;
}

// A thread for each 16 channels of a position and head; keys if blockIdx.y is 0, else values.
extern "C" __global__ void store(const float *keys, const float *values, u32 rows, u32 first, u8 *cache, int format,
                                 u32 kv_heads, u32 head_dim, u32 capacity) {
    Cache c = {cache, format, kv_heads, head_dim, capacity};
    u32 blocks = c.width() / 16;
    u64 index = blockIdx.x * (u64)blockDim.x + threadIdx.x;
    u32 block = (u32)(index % blocks), head = (u32)(index / blocks % kv_heads);
    u64 t = index / blocks / kv_heads;
    if (t >= rows) return;
    const float *from = (blockIdx.y ? values : keys) + (t * kv_heads + head) * head_dim;
    float x[16];
    for (u32 i = 0; i < 16; i++) x[i] = block * 16 + i < head_dim ? from[block * 16 + i] : 0.0f;
    u8 *side = (u8 *)c.side(blockIdx.y);
    u64 at = c.row(head, first + (u32)t) + block * 16;
    if (format == CACHE_F32) {
        for (u32 i = 0; i < 16; i++) ((float *)side)[at + i] = x[i];
    } else if (format == CACHE_BF16) {
        for (u32 i = 0; i < 16; i++) ((u16 *)side)[at + i] = bf16_of(x[i]);
    } else {
        side[c.values_of_side() + at / 16] = encode_int8(x, (i8 *)side + at);
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
