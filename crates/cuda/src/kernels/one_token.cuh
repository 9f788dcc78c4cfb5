// Products of one token, a stage of chain.cu. Memory is the limit, so its loads may never pause: every warp has the next
// tiles of the weight under way (ahead.cuh) before the token is there.
//
// A tile is 256 bytes of the rows of 4 outputs: 32, 16 or 8 values for each thread in each half of it. Its four quarters
// are four of the 16 rows of a product on tensor cores each, whose columns are the four quarters of the token: of the 16
// by 8 results, those whose quarters meet are a part of the sum. A block's units of 4 outputs, tile after tile, are
// dealt out to its warps in equal shares. What they found of a unit is added up in their order.
#pragma once
#include "ahead.cuh"
#include "few_tokens.cuh"
#include "token.cuh"

// ---- the weight ----

// Four int8 codes to pairs of bf16, of 0 and 2, 1 and 3. Seven bits below 128's exponent are 128 and their number; what
// is too much is 128, or 256 where the eighth bit is set.
__device__ __forceinline__ void decode_int8_apart(u32 codes, u32 scale, u32 *out) {
#pragma unroll
    for (u32 i = 0; i < 2; i++, codes >>= 8) {
        u32 above = codes & 0x007f007fu | 0x43004300u, excess = codes & 0x00800080u | 0xc300c300u;
        out[i] = multiply_pairs(add_pairs(above, excess), scale);
    }
}

// Two E4M3 scales to a pair of bf16 each, times 2^118. Their bits are those of a bf16 that is 2^120 too small; all
// of them set stand for NaN, and would be 480.
__device__ __forceinline__ void decode_scales(u32 two, u32 (&out)[2]) {
    const u32 RAISE = 0x7b007b00u; // 2^119
    u32 apart = __byte_perm(two, 0, 0x1404), magnitudes = apart >> 4 & 0x07f007f0u;
    u32 nan = (magnitudes + 0x00100010u & 0x08000800u) >> 3;
    u32 raised = multiply_pairs(multiply_pairs(magnitudes | (apart & 0x80008000u), RAISE), RAISE) | nan;
    out[0] = __byte_perm(raised, 0, 0x1010), out[1] = __byte_perm(raised, 0, 0x3232);
}

// A thread's 16 bytes of one row and their scales, decoded eight values at a time.
template <int FORMAT> struct Piece {
    uint4 codes;
    u32 scales[2];

    // `index` among the 16 pieces of a row's tile.
    __device__ __forceinline__ void load(const u8 *codes_at, const u8 *scales_at, u32 index) {
        codes = *(const uint4 *)codes_at;
        if (FORMAT == NVFP4) scales[0] = ((const u16 *)scales_at)[index];
        else if (FORMAT == INT8) scales[0] = scales_at[index];
    }

    __device__ __forceinline__ void decode_scale() {
        if (FORMAT == NVFP4) decode_scales(scales[0], scales);
        else if (FORMAT == INT8) scales[0] *= 0x00800080u;
    }

    __device__ __forceinline__ void decode(u32 eight, u32 (&out)[4]) const {
        const u32 *words = (const u32 *)&codes;
        if (FORMAT == NVFP4) {
            decode_apart(words[eight], scales[eight / 2], out);
        } else if (FORMAT == INT8) {
            decode_int8_apart(words[eight * 2], scales[0], out);
            decode_int8_apart(words[eight * 2 + 1], scales[0], out + 2);
        } else {
#pragma unroll
            for (u32 i = 0; i < 4; i++) out[i] = words[i];
        }
    }
};

