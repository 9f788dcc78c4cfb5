// heads.cu for many tokens, with its bits: four threads for each head, four neighbouring columns of every sixteen in each,
// so that everything goes sixteen bytes at a time. Both values of a pair are in the same thread, a block of 16 channels in
// four neighbours.
#include "cache.cuh"
#include "fours.cuh"
#include "norm.cuh"

const u32 THREADS = 128;

struct Kind {
    const void *raw;
    const float *gain;
    void *out;
    u32 raw_narrow, narrow, heads;
};

// Four channels into one side of the cache, if they are meant to go there; all threads of a warp take part.
__device__ __forceinline__ void keep(const Cache &c, bool meant, u32 which, u64 at, float4 x) {
    u8 *side = (u8 *)c.side(which);
    if (c.format == CACHE_F32) {
        if (meant) *(float4 *)((float *)side + at) = x;
    } else if (c.format == CACHE_BF16) {
        if (meant) *(uint2 *)((u16 *)side + at) = four_bf16(x);
    } else {
        float values[4] = {x.x, x.y, x.z, x.w};
        u32 largest = 0, codes = 0;
#pragma unroll
        for (u32 i = 0; i < 4; i++) largest = max(largest, __float_as_uint(values[i]) & 0x7fffffffu);
        largest = max(largest, __shfl_xor_sync(0xffffffffu, largest, 1));
        largest = max(largest, __shfl_xor_sync(0xffffffffu, largest, 2));
        u32 exponent = int8_exponent(largest);
#pragma unroll
        for (u32 i = 0; i < 4; i++) codes |= (u32)(u8)int8_code(values[i], exponent) << i * 8;
        if (meant) *(u32 *)(side + at) = codes;
        if (meant && at % 16 == 0) side[c.values_of_side() + at / 16] = (u8)exponent;
    }
}

template <u32 WIDTH>
__device__ __forceinline__ void turn_heads(const Kind &queries, const Kind &keys, const float *turns, u32 tokens, float eps,
                                           const float *values, const Cache &c, u32 start) {
    const u32 EACH = WIDTH / 16;
    u32 head = blockIdx.x * (THREADS / 4) + threadIdx.x / 4, of_queries = tokens * queries.heads, of_keys = tokens * keys.heads;
    // Queries, keys, values; those after the last write nothing.
    bool there = head < of_queries + (values ? 2 : 1) * of_keys;
    head = there ? head : 0;
    bool is_value = head >= of_queries + of_keys, is_query = head < of_queries;
    head -= is_value ? of_queries + of_keys : is_query ? 0 : of_queries;
    const void *raw = is_value ? values : is_query ? queries.raw : keys.raw;
    const float *gain = is_query ? queries.gain : keys.gain;
    u32 lane = threadIdx.x & 3u, t = head / (is_query ? queries.heads : keys.heads);
    const float *turn = turns + (u64)t * WIDTH + lane * 4;
    float4 x[EACH], squares = all_of(0.0f);
    get_fours(raw, !is_value && (is_query ? queries.raw_narrow : keys.raw_narrow), head, lane, x);
#pragma unroll
    for (u32 i = 0; i < EACH; i++) squares = multiply_add(x[i], x[i], squares);
    float4 r = all_of(reciprocal(fold_fours(squares), WIDTH, eps));
    if (there && !is_value) {
#pragma unroll
        for (u32 i = 0; i < EACH / 2; i++) {
            float4 a = x[i], b = x[i + EACH / 2];
            float4 cosine = *(const float4 *)(turn + i * 16), sine = *(const float4 *)(turn + WIDTH / 2 + i * 16);
            if (gain) {
                const float *g = gain + lane * 4 + i * 16;
                a = multiply(*(const float4 *)g, multiply(a, r));
                b = multiply(*(const float4 *)(g + WIDTH / 2), multiply(b, r));
            }
            x[i] = multiply_add(a, cosine, minus(multiply(b, sine)));
            x[i + EACH / 2] = multiply_add(b, cosine, multiply(a, sine));
        }
#pragma unroll
        for (u32 i = 0; i < EACH; i++)
            put_four(is_query ? queries.out : keys.out, is_query ? queries.narrow : keys.narrow, WIDTH, head, lane * 4 + i * 16,
                     x[i]);
    }
    __syncwarp();
    if (!values) return;
    u64 at = c.row(head % keys.heads, start + t) + lane * 4;
#pragma unroll
    for (u32 i = 0; i < EACH; i++) keep(c, there && !is_query, is_value, at + i * 16, x[i]);
}

#define HEADS(WIDTH)                                                                                                   \
    extern "C" __global__ void __launch_bounds__(THREADS, 6)                                                           \
        heads_many_##WIDTH(const void *q, const float *q_gain, void *q_out, u32 q_heads, const void *k,                \
                           const float *k_gain, void *k_out, u32 k_heads, const float *turns, u32 tokens, float eps,   \
                           const float *values, u8 *cache, int format, u32 start, u32 capacity, u32 q_raw_narrow,      \
                           u32 q_narrow, u32 k_raw_narrow, u32 k_narrow) {                                             \
        Kind queries = {q, q_gain, q_out, q_raw_narrow, q_narrow, q_heads};                                            \
        Kind keys = {k, k_gain, k_out, k_raw_narrow, k_narrow, k_heads};                                               \
        Cache c = {cache, format, k_heads, WIDTH, capacity};                                                           \
        turn_heads<WIDTH>(queries, keys, turns, tokens, eps, values, c, start);                                        \
    }

HEADS(64)
HEADS(128)
