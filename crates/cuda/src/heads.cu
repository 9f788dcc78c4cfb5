// The norm of every head of queries and keys, where there is one, then its rotation, and keys and values into the cache:
// rms_norm.cu, rope.cu and the store of attend.cu, with their bits. Sixteen threads for each head hold all of it, the
// two values of a pair in the same thread, a block of 16 channels with one in each.
#include "cache.cuh"
#include "norm.cuh"

struct Kind {
    const float *raw, *gain;
    float *out;
    u32 heads;
};

template <u32 WIDTH>
__device__ __forceinline__ void turn_heads(const Kind &queries, const Kind &keys, const float *turns, u32 tokens, float eps,
                                           const float *values, const Cache &c, u32 start) {
    const u32 EACH = WIDTH / 16;
    u64 head = (blockIdx.x * (u64)blockDim.x + threadIdx.x) / 16;
    u64 of_queries = (u64)tokens * queries.heads, of_keys = (u64)tokens * keys.heads;
    // Queries, keys, values; those after the last write nothing.
    bool there = head < of_queries + (values ? 2 : 1) * of_keys;
    head = there ? head : 0;
    bool is_value = head >= of_queries + of_keys, is_key = head >= of_queries && !is_value;
    head -= is_value ? of_queries + of_keys : is_key ? of_queries : 0;
    bool is_query = !is_key && !is_value;
    const float *raw = is_value ? values : is_key ? keys.raw : queries.raw, *gain = is_query ? queries.gain : keys.gain;
    float *out = is_query ? queries.out : keys.out;
    u32 lane = threadIdx.x & 15u, t = (u32)(head / (is_query ? queries.heads : keys.heads));
    const float *from = raw + head * WIDTH + lane, *turn = turns + (u64)t * WIDTH + lane;
    float x[EACH], g[EACH], sum = 0.0f;
#pragma unroll
    for (u32 i = 0; i < EACH; i++) {
        x[i] = from[i * 16];
        g[i] = gain ? gain[lane + i * 16] : 1.0f;
    }
#pragma unroll
    for (u32 i = 0; i < EACH; i++) sum = __fmaf_rn(x[i], x[i], sum);
    float r = reciprocal(fold(sum), WIDTH, eps);
    if (there && !is_value) {
        float *to = out + head * WIDTH + lane;
#pragma unroll
        for (u32 i = 0; i < EACH / 2; i++) {
            float a = x[i], b = x[i + EACH / 2], cosine = turn[i * 16], sine = turn[(i + EACH / 2) * 16];
            if (gain) a = g[i] * (a * r), b = g[i + EACH / 2] * (b * r);
            to[i * 16] = x[i] = __fmaf_rn(a, cosine, -(b * sine));
            to[(i + EACH / 2) * 16] = x[i + EACH / 2] = __fmaf_rn(b, cosine, a * sine);
        }
    }
    __syncwarp();
    if (!values) return;
    u64 at = c.row((u32)(head % keys.heads), start + t) + lane;
#pragma unroll
    for (u32 i = 0; i < EACH; i++) c.keep(is_key || is_value, is_value, at + i * 16, x[i]);
}

#define HEADS(WIDTH)                                                                                                   \
    extern "C" __global__ void heads_##WIDTH(const float *q, const float *q_gain, float *q_out, u32 q_heads,           \
                                             const float *k, const float *k_gain, float *k_out, u32 k_heads,           \
                                             const float *turns, u32 tokens, float eps, const float *values,           \
                                             u8 *cache, int format, u32 start, u32 capacity) {                         \
        Kind queries = {q, q_gain, q_out, q_heads}, keys = {k, k_gain, k_out, k_heads};                                \
        Cache c = {cache, format, k_heads, WIDTH, capacity};                                                           \
        turn_heads<WIDTH>(queries, keys, turns, tokens, eps, values, c, start);                                        \
    }

HEADS(64)
HEADS(128)
