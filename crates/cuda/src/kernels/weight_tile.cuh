// Thirty-two values of a weight's row, from its own format to pairs of bf16 (exact in every format).
#pragma once
#include "tensor_core.cuh"

// The bytes as they come from memory.
template <int FORMAT> struct RawValues {
    uint4 codes[FORMAT == BF16 ? 4 : FORMAT == INT8 ? 2 : 1];
    u32 scales;
};

// A row of a weight and how to read 32 values of it at a time.
template <int FORMAT> struct WeightRow {
    const u8 *codes, *scales;
    bool there;

    // Rows that do not exist are zero; those up to 16 are kept so.
    __device__ WeightRow(const u8 *weight, u32 rows, u32 columns, u32 row) {
        there = row < ((rows + 15u) & ~15u);
        const u8 *panel = panel_of(weight, FORMAT, columns, there ? row : 0);
        codes = codes_of(panel, FORMAT, columns, row);
        scales = scales_of(panel, FORMAT, columns, row);
    }

    // Values 32 * part on; zeros where the row has ended.
    __device__ __forceinline__ RawValues<FORMAT> load(u32 part, bool inside = true) const {
        RawValues<FORMAT> raw;
        bool there = this->there && inside;
        const int count = sizeof(raw.codes) / sizeof(uint4);
        const uint4 *from = (const uint4 *)codes + part * count;
#pragma unroll
        for (int i = 0; i < count; i++) raw.codes[i] = there ? from[i] : make_uint4(0, 0, 0, 0);
        raw.scales = FORMAT != BF16 && there ? ((const u16 *)scales)[part] : 0;
        return raw;
    }
};

// Eight E2M1 codes to pairs of bf16, times a pair of scales. A code's bits are those of a bf16 below
// its exponents; 2^126 brings them up. Codes four apart go together, since one shift serves both.
__device__ __forceinline__ void decode_e2m1(u32 codes, u32 scale, u32 *out) {
    u32 apart[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        u32 magnitude = i < 2 ? codes << (6 - 4 * i) : codes >> (4 * i - 6);
        u32 pair = (codes << (12 - 4 * i) & 0x80008000u) | (magnitude & 0x01c001c0u);
        apart[i] = multiply_pairs(multiply_pairs(pair, 0x7e807e80u), scale);
    }
    out[0] = __byte_perm(apart[0], apart[1], 0x5410), out[1] = __byte_perm(apart[2], apart[3], 0x5410);
    out[2] = __byte_perm(apart[0], apart[1], 0x7632), out[3] = __byte_perm(apart[2], apart[3], 0x7632);
}

// Four int8 codes, times a power of two.
__device__ __forceinline__ void decode_int8(u32 codes, float scale, u32 *out) {
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float low = (float)(i8)(codes >> 16 * i) * scale, high = (float)(i8)(codes >> (16 * i + 8)) * scale;
        out[i] = __float_as_uint(low) >> 16 | (__float_as_uint(high) & 0xffff0000u);
    }
}

template <int FORMAT> __device__ __forceinline__ void decode(const RawValues<FORMAT> &raw, u32 (&out)[16]) {
    const u32 *words = (const u32 *)raw.codes;
    if (FORMAT == BF16) {
#pragma unroll
        for (int i = 0; i < 16; i++) out[i] = words[i];
    } else if (FORMAT == INT8) {
#pragma unroll
        for (int i = 0; i < 8; i++) decode_int8(words[i], e8m0(raw.scales >> i / 4 * 8 & 255u), out + 2 * i);
    } else {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            u32 scale = __float_as_uint(e4m3(raw.scales >> i / 2 * 8 & 255u)) >> 16;
            decode_e2m1(words[i], scale | scale << 16, out + 4 * i);
        }
    }
}
