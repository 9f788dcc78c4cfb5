// The cache of a layer: keys, then values; of each `[head][position][width]`, the head's width padded to
// 32 with zeros. Int8: the codes of a side so, then its E8M0 scales `[head][position][width / 16]`.
#pragma once
#include "common.cuh"

// As in ops::CacheFormat, in that order.
enum CacheFormat { CACHE_F32 = 0, CACHE_BF16 = 1, CACHE_INT8 = 2 };

// The scale of a block of 16 by the bits of its largest magnitude, as halfbyte_formats::int8_block has it; 255 if that
// is not finite.
__device__ __forceinline__ u32 int8_exponent(u32 largest) {
    if (largest >= 0x7f800000u) return 255;
    u32 exponent = (largest + 0x10000u) >> 23;
    return exponent < 7 ? 1 : min(exponent - 6, 248u);
}

__device__ __forceinline__ i8 int8_code(float x, u32 exponent) {
    if (exponent == 255) return 0;
    float scaled = x * __uint_as_float((254u - exponent) << 23);
    scaled = scaled < -127.0f ? -127.0f : scaled > 127.0f ? 127.0f : scaled;
    return (i8)__float_as_uint(scaled + 12582912.0f);
}

// Keys of a split, counted from position 0, and most heads that see them together; as in attend.rs.
const u32 SPLIT = 64, HEADS = 8;

struct Cache {
    const u8 *start;
    int format;
    u32 kv_heads, head_dim, capacity;

    __device__ __forceinline__ u32 width() const { return (head_dim + 31u) & ~31u; }

    __device__ __forceinline__ u64 values_of_side() const { return (u64)kv_heads * capacity * width(); }

    // Keys (0) or values (1).
    __device__ __forceinline__ const u8 *side(u32 which) const {
        u64 values = values_of_side();
        u64 bytes = format == CACHE_F32 ? values * 4 : format == CACHE_BF16 ? values * 2 : values + values / 16;
        return start + which * bytes;
    }

    __device__ __forceinline__ u64 row(u32 head, u32 position) const {
        return ((u64)head * capacity + position) * width();
    }

    __device__ __forceinline__ float value(u32 which, u64 at) const {
        const u8 *from = side(which);
        if (format == CACHE_F32) return ((const float *)from)[at];
        if (format == CACHE_BF16) return float_of(((const u16 *)from)[at]);
        return (float)((const i8 *)from)[at] * e8m0(from[values_of_side() + at / 16]);
    }

    // A block of 16 channels from as many neighbouring threads, a channel of each, if it is meant to be kept; all threads
    // of a warp take part. Gives what is kept.
    __device__ __forceinline__ float keep(bool meant, u32 which, u64 at, float x) const {
        u8 *to = (u8 *)side(which);
        if (format == CACHE_F32) {
            if (meant) ((float *)to)[at] = x;
            return x;
        } else if (format == CACHE_BF16) {
            if (meant) ((u16 *)to)[at] = bf16_of(x);
            return rounded(x);
        } else {
            u32 largest = __float_as_uint(x) & 0x7fffffffu;
            for (int apart = 8; apart > 0; apart /= 2)
                largest = max(largest, __shfl_xor_sync(0xffffffffu, largest, apart));
            u32 exponent = int8_exponent(largest);
            i8 code = int8_code(x, exponent);
            if (meant) ((i8 *)to)[at] = code;
            if (meant && at % 16 == 0) to[values_of_side() + at / 16] = (u8)exponent;
            return (float)code * e8m0(exponent);
        }
    }
};

// Eight values of a cache's side: as they are kept, and as numbers.
template <int FORMAT> struct Eight {
    uint4 words[FORMAT == CACHE_F32 ? 2 : 1];
    u32 scale;

    __device__ __forceinline__ void load(const Cache &c, const u8 *side, u64 at, bool there) {
        const uint4 nothing = make_uint4(0, 0, 0, 0);
        if (FORMAT == CACHE_F32) {
            words[0] = there ? ((const uint4 *)((const float *)side + at))[0] : nothing;
            words[FORMAT == CACHE_F32] = there ? ((const uint4 *)((const float *)side + at))[1] : nothing;
        } else if (FORMAT == CACHE_BF16) {
            words[0] = there ? *(const uint4 *)((const u16 *)side + at) : nothing;
        } else {
            uint2 codes = there ? *(const uint2 *)(side + at) : make_uint2(0, 0);
            words[0] = make_uint4(codes.x, codes.y, 0, 0);
            scale = there ? side[c.values_of_side() + at / 16] : 0;
        }
    }

    __device__ __forceinline__ void values(float (&out)[8]) const {
        const u32 *word = (const u32 *)words;
#pragma unroll
        for (u32 i = 0; i < 8; i++) {
            if (FORMAT == CACHE_F32) out[i] = __uint_as_float(word[i]);
            else if (FORMAT == CACHE_BF16) out[i] = __uint_as_float(i % 2 ? word[i / 2] & 0xffff0000u : word[i / 2] << 16);
            else out[i] = (float)(i8)(word[i / 4] >> i % 4 * 8) * e8m0(scale);
        }
    }
};
