// Products of at most 8 tokens, as when tokens are made one by one. Memory is the limit: many warps have their loads
// under way at once, and a weight is decoded with few instructions.
//
// A block makes 16 outputs (gated: of each product); its warps share the inner positions, 128 at a time,
// and their sums are added in order. Each thread brings 32 positions of two rows and of one token straight from
// memory; which positions meet in one instruction does not matter as long as they are the same on both sides.
#pragma once
#include "product.cuh"

// Decoded NVFP4 weights are this much too small, see below.
const float SHRUNK = 256.0f;

// Eight E2M1 codes to pairs of bf16, of the codes 0 and 4, 1 and 5, 2 and 6, 3 and 7. A code's bits are those of a bf16
// below its exponents, 2^126 too small, with the sign six bits too low: one product puts both copies where they belong.
// The scale brings 2^118 with it, which is as much as the largest scale allows.
__device__ __forceinline__ void decode_apart(u32 codes, u32 scale, u32 *out) {
    const u32 PLACES = 0x81c081c0u;
    u32 later = codes >> 8;
    out[0] = multiply_pairs((codes & 0x000f000fu) * 0x1040u & PLACES, scale);
    out[1] = multiply_pairs((codes & 0x00f000f0u) * 0x104u & PLACES, scale);
    out[2] = multiply_pairs((later & 0x000f000fu) * 0x1040u & PLACES, scale);
    out[3] = multiply_pairs((later & 0x00f000f0u) * 0x104u & PLACES, scale);
}

// Eight values, the group-th of the 32, to pairs of bf16.
template <int FORMAT>
__device__ __forceinline__ void decode_eight(const RawValues<FORMAT> &raw, u32 group, u32 (&out)[4]) {
    const u32 *words = (const u32 *)raw.codes;
    u32 scale = raw.scales >> group / 2 * 8 & 255u;
    if (FORMAT == BF16) {
#pragma unroll
        for (u32 i = 0; i < 4; i++) out[i] = words[group * 4 + i];
    } else if (FORMAT == INT8) {
        decode_int8(words[group * 2], e8m0(scale), out);
        decode_int8(words[group * 2 + 1], e8m0(scale), out + 2);
    } else {
        u32 raised = __float_as_uint(e4m3(scale) * __uint_as_float(245u << 23));
        decode_apart(words[group], raised >> 16 | (raised & 0xffff0000u), out);
    }
}

// Eight values of a token's row as pairs of bf16, in the order of the decoded weight.
template <int FORMAT>
__device__ __forceinline__ void token_pairs(const Operands &o, u32 t, u32 first, bool there, u32 (&out)[4]) {
    if (o.x_narrow) {
        const u16 *from = (const u16 *)o.x + (there ? (u64)t * padded(o.inputs) + first : 0);
        uint4 x = there ? *(const uint4 *)from : make_uint4(0, 0, 0, 0);
        out[0] = x.x, out[1] = x.y, out[2] = x.z, out[3] = x.w;
    } else {
        const float *from = (const float *)o.x + (u64)t * o.inputs;
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            u32 c = first + 2 * i;
            float low = there && c < o.inputs ? from[c] : 0.0f;
            out[i] = pair_of(low, there && c + 1 < o.inputs ? from[c + 1] : 0.0f);
        }
    }
    if (FORMAT != NVFP4) return;
    u32 a = out[0], b = out[1], c = out[2], d = out[3];
    out[0] = (a & 0xffffu) | c << 16, out[1] = a >> 16 | (c & 0xffff0000u);
    out[2] = (b & 0xffffu) | d << 16, out[3] = b >> 16 | (d & 0xffff0000u);
}

