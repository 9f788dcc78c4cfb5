// Attention of a few queries, as when tokens are made one by one: the keys are split among blocks, and what the blocks
// found is put together by the last of them or, of more than 64, by a second kernel.
//
// Splits are of 64 keys counted from position 0, so a query's result depends on the keys that it sees and on
// nothing else. A block of 128 threads takes one split for up to HEADS query heads of one kv head: each key
// is read once for all of them. Its sums: `[maximum, sum, channels]` for each query, head and split.
#include "cache.cuh"

const u32 SPLIT = 64, HEADS = 8;

// Eight values of a cache's side: as they are kept, and as numbers.
template <int FORMAT> struct Eight {
    uint4 words[FORMAT == CACHE_F32 ? 2 : 1];
    u32 scale;

    __device__ __forceinline__ void load(const Cache &c, const u8 *side, u64 at, bool there) {
        const uint4 nothing = make_uint4(0, 0, 0, 0);
        if (FORMAT == CACHE_F32) {
            words[0] = there ? ((const uint4 *)((const float *)side + at))[0] : nothing;
            words[1] = there ? ((const uint4 *)((const float *)side + at))[1] : nothing;
        } else if (FORMAT == CACHE_BF16) {
            words[0] = there ? *(const uint4 *)((const u16 *)side + at) : nothing;
        } else {
            uint2 codes = there ? *(const uint2 *)(side + at) : make_uint2(0, 0);
            words[0] = make_uint4(codes.x, codes.y, 0, 0);
            scale = there ? side[c.values_of_side() + at / 16] : 0;
        }
    }

    __device__ __forceinline__ void values(float (&out)[8]) const {
        const u32 *word = (const u32 *)words;
#pragma unroll
        for (u32 i = 0; i < 8; i++) {
            if (FORMAT == CACHE_F32) out[i] = __uint_as_float(word[i]);
            else if (FORMAT == CACHE_BF16) out[i] = __uint_as_float(i % 2 ? word[i / 2] & 0xffff0000u : word[i / 2] << 16);
            else out[i] = (float)(i8)(word[i / 4] >> i % 4 * 8) * e8m0(scale);
        }
    }
};

// What the splits of `count` heads found, put together in order by the last block that came: a warp for each head finds
// the shares, into `shares[head][split]`. At most SPLIT splits.
__device__ __forceinline__ void join_here(const float *sums, u32 count, u32 head_dim, float *shares, void *out, u32 narrow,
                                          u32 columns, u32 t, u32 first_column) {
    u32 splits = gridDim.x, lane = threadIdx.x % 32;
    u64 stride = head_dim + 2;
    for (u32 g = threadIdx.x / 32; g < count; g += 4) {
        const float *from = sums + g * splits * stride;
        float tops[2], totals[2], top = MINUS_INFINITY, total = 0.0f;
#pragma unroll
        for (u32 i = 0; i < 2; i++) {
            bool there = i * 32 + lane < splits;
            tops[i] = there ? from[(i * 32 + lane) * stride] : MINUS_INFINITY;
            totals[i] = there ? from[(i * 32 + lane) * stride + 1] : 0.0f;
            top = fmaxf(top, tops[i]);
        }
        for (int apart = 16; apart > 0; apart /= 2) top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, apart));
#pragma unroll
        for (u32 i = 0; i < 2; i++) {
            tops[i] = exp_of(tops[i] - top);
            total = __fmaf_rn(totals[i], tops[i], total);
        }
        for (int apart = 16; apart > 0; apart /= 2) total += __shfl_xor_sync(0xffffffffu, total, apart);
#pragma unroll
        for (u32 i = 0; i < 2; i++) shares[g * SPLIT + i * 32 + lane] = tops[i] / total;
    }
    __syncthreads();
    for (u32 i = threadIdx.x; i < count * head_dim; i += 128) {
        u32 g = i / head_dim;
        const float *from = sums + g * splits * stride + 2 + i % head_dim;
        float y = 0.0f;
#pragma unroll 8
        for (u32 s = 0; s < splits; s++) y = __fmaf_rn(from[s * stride], shares[g * SPLIT + s], y);
        put(out, narrow, columns, t, first_column + i, y);
    }
}

