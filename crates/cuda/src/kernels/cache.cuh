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
    // of a warp take part.
    __device__ __forceinline__ void keep(bool meant, u32 which, u64 at, float x) const {
        u8 *to = (u8 *)side(which);
        if (format == CACHE_F32) {
            if (meant) ((float *)to)[at] = x;
        } else if (format == CACHE_BF16) {
            if (meant) ((u16 *)to)[at] = bf16_of(x);
        } else {
            u32 largest = __float_as_uint(x) & 0x7fffffffu;
            for (int apart = 8; apart > 0; apart /= 2)
                largest = max(largest, __shfl_xor_sync(0xffffffffu, largest, apart));
            u32 exponent = int8_exponent(largest);
            if (meant) ((i8 *)to)[at] = int8_code(x, exponent);
            if (meant && at % 16 == 0) to[values_of_side() + at / 16] = (u8)exponent;
        }
    }
};
