// Attention of a few queries (one that comes straight from its products is a stage of chain.cu): the keys are split among
// blocks, and what the blocks found is put together by the last of them or, of more than 64, by a second kernel.
//
// Splits are of 64 keys counted from position 0, so a query's result depends on the keys that it sees and on
// nothing else. A block of 128 threads takes one split for up to HEADS query heads of one kv head: each key
// is read once for all of them. Its sums: `[maximum, sum, channels]` for each query, head and split.
#include "cache.cuh"

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
    // Four outputs at a time, so that their loads are under way together.
    const u32 OUTPUTS = 4;
    u32 all = count * head_dim;
    for (u32 first = threadIdx.x; first < all; first += 128 * OUTPUTS) {
        const float *from[OUTPUTS], *share[OUTPUTS];
        float y[OUTPUTS] = {};
#pragma unroll
        for (u32 k = 0; k < OUTPUTS; k++) {
            u32 i = first + k * 128 < all ? first + k * 128 : first, g = i / head_dim;
            from[k] = sums + g * splits * stride + 2 + i % head_dim, share[k] = shares + g * SPLIT;
        }
#pragma unroll 4
        for (u32 s = 0; s < splits; s++) {
#pragma unroll
            for (u32 k = 0; k < OUTPUTS; k++) y[k] = __fmaf_rn(from[k][s * stride], share[k][s], y[k]);
        }
#pragma unroll
        for (u32 k = 0; k < OUTPUTS; k++)
            if (first + k * 128 < all) put(out, narrow, columns, t, first_column + first + k * 128, y[k]);
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

    // Everything is asked for at once. Keys: two threads for each, every other eight channels each. Values: a thread for
    // each eight channels and eighth of the keys.
    u32 own = key + threadIdx.x / 2, own_chunk = threadIdx.x % chunks, part = threadIdx.x / chunks;
    bool seen = own >= low && own < end;
    Eight<FORMAT> keys[8], values[8];
#pragma unroll
    for (u32 i = 0; i < 8; i++) {
        u32 chunk = i * 2 + threadIdx.x % 2, j = key + i * 8 + part;
        bool key_there = seen && chunk < chunks, value_there = part < 8 && j >= low && j < end;
        keys[i].load(c, c.side(0), c.row(kv, key_there ? own : low) + chunk * 8, key_there);
        values[i].load(c, c.side(1), c.row(kv, value_there ? j : low) + own_chunk * 8, value_there);
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

// The splits of a query and head: a block of 512 threads for each, of which 128 at a time have every fourth split.
// Shared: 32 numbers of warps, a sum for each thread, a share for each split.
extern "C" __global__ void __launch_bounds__(512)
    attend_join(const float *sums, u32 splits, u32 heads, u32 head_dim, void *out, u32 narrow) {
    const u32 WARPS = 16;
    float *tops = (float *)dynamic_shared, *totals = tops + WARPS, *parts = totals + WARPS, *shares = parts + 512;
    u32 t = blockIdx.x, h = blockIdx.y, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    u64 stride = head_dim + 2;
    const float *from = sums + ((u64)t * heads + h) * splits * stride;
    float top = MINUS_INFINITY, total = 0.0f;
    for (u32 s = threadIdx.x; s < splits; s += 512) top = fmaxf(top, from[s * stride]);
    for (int apart = 16; apart > 0; apart /= 2) top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, apart));
    if (lane == 0) tops[warp] = top;
    __syncthreads();
    for (u32 w = 0; w < WARPS; w++) top = fmaxf(top, tops[w]);
    for (u32 s = threadIdx.x; s < splits; s += 512) {
        shares[s] = exp_of(from[s * stride] - top);
        total = __fmaf_rn(from[s * stride + 1], shares[s], total);
    }
    for (int apart = 16; apart > 0; apart /= 2) total += __shfl_xor_sync(0xffffffffu, total, apart);
    if (lane == 0) totals[warp] = total;
    __syncthreads();
    total = 0.0f;
    for (u32 w = 0; w < WARPS; w++) total += totals[w];
    u32 channel = threadIdx.x % 128, part = threadIdx.x / 128;
    float y = 0.0f;
    if (channel < head_dim) {
#pragma unroll 16
        for (u32 s = part; s < splits; s += 4) y = __fmaf_rn(from[s * stride + 2 + channel], shares[s], y);
    }
    parts[threadIdx.x] = y;
    __syncthreads();
    if (part == 0 && channel < head_dim) {
        y = parts[channel] + parts[128 + channel] + parts[256 + channel] + parts[384 + channel];
        put(out, narrow, heads * head_dim, t, h * head_dim + channel, y / total);
    }
    if (h == heads - 1) pad(out, narrow, heads * head_dim, t, threadIdx.x, 512);
}