// A tile that has come, times the token; of its eights, the odd ones lie `apart` from the even ones.
template <int FORMAT>
__device__ __forceinline__ void multiply(Piece<FORMAT> (&pieces)[2], const u8 *token, int apart, float (&sums)[2][4]) {
    const u32 EIGHTS = Tiling<FORMAT>::VALUES / 8;
    const u8 *odd = token + apart;
    pieces[0].decode_scale(), pieces[1].decode_scale();
#pragma unroll
    for (u32 i = 0; i < EIGHTS; i++) {
        uint4 x = *(const uint4 *)((i % 2 ? odd : token) + i / 2 * 128);
        u32 w[2][4];
        pieces[0].decode(i, w[0]), pieces[1].decode(i, w[1]);
        multiply_tile(sums[0], {w[0][0], w[1][0], w[0][1], w[1][1]}, x.x, x.y);
        multiply_tile(sums[1], {w[0][2], w[1][2], w[0][3], w[1][3]}, x.z, x.w);
    }
}

// The sum of a row, in the threads 0, 4, 8 and 12: of the results where a quarter of the weight met that of
// the token.
__device__ __forceinline__ float total(const float (&sums)[2][4]) {
    u32 lane = threadIdx.x % 32;
    float low = lane < 16 ? sums[0][0] + sums[1][0] : sums[0][1] + sums[1][1];
    float high = lane < 16 ? sums[0][2] + sums[1][2] : sums[0][3] + sums[1][3];
    float mine = lane & 1u ? high : low;
    mine += __shfl_xor_sync(0xffffffffu, mine, 1);
    return mine + __shfl_xor_sync(0xffffffffu, mine, 16);
}

// What warps found of a block's units. Units and warps only go up along the tiles, so no two warps have one place for the
// sums of a unit, `sums[unit + warp]`.
template <u32 WARPS> struct Found {
    float4 *sums;
    u32 *first; // of each unit, the warp that has its first tile

    __device__ __forceinline__ Found(u8 *at, const Share<WARPS> &share)
        : sums((float4 *)at), first((u32 *)(sums + share.units + WARPS)) {}

    __device__ __forceinline__ u8 *end(const Share<WARPS> &share) const { return (u8 *)(first + share.units); }

    // An output of a unit: the sums of all warps that have tiles of it, in their order.
    __device__ __forceinline__ float total(const Share<WARPS> &share, u32 unit, u32 row) const {
        u32 end = (unit + 1) * share.tiles;
        float sum = 0.0f;
#pragma unroll 1
        for (u32 warp = first[unit]; share.begin(warp) < end; warp++)
            if (share.begin(warp) < share.begin(warp + 1)) sum += ((const float *)&sums[unit + warp])[row];
        return sum;
    }
};

// A warp's share.
template <int FORMAT, u32 WARPS>
__device__ __forceinline__ void multiply_share(const Share<WARPS> &share, Ahead<WARPS> &ahead, u32 end, const u8 *tokens,
                                               const Found<WARPS> &found) {
    const u32 INNER = Tiling<FORMAT>::INNER;
    u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, first = share.begin(warp), todo = share.begin(warp + 1) - first;
    u32 unit = share.unit(first), done = first - unit * share.tiles;
    // As keep_eight puts them.
    u32 exchanged = Tiling<FORMAT>::VALUES > 8 ? lane / 4 & 1u : 0;
    const u8 *own = tokens + (lane / 4 % 4 * (INNER / 32) + lane % 4) * 16 + exchanged * 64;
    int apart = exchanged ? -64 : 64;
    u32 codes_at = lane * 16, scales_at = 1024 + lane / 4 % 4 * Tiling<FORMAT>::SCALES;
    u32 piece = lane / 16 * 4 + lane % 4;
#pragma unroll 1
    while (todo > 0) {
        if (done == 0 && lane == 0) found.first[unit] = warp;
        u32 run = min(share.tiles - done, todo);
        const u8 *token = own + done * INNER * 2;
        float sums[2][4] = {};
        todo -= run, done = 0;
#pragma unroll 1
        for (; run > 0; run--, token += INNER * 2) {
            u8 *tile = ahead.take();
            Piece<FORMAT> pieces[2];
            pieces[0].load(tile + codes_at, tile + scales_at, piece);
            pieces[1].load(tile + codes_at + 512, tile + scales_at, piece + 8);
            ahead.give_back(tile, end);
            multiply<FORMAT>(pieces, token, apart, sums);
        }
        float sum = total(sums);
        if (lane < 16 && lane % 4 == 0) ((float *)&found.sums[unit + warp])[lane / 4] = sum;
        unit++;
    }
}