// `tickets`: how many blocks of a query and kv head are done, zero before and after; none where another kernel joins.
template <int FORMAT>
__device__ __forceinline__ void attend_split(const float *q, const Cache &c, u32 start, u32 window, float *sums,
                                             u32 heads, u32 first_split, u32 *tickets, void *final_out, u32 narrow) {
    u32 width = c.width(), chunks = width / 8, group = heads / c.kv_heads, sets = (group + HEADS - 1) / HEADS;
    u32 kv = blockIdx.y / sets, first = blockIdx.y % sets * HEADS, count = min(HEADS, group - first);
    u32 t = blockIdx.z, h = kv * group + first, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    u32 end = start + t + 1, low = window && end > window ? end - window : 0, key = (first_split + blockIdx.x) * SPLIT;
    float *query = (float *)dynamic_shared, *p = query + HEADS * width, *parts = p + HEADS * SPLIT;

    // Everything is asked for at once. Keys: two threads for each, every other eight channels each.
    u32 own = key + threadIdx.x / 2;
    bool seen = own >= low && own < end;
    Eight<FORMAT> keys[8], values[8];
#pragma unroll
    for (u32 i = 0; i < 8; i++) {
        u32 chunk = i * 2 + threadIdx.x % 2;
        keys[i].load(c, c.side(0), c.row(kv, seen ? own : low) + chunk * 8, seen && chunk < chunks);
    }
    // Values: a thread for each eight channels and eighth of the keys.
    u32 own_chunk = threadIdx.x % chunks, part = threadIdx.x / chunks;
#pragma unroll
    for (u32 i = 0; i < 8; i++) {
        u32 j = key + i * 8 + part;
        bool there = part < 8 && j >= low && j < end;
        values[i].load(c, c.side(1), c.row(kv, there ? j : low) + own_chunk * 8, there);
    }
    // Channels of a head as stored: beyond the last they are zero.
    for (u32 i = threadIdx.x; i < HEADS * width; i += 128) {
        u32 g = i / width, channel = i % width;
        bool there = g < count && channel < c.head_dim;
        float x = there ? q[(u64)t * heads * c.head_dim + (h + g) * c.head_dim + channel] : 0.0f;
        query[i] = FORMAT == CACHE_F32 ? x : rounded(x);
    }
    __syncthreads();

    // Scores.
    float scores[HEADS] = {};
#pragma unroll
    for (u32 i = 0; i < 8; i++) {
        u32 chunk = i * 2 + threadIdx.x % 2;
        if (chunk >= chunks) break;
        float k[8];
        keys[i].values(k);
#pragma unroll
        for (u32 g = 0; g < HEADS; g++) {
            if (g >= count) break;
            const float4 *x = (const float4 *)(query + g * width + chunk * 8);
            float4 a = x[0], b = x[1];
            float s = scores[g];
            s = __fmaf_rn(a.x, k[0], s), s = __fmaf_rn(a.y, k[1], s), s = __fmaf_rn(a.z, k[2], s);
            s = __fmaf_rn(a.w, k[3], s), s = __fmaf_rn(b.x, k[4], s), s = __fmaf_rn(b.y, k[5], s);
            s = __fmaf_rn(b.z, k[6], s), s = __fmaf_rn(b.w, k[7], s);
            scores[g] = s;
        }
    }
    float scale = 1.0f / sqrtf((float)c.head_dim);
#pragma unroll
    for (u32 g = 0; g < HEADS; g++) {
        float score = (scores[g] + __shfl_xor_sync(0xffffffffu, scores[g], 1)) * scale;
        if (threadIdx.x % 2 == 0) p[g * SPLIT + threadIdx.x / 2] = seen ? score : MINUS_INFINITY;
    }
    __syncthreads();

    // Weights: a warp for each head.
    u64 stride = c.head_dim + 2;
    float *out = sums + (((u64)t * heads + h) * gridDim.x + blockIdx.x) * stride;
    for (u32 g = warp; g < count; g += 4) {
        float a = p[g * SPLIT + lane], b = p[g * SPLIT + 32 + lane], top = fmaxf(a, b);
        for (int apart = 16; apart > 0; apart /= 2) top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, apart));
        float base = top == MINUS_INFINITY ? 0.0f : top;
        a = exp_of(a - base);
        b = exp_of(b - base);
        float total = a + b;
        for (int apart = 16; apart > 0; apart /= 2) total += __shfl_xor_sync(0xffffffffu, total, apart);
        p[g * SPLIT + lane] = FORMAT == CACHE_F32 ? a : rounded(a);
        p[g * SPLIT + 32 + lane] = FORMAT == CACHE_F32 ? b : rounded(b);
        if (lane == 0) {
            out[g * gridDim.x * stride] = top;
            out[g * gridDim.x * stride + 1] = total;
        }
    }
    __syncthreads();

    // Values.
    if (part < 8) {
        float mixed[HEADS][8] = {};
#pragma unroll
        for (u32 i = 0; i < 8; i++) {
            float v[8];
            values[i].values(v);
#pragma unroll
            for (u32 g = 0; g < HEADS; g++) {
                if (g >= count) break;
                float weight = p[g * SPLIT + i * 8 + part];
#pragma unroll
                for (u32 j = 0; j < 8; j++) mixed[g][j] = __fmaf_rn(weight, v[j], mixed[g][j]);
            }
        }
#pragma unroll
        for (u32 g = 0; g < HEADS; g++) {
            if (g >= count) break;
            float4 *to = (float4 *)(parts + (part * HEADS + g) * width + own_chunk * 8);
            to[0] = make_float4(mixed[g][0], mixed[g][1], mixed[g][2], mixed[g][3]);
            to[1] = make_float4(mixed[g][4], mixed[g][5], mixed[g][6], mixed[g][7]);
        }
    }
    __syncthreads();
    for (u32 i = threadIdx.x; i < count * c.head_dim; i += 128) {
        u32 g = i / c.head_dim, channel = i % c.head_dim;
        float sum = 0.0f;
#pragma unroll
        for (u32 part = 0; part < 8; part++) sum += parts[(part * HEADS + g) * width + channel];
        out[g * gridDim.x * stride + 2 + channel] = sum;
    }
    if (!tickets) return;

    // What this block wrote is there before its ticket is; who draws the last one sees it all.
    u32 *last = (u32 *)query;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        u32 *counter = tickets + t * gridDim.y + blockIdx.y;
        *last = atomicAdd(counter, 1u) == gridDim.x - 1;
        if (*last) *counter = 0;
        __threadfence();
    }
    __syncthreads();
    if (!*last) return;
    u32 columns = heads * c.head_dim;
    join_here(sums + ((u64)t * heads + h) * gridDim.x * stride, count, c.head_dim, p, final_out, narrow, columns, t,
              h * c.head_dim);
    if (h + count == heads) pad(final_out, narrow, columns, t, threadIdx.x, 128);
}

