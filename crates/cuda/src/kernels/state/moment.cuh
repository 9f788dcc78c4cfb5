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
    float amax = 0.0f;
    UNROLL for (int i = 0; i < BLOCK; i++) amax = fmaxf(amax, fabsf(m[i]));
    return fminf(amax, __uint_as_float(0x7F7FFFFF));
}

// The code of x, rounded down or up as the upper 22 of `bits` decide, as `pack_tops` takes it. So small, a number has
// its fraction of a step in the 22 bits below the code, from one on as below. Larger than 6 is 6, NaN is zero.
DEVICE u32 stochastic_top(float x, u32 bits) {
    constexpr u32 SIX = 7u << 22;
    float small = fabsf(x) * __uint_as_float(1u << 23);
    float held = fminf(fmaxf(small, 0.0f), __uint_as_float(SIX));
    return (__float_as_uint(held) + (bits >> 10)) | (__float_as_uint(x) & 0x80000000);
}

// A code in halves. Its bits, put where exponent and mantissa of an f32 are, lack a factor 2^127.
DEVICE float signed_halves(const u32 (&codes)[2], int i) {
    u32 word = codes[i / 8], magnitude = (word >> 4 * (i % 8) & 7) << 22, sign = word << (28 - 4 * (i % 8));
    return __uint_as_float(magnitude | (sign & 0x80000000)) * __uint_as_float(254u << 23);
}

DEVICE void decode_four(const u32 (&codes)[2], u8 scale, float (&m)[BLOCK]) {
    float half = moment_scale(scale) * 0.5f;
    UNROLL for (int i = 0; i < BLOCK; i++) m[i] = signed_halves(codes, i) * half;
}

// Moments of a block, moved by the gradient.
DEVICE void follow_four(const u32 (&codes)[2], u8 scale, const float (&g)[BLOCK], Average average,
                        float (&m)[BLOCK]) {
    float half = average.keep * moment_scale(scale) * 0.5f;
    UNROLL for (int i = 0; i < BLOCK; i++)
        m[i] = __fmaf_rn(signed_halves(codes, i), half, average.fresh * g[i]);
}

template <class Luck>
DEVICE void encode_four(const float (&m)[BLOCK], const Luck& luck, u32 (&codes)[2], u8& scale) {
    int quarters = (int)((__float_as_uint(finite_amax(m) / 6.0f) + 0x1FFFFF) >> 21);
    scale = (u8)(clamped(quarters, (int)SCALE_SHIFT, (int)SCALE_SHIFT + 255) - (int)SCALE_SHIFT);
    float inverse = 1.0f / moment_scale(scale);
    u32 tops[BLOCK];
    UNROLL for (int i = 0; i < BLOCK; i++) tops[i] = stochastic_top(m[i] * inverse, luck[i]);
    pack_tops(tops, codes);
}

DEVICE void decode_eight(const u32 (&codes)[4], u8 scale, float (&m)[BLOCK]) {
    float unit = power_of_two(scale);
    UNROLL for (int i = 0; i < BLOCK; i++) m[i] = (float)signed_byte(codes, i) * unit;
}

template <class Luck>
DEVICE void encode_eight(const float (&m)[BLOCK], const Luck& luck, u32 (&codes)[4], u8& scale) {
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
