// Products with f32 weights, nothing rounded, in the order of ops::dot: groups of 32 inner positions,
// even and odd ones as two chains, groups added in turn. So these have the bits of the CPU.
//
// A block of 256 threads makes 32 tokens by 32 outputs, each thread 2 by 2; gated, of two products.
#include "product.cuh"

const u32 SIDE = 32, GROUP = 32;

// [rows][33]: a group of rows `first..`, zero where nothing is.
__device__ __forceinline__ void fetch_group(float *tile, const float *from, u64 stride, u32 first, u32 rows, u32 k,
                                            u32 columns) {
    for (u32 i = threadIdx.x; i < SIDE * GROUP; i += 256) {
        u32 row = i / GROUP, c = k + i % GROUP;
        tile[row * (GROUP + 1) + i % GROUP] =
            first + row < rows && c < columns ? from[(first + row) * stride + c] : 0.0f;
    }
}

template <bool GATED> __device__ __forceinline__ void exact(const Operands &o) {
    const u32 COUNT = GATED ? 2 : 1, TILE = SIDE * (GROUP + 1);
    float *x = (float *)dynamic_shared, *w = x + TILE;
    u32 first_t = blockIdx.x * SIDE, first_n = blockIdx.y * SIDE, row = threadIdx.x / 16, column = threadIdx.x % 16;
    float totals[COUNT][2][2] = {};
    for (u32 k = 0; k < o.inputs; k += GROUP) {
        __syncthreads();
        fetch_group(x, (const float *)o.x, o.inputs, first_t, o.tokens, k, o.inputs);
        // Panels of 16 rows are rows one after the other, padded.
        for (u32 side = 0; side < COUNT; side++)
            fetch_group(w + side * TILE, (const float *)((side ? o.up : o.weight) + 64), padded(o.inputs), first_n,
                        o.outputs, k, o.inputs);
        __syncthreads();
#pragma unroll
        for (u32 side = 0; side < COUNT; side++) {
#pragma unroll
            for (u32 i = 0; i < 4; i++) {
                const float *a = x + (row + i / 2 * 16) * (GROUP + 1);
                const float *b = w + side * TILE + (column + i % 2 * 16) * (GROUP + 1);
                float even = 0.0f, odd = 0.0f;
#pragma unroll
                for (u32 j = 0; j < GROUP; j += 2) {
                    even = __fmaf_rn(a[j], b[j], even);
                    odd = __fmaf_rn(a[j + 1], b[j + 1], odd);
                }
                totals[side][i / 2][i % 2] += even + odd;
            }
        }
    }
#pragma unroll
    for (u32 i = 0; i < 4; i++) {
        u32 t = first_t + row + i / 2 * 16, n = first_n + column + i % 2 * 16;
        if (GATED) finish_gated(o, t, n, totals[0][i / 2][i % 2], totals[COUNT - 1][i / 2][i % 2], 1.0f, 1.0f);
        else finish(o, t, n, totals[0][i / 2][i % 2], 1.0f);
    }
}

extern "C" __global__ void __launch_bounds__(256) linear_f32(OPERANDS) { exact<false>(GIVEN); }
extern "C" __global__ void __launch_bounds__(256) gated_f32(OPERANDS, KEPT) { exact<true>(GIVEN_KEPT); }