// A warp's share of 16 outputs by 8 tokens.
template <int FORMAT>
__device__ __forceinline__ void share_of(const Operands &o, const u8 *weight, u32 first_n, u32 share, u32 shares,
                                         float (&sums)[4]) {
    u32 lane = threadIdx.x % 32, n = first_n + lane / 4, width = padded(o.inputs);
    const WeightRow<FORMAT> rows[2] = {WeightRow<FORMAT>(weight, o.outputs, o.inputs, n),
                                       WeightRow<FORMAT>(weight, o.outputs, o.inputs, n + 8)};
    bool token = lane / 4 < o.tokens;
    for (u32 first = share; first * 128 < width; first += shares) {
        u32 part = first * 4 + lane % 4;
        bool there = part * 32 < width;
        RawValues<FORMAT> raw[2];
#pragma unroll
        for (u32 r = 0; r < 2; r++) raw[r] = rows[r].load(part, there);
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            u32 x[4], w[2][4];
            token_pairs<FORMAT>(o, lane / 4, part * 32 + i * 8, token && there, x);
#pragma unroll
            for (u32 r = 0; r < 2; r++) decode_eight<FORMAT>(raw[r], i, w[r]);
#pragma unroll
            for (u32 j = 0; j < 4; j += 2) {
                const u32 a[4] = {w[0][j], w[1][j], w[0][j + 1], w[1][j + 1]};
                multiply_tile(sums, a, x[j], x[j + 1]);
            }
        }
    }
}

// The outputs of one block, of 128 threads at least. Gated: the first half of the warps has the gate, the other the up.
template <int FORMAT, bool GATED>
__device__ __forceinline__ void few_tokens(const Operands &o, u32 block) {
    float *results = (float *)dynamic_shared; // [warp][output][token]
    const u32 COUNT = GATED ? 2 : 1;
    u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, shares = blockDim.x / 32 / COUNT, first_n = block * 16;
    // What the end needs is asked for at once.
    u32 t = threadIdx.x % 8, n = first_n + threadIdx.x / 8;
    bool mine = threadIdx.x < 128 && t < o.tokens && n < o.outputs;
    const float own = FORMAT == NVFP4 ? SHRUNK : 1.0f;
    float scale = tensor_scale(o.weight, FORMAT) * own, up_scale = tensor_scale(o.up, FORMAT) * own;
    float before = !GATED && mine && o.added ? ((const float *)o.out)[(u64)t * o.outputs + n] : 0.0f;
    float bias = mine && o.bias ? o.bias[n] : 0.0f;

    float sums[4] = {};
    bool is_up = warp >= shares;
    share_of<FORMAT>(o, is_up ? o.up : o.weight, first_n, is_up ? warp - shares : warp, shares, sums);
    float *to = results + warp * 128 + lane / 4 * 8 + lane % 4 * 2;
    to[0] = sums[0], to[1] = sums[1], to[64] = sums[2], to[65] = sums[3];
    __syncthreads();
    if (threadIdx.x >= 128) return;
    float totals[COUNT] = {};
#pragma unroll
    for (u32 side = 0; side < COUNT; side++)
        for (u32 w = 0; w < shares; w++) totals[side] += results[(side * shares + w) * 128 + threadIdx.x];
    if (GATED) {
        finish_gated(o, t, n, totals[0], totals[COUNT - 1], scale, up_scale);
    } else if (mine) {
        float y = totals[0] * scale;
        if (o.bias) y += bias;
        ((float *)o.out)[(u64)t * o.outputs + n] = o.added ? before + y : y;
    }
}

// One of up to three products of the same input.
#define TARGET(i) const u8 *weight##i, const float *bias##i, float *out##i, u32 outputs##i, u32 added##i
#define CHOSEN(i)                                                                                                      \
    Operands{x, x_narrow, weight##i, weight##i, bias##i, bias##i, out##i, 0, added##i, tokens, outputs##i, inputs}

// Two blocks must fit on a multiprocessor.
#define FEW_TOKENS(FORMAT, name)                                                                                       \
    extern "C" __global__ void __launch_bounds__(512, 2)                                                               \
        linear_##name##_8(const void *x, u32 x_narrow, u32 tokens, u32 inputs, TARGET(0), TARGET(1), TARGET(2)) {      \
        u32 block = blockIdx.x, second = (outputs0 + 15) / 16, third = second + (outputs1 + 15) / 16;                  \
        Operands o = block < second ? CHOSEN(0) : block < third ? CHOSEN(1) : CHOSEN(2);                               \
        few_tokens<FORMAT, false>(o, block - (block < second ? 0 : block < third ? second : third));                   \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(512, 2) gated_##name##_8(OPERANDS) {                                  \
        few_tokens<FORMAT, true>(GIVEN, blockIdx.x);                                                                   \
    }