#define ATTEND_SPLIT(name, FORMAT)                                                                                     \
    extern "C" __global__ void __launch_bounds__(128)                                                                  \
        attend_split_##name(const float *q, u8 *cache, u32 kv_heads, u32 head_dim, u32 capacity, u32 start,            \
                            u32 window, float *sums, u32 heads, u32 first_split, u32 *tickets, void *out,              \
                            u32 narrow) {                                                                              \
        Cache c = {cache, FORMAT, kv_heads, head_dim, capacity};                                                       \
        attend_split<FORMAT>(q, c, start, window, sums, heads, first_split, tickets, out, narrow);                     \
    }

ATTEND_SPLIT(f32, CACHE_F32)
ATTEND_SPLIT(bf16, CACHE_BF16)
ATTEND_SPLIT(int8, CACHE_INT8)

// The splits of a query and head, in order: a block of 128 threads for each. Shared: a share for each split.
extern "C" __global__ void __launch_bounds__(128)
    attend_join(const float *sums, u32 splits, u32 heads, u32 head_dim, void *out, u32 narrow) {
    float *reduced = (float *)dynamic_shared, *shares = reduced + 8;
    u32 t = blockIdx.x, h = blockIdx.y, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    u64 stride = head_dim + 2;
    const float *from = sums + ((u64)t * heads + h) * splits * stride;
    float top = MINUS_INFINITY, total = 0.0f;
    for (u32 s = threadIdx.x; s < splits; s += 128) top = fmaxf(top, from[s * stride]);
    for (int apart = 16; apart > 0; apart /= 2) top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, apart));
    if (lane == 0) reduced[warp] = top;
    __syncthreads();
    top = fmaxf(fmaxf(reduced[0], reduced[1]), fmaxf(reduced[2], reduced[3]));
    for (u32 s = threadIdx.x; s < splits; s += 128) {
        shares[s] = exp_of(from[s * stride] - top);
        total = __fmaf_rn(from[s * stride + 1], shares[s], total);
    }
    for (int apart = 16; apart > 0; apart /= 2) total += __shfl_xor_sync(0xffffffffu, total, apart);
    if (lane == 0) reduced[4 + warp] = total;
    __syncthreads();
    float inverse = 1.0f / (reduced[4] + reduced[5] + reduced[6] + reduced[7]);
    for (u32 channel = threadIdx.x; channel < head_dim; channel += 128) {
        float y = 0.0f;
#pragma unroll 8
        for (u32 s = 0; s < splits; s++) y = __fmaf_rn(from[s * stride + 2 + channel], shares[s], y);
        put(out, narrow, heads * head_dim, t, h * head_dim + channel, y * inverse);
    }
    if (h == heads - 1) pad(out, narrow, heads * head_dim, t, threadIdx.x, 128);
}
