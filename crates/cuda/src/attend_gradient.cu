// Gradients of attention, plainly: any width of heads, rounded to bf16 or exact. See `ops::attend` for the maths.
//
// Queries first: scores of all keys in shared memory, so that p, the mean of dp, and dq follow; three numbers
// of each query stay, from which a key's block makes p and ds again.
#include "common.cuh"

const u32 WARPS = 4;
const u32 WIDEST = 512;

// One call. `first` and `end` are the rows of a token's sample.
struct Heads {
    const float *q, *k, *v, *dy;
    const u32 *first, *end;
    u32 heads, kv_heads, head_dim, window, exact;
    float scale;
};

#define HEADS                                                                                                          \
    const float *q, const float *k, const float *v, const float *dy, const u32 *first, const u32 *end, u32 heads,      \
        u32 kv_heads, u32 head_dim, u32 window, u32 exact, float scale
#define GIVEN Heads{q, k, v, dy, first, end, heads, kv_heads, head_dim, window, exact, scale}

__device__ __forceinline__ float taken(const Heads &of, float x) { return of.exact ? x : rounded(x); }

__device__ __forceinline__ float sum_of_warp(float x) {
    for (int width = 16; width > 0; width /= 2) x += __shfl_xor_sync(0xffffffffu, x, width);
    return x;
}

__device__ __forceinline__ float sum_of_block(float x, float *near) {
    x = sum_of_warp(x);
    __syncthreads();
    if (threadIdx.x % 32 == 0) near[threadIdx.x / 32] = x;
    __syncthreads();
    return (near[0] + near[1]) + (near[2] + near[3]);
}

// A key's products with a query and its dy, whose values are near; a warp for each key.
__device__ __forceinline__ void dots(const Heads &of, const float *a, const float *b, const float *near_a,
                                     const float *near_b, float &of_a, float &of_b) {
    float sum_a = 0.0f, sum_b = 0.0f;
    for (u32 c = threadIdx.x % 32; c < of.head_dim; c += 32) {
        sum_a = __fmaf_rn(taken(of, a[c]), near_a[c], sum_a);
        sum_b = __fmaf_rn(taken(of, b[c]), near_b[c], sum_b);
    }
    of_a = sum_of_warp(sum_a), of_b = sum_of_warp(sum_b);
}

// dq of head blockIdx.y of token blockIdx.x; `stats` gets top, 1 / sum and mean.
extern "C" __global__ void __launch_bounds__(128) attend_gradient_queries(HEADS, float *dq, float *stats) {
    Heads of = GIVEN;
    __shared__ float near[WARPS];
    u32 t = blockIdx.x, h = blockIdx.y, warp = threadIdx.x / 32;
    if (of.end[t] == 0) return;
    float *near_q = (float *)dynamic_shared, *near_dy = near_q + head_dim, *p = near_dy + head_dim;
    u32 low = window > 0 && t + 1 - first[t] > window ? t + 1 - window : first[t], count = t + 1 - low;
    float *ds = p + count;
    u64 at = ((u64)t * heads + h) * head_dim, stride = (u64)kv_heads * head_dim;
    u64 keys = low * stride + h / (heads / kv_heads) * head_dim;
    for (u32 c = threadIdx.x; c < head_dim; c += blockDim.x)
        near_q[c] = taken(of, q[at + c]), near_dy[c] = taken(of, dy[at + c]);
    __syncthreads();
    for (u32 j = warp; j < count; j += WARPS) {
        float score, product;
        dots(of, k + keys + j * stride, v + keys + j * stride, near_q, near_dy, score, product);
        if (threadIdx.x % 32 == 0) p[j] = score, ds[j] = product;
    }
    __syncthreads();
    float top = -__uint_as_float(0x7f800000), sum = 0.0f, mean = 0.0f;
    for (u32 j = 0; j < count; j++) top = p[j] > top ? p[j] : top;
    top *= scale;
    for (u32 j = threadIdx.x; j < count; j += blockDim.x) sum += exp_of(p[j] * scale - top);
    float total = 1.0f / sum_of_block(sum, near);
    for (u32 j = threadIdx.x; j < count; j += blockDim.x) {
        p[j] = exp_of(p[j] * scale - top) * total;
        mean = __fmaf_rn(p[j], ds[j], mean);
    }
    mean = sum_of_block(mean, near);
    for (u32 j = threadIdx.x; j < count; j += blockDim.x) ds[j] = taken(of, p[j] * (ds[j] - mean) * scale);
    __syncthreads();
    for (u32 c = threadIdx.x; c < head_dim; c += blockDim.x) {
        float result = 0.0f;
        for (u32 j = 0; j < count; j++) result = __fmaf_rn(ds[j], taken(of, k[keys + j * stride + c]), result);
        dq[at + c] = result;
    }
    float *kept = stats + ((u64)t * heads + h) * 3;
    if (threadIdx.x == 0) kept[0] = top, kept[1] = total, kept[2] = mean;
}

// dk and dv of head blockIdx.y of token blockIdx.x: warps share the queries that see it, and are added in order.
extern "C" __global__ void __launch_bounds__(128) attend_gradient_keys(HEADS, float *dk, float *dv,
                                                                       const float *stats) {
    Heads of = GIVEN;
    __shared__ float near_k[WIDEST], near_v[WIDEST], parts[WARPS][WIDEST];
    u32 j = blockIdx.x, kv = blockIdx.y, warp = threadIdx.x / 32, lane = threadIdx.x % 32, group = heads / kv_heads;
    if (end[j] == 0) return;
    u64 at = ((u64)j * kv_heads + kv) * head_dim;
    for (u32 c = threadIdx.x; c < head_dim; c += blockDim.x)
        near_k[c] = taken(of, k[at + c]), near_v[c] = taken(of, v[at + c]);
    __syncthreads();
    float key_sums[WIDEST / 32] = {}, value_sums[WIDEST / 32] = {};
    u32 last = window > 0 && end[j] - j > window ? j + window : end[j];
    for (u32 h = kv * group; h < (kv + 1) * group; h++) {
        for (u32 t = j + warp; t < last; t += WARPS) {
            u64 query = ((u64)t * heads + h) * head_dim;
            const float *kept = stats + ((u64)t * heads + h) * 3;
            float score, product;
            dots(of, q + query, dy + query, near_k, near_v, score, product);
            float p = exp_of(score * scale - kept[0]) * kept[1];
            float ds = taken(of, p * (product - kept[2]) * scale);
            p = taken(of, p);
#pragma unroll
            for (u32 i = 0; i < WIDEST / 32; i++) {
                u32 c = i * 32 + lane;
                if (c >= head_dim) break;
                key_sums[i] = __fmaf_rn(ds, taken(of, q[query + c]), key_sums[i]);
                value_sums[i] = __fmaf_rn(p, taken(of, dy[query + c]), value_sums[i]);
            }
        }
    }
    for (u32 which = 0; which < 2; which++) {
        __syncthreads();
#pragma unroll
        for (u32 i = 0; i < WIDEST / 32; i++) parts[warp][i * 32 + lane] = which ? value_sums[i] : key_sums[i];
        __syncthreads();
        for (u32 c = threadIdx.x; c < head_dim; c += blockDim.x)
            (which ? dv : dk)[at + c] = (parts[0][c] + parts[1][c]) + (parts[2][c] + parts[3][c]);
    }
}
