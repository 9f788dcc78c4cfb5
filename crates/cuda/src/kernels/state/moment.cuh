// `state::moment`: first moments, and stored gradients, in four or eight bits, rounded stochastically.
#pragma once
#include "units.cuh"

namespace state {

constexpr u32 SCALE_SHIFT = (127 - 48) << 2;

DEVICE float moment_scale(u8 byte) {
    return __uint_as_float((byte + SCALE_SHIFT) << 21);
}

// Largest magnitude, the largest finite number at most; NaN counts as zero.
DEVICE float finite_amax(const float (&m)[BLOCK]) {
    u32 largest = 0;
    UNROLL for (int i = 0; i < BLOCK; i++) {
        u32 bits = __float_as_uint(m[i]) & 0x7FFFFFFF;
        bits = bits > 0x7F800000 ? 0 : bits == 0x7F800000 ? 0x7F7FFFFF : bits;
        largest = bits > largest ? bits : largest;
    }
    return __uint_as_float(largest);
}

DEVICE u32 stochastic_code(float x, u32 bits) {
    float a = fabsf(x);
    a = a < 6.0f ? a : 6.0f;
    a = is_nan(x) ? 0.0f : a;
    u32 first = a < 1.0f ? 254 : 252;
    a = a < 1.0f ? a + 1.0f : a;
    return (((__float_as_uint(a) + (bits >> 10)) >> 22) - first) | (__float_as_uint(x) >> 28 & 8);
}

DEVICE void decode_four(const u32 (&codes)[2], u8 scale, float (&m)[BLOCK]) {
    float half = moment_scale(scale) * 0.5f;
    UNROLL for (int i = 0; i < BLOCK; i++) {
        u32 code = nibble(codes, i);
        float magnitude = (float)halves(code) * half;
        m[i] = code & 8 ? -magnitude : magnitude;
    }
}

DEVICE void encode_four(const float (&m)[BLOCK], const u32 (&luck)[BLOCK], u32 (&codes)[2], u8& scale) {
    int quarters = (int)((__float_as_uint(finite_amax(m) / 6.0f) + 0x1FFFFF) >> 21);
    scale = (u8)(clamped(quarters, (int)SCALE_SHIFT, (int)SCALE_SHIFT + 255) - (int)SCALE_SHIFT);
    float inverse = 1.0f / moment_scale(scale);
    codes[0] = codes[1] = 0;
    UNROLL for (int i = 0; i < BLOCK; i++) put_nibble(codes, i, stochastic_code(m[i] * inverse, luck[i]));
}

DEVICE void decode_eight(const u32 (&codes)[4], u8 scale, float (&m)[BLOCK]) {
    float unit = power_of_two(scale);
    UNROLL for (int i = 0; i < BLOCK; i++) m[i] = (float)signed_byte(codes, i) * unit;
}

DEVICE void encode_eight(const float (&m)[BLOCK], const u32 (&luck)[BLOCK], u32 (&codes)[4], u8& scale) {
    float amax = finite_amax(m);
    scale = amax > 0.0f ? exponent_for(amax) : 0;
    float inverse = inverse_power_of_two(scale);
    codes[0] = codes[1] = codes[2] = codes[3] = 0;
    UNROLL for (int i = 0; i < BLOCK; i++) {
        float x = is_nan(m[i]) ? 0.0f : m[i];
        put_byte(codes, i, clamped(stochastic(hold(x * inverse), luck[i]), -127, 127));
    }
}

} // namespace state
