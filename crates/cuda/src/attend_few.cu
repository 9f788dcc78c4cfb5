// Attention of a few queries, as when tokens are made one by one: the keys are split among blocks, and what
// the blocks found is put together by a second kernel.
//
// Splits are of 64 keys counted from position 0, so a query's result depends on the keys that it sees and on
// nothing else. A block of 128 threads takes one split for up to HEADS query heads of one kv head: each key
// is read once for all of them. Its sums: `[maximum, sum, channels]` for each query, head and split.
#include "cache.cuh"

const u32 SPLIT = 64, HEADS = 8;

// Eight values of a cache's side.
template <int FORMAT> __device__ __forceinline__ void eight(const Cache &c, u32 which, u64 at, float (&out)[8]) {
    const u8 *from = c.side(which);
    if (FORMAT == CACHE_F32) {
        const float4 *x = (const float4 *)((const float *)from + at);
        float4 a = x[0], b = x[1];
        out[0] = a.x, out[1] = a.y, out[2] = a.z, out[3] = a.w, out[4] = b.x, out[5] = b.y, out[6] = b.z, out[7] = b.w;
    } else if (FORMAT == CACHE_BF16) {
        uint4 x = *(const uint4 *)((const u16 *)from + at);
        const u32 words[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            out[2 * i] = __uint_as_float(words[i] << 16);
            out[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
        }
    } else {
        uint2 x = *(const uint2 *)(from + at);
        float scale = e8m0(from[c.values_of_side() + at / 16]);
#pragma unroll
        for (int i = 0; i < 8; i++) out[i] = (float)(i8)((i < 4 ? x.x : x.y) >> i % 4 * 8) * scale;
    }
}

template <int FORMAT>
__device__ __forceinline__ void attend_split(const float *q, const Cache &c, u32 start, u32 window, float *sums,
                                             u32 heads, u32 first_split) {
    u32 width = c.width(), chunks = width / 8, group = heads / c.kv_heads, sets = (group + HEADS - 1) / HEADS;
    u32 kv = blockIdx.y / sets, first = blockIdx.y % sets * HEADS, count = min(HEADS, group - first);
    u32 t = blockIdx.z, h = kv * group + first, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    u32 end = start + t + 1, low = window && end > window ? end - window : 0, key = (first_split + blockIdx.x) * SPLIT;
    float *query = (float *)dynamic_shared, *p = query + HEADS * width, *parts = p + HEADS * SPLIT;
    // Channels of a head as stored: beyond the last they are zero.
    for (u32 i = threadIdx.x; i < HEADS * width; i += 128) {
        u32 g = i / width, channel = i % width;
        bool there = g < count && channel < c.head_dim;
        float x = there ? q[(u64)t * heads * c.head_dim + (h + g) * c.head_dim + channel] : 0.0f;
        query[i] = FORMAT == CACHE_F32 ? x : rounded(x);
    }
    __syncthreads();

    // Scores: two threads for each key, every other eight channels each.
    {
        u32 own = key + threadIdx.x / 2;
        bool seen = own >= low && own < end;
        u64 row = c.row(kv, seen ? own : low);
        float scores[HEADS] = {};
#pragma unroll 4
        for (u32 chunk = threadIdx.x % 2; chunk < chunks; chunk += 2) {
            float k[8];
            eight<FORMAT>(c, 0, row + chunk * 8, k);
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

    // Values: a thread for each eight channels and eighth of the keys.
    for (u32 item = threadIdx.x; item < chunks * 8; item += 128) {
        u32 chunk = item % chunks, part = item / chunks;
        float mixed[HEADS][8] = {};
#pragma unroll 4
        for (u32 j = part; j < SPLIT; j += 8) {
            if (key + j < low || key + j >= end) continue;
            float v[8];
            eight<FORMAT>(c, 1, c.row(kv, key + j) + chunk * 8, v);
#pragma unroll
            for (u32 g = 0; g < HEADS; g++) {
                if (g >= count) break;
                float weight = p[g * SPLIT + j];
#pragma unroll
                for (u32 i = 0; i < 8; i++) mixed[g][i] = __fmaf_rn(weight, v[i], mixed[g][i]);
            }
        }
#pragma unroll
        for (u32 g = 0; g < HEADS; g++) {
            if (g >= count) break;
#pragma unroll
            for (u32 i = 0; i < 8; i++) parts[(part * HEADS + g) * width + chunk * 8 + i] = mixed[g][i];
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
}

#define ATTEND_SPLIT(name, FORMAT)                                                                                     \
    extern "C" __global__ void __launch_bounds__(128)                                                                  \
        attend_split_##name(const float *q, u8 *cache, u32 kv_heads, u32 head_dim, u32 capacity, u32 start,            \
                            u32 window, float *sums, u32 heads, u32 first_split) {                                     \
        Cache c = {cache, FORMAT, kv_heads, head_dim, capacity};                                                       \
        attend_split<FORMAT>(q, c, start, window, sums, heads, first_split);                                           \
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