// ---- outputs ----

// An output of this block's share, and what its end needs: asked for long before.
struct Output {
    const ProductStage &s;
    u32 index, which, n;
    bool there, added;
    float scale, up_scale, bias, up_bias, before;

    template <u32 WARPS>
    __device__ __forceinline__ Output(const ProductStage &s, const Share<WARPS> &share, u32 index) : s(s), index(index) {
        bool pair = s.kind == GATED;
        u32 unit = share.first_unit + index / 4;
        which = pair ? 0 : (unit >= s.second) + (unit >= s.third);
        u32 first = which == 0 ? 0 : which == 1 ? s.second : s.third;
        n = pair ? share.first_unit * 2 + index : (unit - first) * 4 + index % 4;
        there = index < share.units * (pair ? 2 : 4) && n < s.outputs[which];
        added = there && (s.added >> which & 1u);
        const float own = s.format == NVFP4 ? SHRUNK : 1.0f;
        scale = there ? tensor_scale(s.weight[which], s.format) * own : 0.0f;
        up_scale = there && pair ? tensor_scale(s.weight[1], s.format) * own : 0.0f;
        bias = there && s.bias[which] ? s.bias[which][n] : 0.0f;
        up_bias = there && pair && s.bias[1] ? s.bias[1][n] : 0.0f;
    }

    // What it is added to, once that is there.
    __device__ __forceinline__ void look() { before = added ? ((const float *)s.out[which])[n] : 0.0f; }

    template <u32 WARPS>
    __device__ __forceinline__ void finish(const Share<WARPS> &share, const Found<WARPS> &found) const {
        if (!there) return;
        u32 unit = index / 4, row = index % 4;
        if (s.kind == GATED) {
            float gate = found.total(share, unit * 2, row) * scale, up = found.total(share, unit * 2 + 1, row) * up_scale;
            if (s.bias[0]) gate += bias;
            if (s.bias[1]) up += up_bias;
            put(s.out[0], s.out_narrow, s.outputs[0], 0, n, silu(gate) * up);
        } else {
            float y = found.total(share, unit, row) * scale;
            if (s.bias[which]) y += bias;
            ((float *)s.out[which])[n] = added ? before + y : y;
        }
    }
};

// ---- all of it ----

// `work`: the token as bf16, what warps found, and for a norm the token as f32 behind one number; one_token.rs asks for
// as much.
template <int FORMAT, u32 WARPS, class Wait>
__device__ __forceinline__ void one_token(const ProductStage &s, Ahead<WARPS> &ahead, u32 end, u8 *work, Wait wait) {
    Share<WARPS> share(s);
    Token t = {s.x, s.x_narrow, s.inputs, s.gain, s.eps, s.normed};
    Found<WARPS> found(work + share.tiles * Tiling<FORMAT>::INNER * 2, share);
    u8 *row = (u8 *)((u64)(found.end(share) + 15) & ~15ull);
    float gains[8] = {};
    if (t.gain) load_eight(t.gain, threadIdx.x * 8, t.inputs, gains);
    Output output(s, share, threadIdx.x);
    wait();
    output.look();
    if (t.gain) bring_norm<FORMAT>(t, work, row, gains);
    else bring<FORMAT>(t, work);
    __syncthreads();
    multiply_share<FORMAT>(share, ahead, end, work, found);
    __syncthreads();
    output.finish(share, found);
#pragma unroll 1
    for (u32 i = threadIdx.x + blockDim.x; i < share.units * 4; i += blockDim.x) {
        Output more(s, share, i);
        more.look(), more.finish(share, found);
    }
    if (s.kind == GATED && blockIdx.x == 0) pad(s.out[0], s.out_narrow, s.outputs[0], 0, threadIdx.x, blockDim.x);
}
