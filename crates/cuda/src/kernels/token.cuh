// The token of one_token.cuh in shared memory, as bf16 in the order of the decoded weight: as it is given, or by way of
// its norm.
#pragma once
#include "norm.cuh"
#include "tensor_core.cuh"

// The token, or what its norm makes of it: then `normed` gets it too.
struct Token {
    const void *x;
    u32 narrow, inputs;
    const float *gain;
    float eps;
    u16 *normed;
};

#define TOKEN const void *x, u32 x_narrow, u32 inputs, const float *gain, float eps, u16 *normed
#define GIVEN_TOKEN Token{x, x_narrow, inputs, gain, eps, normed}

template <int FORMAT> struct Tiling {
    static const u32 VALUES = FORMAT == NVFP4 ? 32 : FORMAT == INT8 ? 16 : 8; // of 16 bytes
    static const u32 QUARTER = 4 * VALUES, INNER = 4 * QUARTER;
    static const u32 SCALES = FORMAT == BF16 ? 0 : INNER / 16; // of a row

    static __device__ __forceinline__ u32 tiles(u32 inputs) { return (padded(inputs) + INNER - 1) / INNER; }
};

// Eight values in the order of the decoded weight.
template <int FORMAT> __device__ __forceinline__ uint4 in_order(uint4 x) {
    if (FORMAT == BF16) return x;
    u32 a = x.x, b = FORMAT == NVFP4 ? x.z : x.y, c = FORMAT == NVFP4 ? x.y : x.z, d = x.w;
    return make_uint4(__byte_perm(a, b, 0x5410), __byte_perm(a, b, 0x7632), __byte_perm(c, d, 0x5410),
                      __byte_perm(c, d, 0x7632));
}

// Eight values, the index-th, to where the threads that want them read them together without a conflict of banks.
template <int FORMAT> __device__ __forceinline__ void keep_eight(u8 *token, u32 index, uint4 x) {
    const u32 EIGHTS = Tiling<FORMAT>::VALUES / 8;
    u32 piece = index / EIGHTS, quarter = piece / 4, i = index % EIGHTS ^ (EIGHTS > 1 ? quarter & 1u : 0);
    *(uint4 *)(token + ((quarter * EIGHTS + i) * 4 + piece % 4) * 16) = in_order<FORMAT>(x);
}

// Eight values of f32; zeros after the last.
__device__ __forceinline__ void load_eight(const float *from, u32 first, u32 count, float (&out)[8]) {
    if (first + 8 <= count && (u64)from % 16 == 0) {
        float4 a = *(const float4 *)(from + first), b = *(const float4 *)(from + first + 4);
        out[0] = a.x, out[1] = a.y, out[2] = a.z, out[3] = a.w, out[4] = b.x, out[5] = b.y, out[6] = b.z, out[7] = b.w;
    } else {
#pragma unroll
        for (u32 i = 0; i < 8; i++) out[i] = first + i < count ? from[first + i] : 0.0f;
    }
}

__device__ __forceinline__ uint4 eight_pairs(const float (&x)[8]) {
    return make_uint4(pair_of(x[0], x[1]), pair_of(x[2], x[3]), pair_of(x[4], x[5]), pair_of(x[6], x[7]));
}

// Loads that a thread has under way at once.
const u32 LOADS = 4;

// The token into shared memory, as it is.
template <int FORMAT> __device__ __forceinline__ void bring(const Token &t, u8 *token) {
    u32 eights = Tiling<FORMAT>::tiles(t.inputs) * Tiling<FORMAT>::INNER / 8, width = padded(t.inputs);
    for (u32 first = threadIdx.x; first < eights; first += blockDim.x * LOADS) {
        uint4 x[LOADS];
#pragma unroll
        for (u32 l = 0; l < LOADS; l++) {
            u32 i = first + l * blockDim.x;
            x[l] = make_uint4(0, 0, 0, 0);
            if (t.narrow) {
                if (i * 8 < width) x[l] = ((const uint4 *)t.x)[i];
            } else if (i * 8 < t.inputs) {
                float values[8];
                load_eight((const float *)t.x, i * 8, t.inputs, values);
                x[l] = eight_pairs(values);
            }
        }
#pragma unroll
        for (u32 l = 0; l < LOADS; l++)
            if (first + l * blockDim.x < eights) keep_eight<FORMAT>(token, first + l * blockDim.x, x[l]);
    }
}

// The token into shared memory, in f32.
__device__ __forceinline__ void bring_row(const Token &t, float *row) {
    const float *x = (const float *)t.x;
    u32 whole = (u64)x % 16 == 0 ? t.inputs / 4 : 0;
    for (u32 first = threadIdx.x; first < whole; first += blockDim.x * LOADS) {
        float4 part[LOADS];
#pragma unroll
        for (u32 l = 0; l < LOADS; l++) {
            u32 i = first + l * blockDim.x;
            part[l] = i < whole ? ((const float4 *)x)[i] : make_float4(0, 0, 0, 0);
        }
#pragma unroll
        for (u32 l = 0; l < LOADS; l++)
            if (first + l * blockDim.x < whole) ((float4 *)row)[first + l * blockDim.x] = part[l];
    }
    for (u32 c = whole * 4 + threadIdx.x; c < t.inputs; c += blockDim.x) row[c] = x[c];
}

// The token's norm into shared memory, with the bits of rms_norm.cu; every block finds it for itself. `gains` are those
// of this thread's first eight values, which came before the token did.
template <int FORMAT>
__device__ __forceinline__ void bring_norm(const Token &t, u8 *token, u8 *place, const float (&gains)[8]) {
    float *r = (float *)place, *row = r + 4;
    u32 eights = Tiling<FORMAT>::tiles(t.inputs) * Tiling<FORMAT>::INNER / 8, width = padded(t.inputs);
    bring_row(t, row);
    __syncthreads();
    if (threadIdx.x < 32) {
        float found = reciprocal_of(row, t.inputs, t.eps);
        if (threadIdx.x == 0) *r = found;
    }
    __syncthreads();
    float scale = *r;
    for (u32 i = threadIdx.x; i < eights; i += blockDim.x) {
        float g[8], values[8];
#pragma unroll
        for (u32 j = 0; j < 8; j++) g[j] = gains[j];
        if (i != threadIdx.x) load_eight(t.gain, i * 8, t.inputs, g);
        load_eight(row, i * 8, t.inputs, values);
#pragma unroll
        for (u32 j = 0; j < 8; j++) values[j] = g[j] * (values[j] * scale);
        uint4 x = eight_pairs(values);
        keep_eight<FORMAT>(token, i, x);
        if (blockIdx.x == 0 && i * 8 < width) ((uint4 *)t.normed)[i] = x;
    }
}
