// The way back of heads.cu: gradients of queries and keys are turned back, then go through the norm of their heads, where
// there is one, as row_gradients.cu would do it one after the other. Four threads for each head hold all of it: four
// neighbouring columns of every sixteen, so four lanes of the sums, and both values of a pair.
#include "fours.cuh"
#include "norm.cuh"

const u32 THREADS = 128;

struct Kind {
    const void *raw;
    u32 raw_narrow;
    const float *gain;
    const void *dy;
    u32 dy_narrow;
    void *dx;
    u32 dx_narrow, heads;
};

// Heads `chunk * block` on of one kind; the gain's share of them goes to row `blockIdx.x` of `parts`.
template <u32 WIDTH>
__device__ __forceinline__ void turn_back(const Kind &kind, u32 block, u32 chunk, const float *turns, u32 tokens, float eps,
                                          float *parts) {
    const u32 EACH = WIDTH / 16;
    __shared__ float4 gains[WIDTH / 4];
    __shared__ float warps[THREADS / 32][WIDTH];
    u32 lane = threadIdx.x & 3u, warp = threadIdx.x / 32, all = tokens * kind.heads;
    u32 first = block * chunk, last = min(first + chunk, all);
    if (kind.gain && threadIdx.x < WIDTH / 4) gains[threadIdx.x] = ((const float4 *)kind.gain)[threadIdx.x];
    __syncthreads();
    float4 sums[EACH];
#pragma unroll
    for (u32 i = 0; i < EACH; i++) sums[i] = all_of(0.0f);
    for (u32 start = first; start < last; start += THREADS / 4) {
        u32 head = start + threadIdx.x / 4;
        bool there = head < last;
        head = there ? head : first;
        const float *turn = turns + (u64)(head / kind.heads) * WIDTH + lane * 4;
        float4 x[EACH], d[EACH];
        get_fours(kind.dy, kind.dy_narrow, head, lane, d);
        if (kind.gain) get_fours(kind.raw, kind.raw_narrow, head, lane, x);
#pragma unroll
        for (u32 i = 0; i < EACH / 2; i++) {
            float4 a = d[i], b = d[i + EACH / 2];
            float4 cosine = *(const float4 *)(turn + i * 16), sine = *(const float4 *)(turn + WIDTH / 2 + i * 16);
            d[i] = multiply_add(a, cosine, multiply(b, sine));
            d[i + EACH / 2] = multiply_add(b, cosine, minus(multiply(a, sine)));
        }
        if (kind.gain) {
            float4 squares = all_of(0.0f), products = squares;
#pragma unroll
            for (u32 i = 0; i < EACH; i++) {
                squares = multiply_add(x[i], x[i], squares);
                products = multiply_add(multiply(gains[i * 4 + lane], d[i]), x[i], products);
            }
            float r = reciprocal(fold_fours(squares), WIDTH, eps);
            float4 mean = all_of(fold_fours(products) / (float)WIDTH * r * r * r);
#pragma unroll
            for (u32 i = 0; i < EACH; i++) {
                float4 y = multiply_add(multiply(gains[i * 4 + lane], d[i]), all_of(r), minus(multiply(x[i], mean)));
                if (there) sums[i] = multiply_add(d[i], multiply(x[i], all_of(r)), sums[i]);
                // What is added to zero has no minus zero.
                d[i] = make_float4(0.0f + y.x, 0.0f + y.y, 0.0f + y.z, 0.0f + y.w);
            }
        }
#pragma unroll
        for (u32 i = 0; i < EACH; i++)
            if (there) put_four(kind.dx, kind.dx_narrow, WIDTH, head, lane * 4 + i * 16, d[i]);
    }
    if (!kind.gain) return;
#pragma unroll
    for (u32 i = 0; i < EACH; i++) {
        float sum[4] = {sums[i].x, sums[i].y, sums[i].z, sums[i].w};
#pragma unroll
        for (u32 j = 0; j < 4; j++) {
            for (int apart = 4; apart < 32; apart *= 2) sum[j] += __shfl_xor_sync(0xffffffffu, sum[j], apart);
            if (threadIdx.x % 32 < 4) warps[warp][i * 16 + lane * 4 + j] = sum[j];
        }
    }
    __syncthreads();
    if (threadIdx.x >= WIDTH) return;
    float sum = 0.0f;
#pragma unroll
    for (u32 w = 0; w < THREADS / 32; w++) sum += warps[w][threadIdx.x];
    parts[(u64)blockIdx.x * WIDTH + threadIdx.x] = sum;
}

#define OF_KIND(x)                                                                                                     \
    const void *x##_raw, u32 x##_raw_narrow, const float *x##_gain, const void *x##_dy, u32 x##_dy_narrow, void *x##_dx, \
        u32 x##_dx_narrow, u32 x##_heads
#define KIND(x) {x##_raw, x##_raw_narrow, x##_gain, x##_dy, x##_dy_narrow, x##_dx, x##_dx_narrow, x##_heads}

// The first `q_blocks` blocks take the queries.
#define HEADS_GRADIENT(WIDTH)                                                                                          \
    extern "C" __global__ void __launch_bounds__(THREADS, 4)                                                           \
        heads_gradient_##WIDTH(OF_KIND(q), OF_KIND(k), const float *turns, u32 tokens, float eps, u32 q_blocks,        \
                               u32 chunk, float *parts) {                                                              \
        bool keys = blockIdx.x >= q_blocks;                                                                            \
        Kind queries = KIND(q), kind = KIND(k);                                                                        \
        if (!keys) kind = queries;                                                                                     \
        turn_back<WIDTH>(kind, blockIdx.x - (keys ? q_blocks : 0), chunk, turns, tokens, eps, parts);                  \
    }

HEADS_GRADIENT(64)
HEADS_GRADIENT(128)
