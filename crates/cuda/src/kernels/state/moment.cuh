// `state::moment`: first moments, and stored gradients, in four or eight bits, rounded stochastically.
#pragma once
#include "draw.cuh"
#include "units.cuh"

namespace state {

constexpr u32 SCALE_SHIFT = (127 - 48) << 2;

DEVICE float moment_scale(u32 byte) {
    return __uint_as_float((byte + SCALE_SHIFT) << 21);
}

// The code of x, rounded down or up as the upper 22 of 28 `bits` decide, in the top four bits. So small, a number has its
// fraction of a step in the 22 bits below the code, from one on as below. HOLD: larger than 6 is 6, NaN is zero.
template <bool HOLD> DEVICE u32 stochastic_top(float x, u32 bits) {
    constexpr u32 SIX = 7u << 22;
    float small = fabsf(x) * __uint_as_float(1u << 23);
    if (HOLD) small = fminf(fmaxf(small, 0.0f), __uint_as_float(SIX));
    // The lowest six bits carry nothing.
    u32 magnitude = __float_as_uint(small) * 64 + bits;
    return (magnitude & 0x7FFFFFFF) | (__float_as_uint(x) & 0x80000000);
}

// A code in halves; zero has no sign.
DEVICE float signed_halves(const u32 (&codes)[2], int i) {
    u32 code = nibble(codes, i);
    return (float)(code & 8 ? -halves(code) : halves(code));
}

DEVICE void decode_four(const u32 (&codes)[2], u8 scale, float (&m)[BLOCK]) {
    float half = moment_scale(scale) * 0.5f;
    UNROLL for (int i = 0; i < BLOCK; i++) m[i] = signed_halves(codes, i) * half;
}

// Moments of a block, moved by the gradient.
DEVICE void follow_four(const u32 (&codes)[2], u8 scale, const float (&g)[BLOCK], float keep, float (&m)[BLOCK]) {
    float half = keep * moment_scale(scale) * 0.5f;
    UNROLL for (int i = 0; i < BLOCK; i++) m[i] = __fmaf_rn(signed_halves(codes, i), half, g[i]);
}

// The same as `follow_four`, and faster. Their largest magnitude is `amax`, NaN apart.
DEVICE void follow_four_fast(const u32 (&codes)[2], u32 scale, const float (&g)[BLOCK], float keep, float (&m)[BLOCK],
                             float& amax) {
    float unit = keep * moment_scale(scale);
    UNROLL for (int i = 0; i < BLOCK; i += 4) {
        // The upper bytes of the codes as f16, shifted right by one so that none is beyond 127: of codes without a sign, then of
        // those with one, as in `biased_halves`.
        u32 four = codes[i / 8] >> (4 * (i % 8));
        u32 bytes = (permuted(0x1F1E1C00, 0x23222120, four) | permuted(0x5F5E5C00, 0x63626160, four ^ 0x8888)) * 2;
        u32 low = __byte_perm(bytes, 0, 0x1404), high = __byte_perm(bytes, 0, 0x3424);
        float values[4] = {f16((u16)low), f16((u16)(low >> 16)), f16((u16)high), f16((u16)(high >> 16))};
        UNROLL for (int j = 0; j < 4; j++) m[i + j] = __fmaf_rn(values[j], unit, g[i + j]);
    }
    amax = 0.0f;
    UNROLL for (int i = 0; i < BLOCK; i++) amax = fmaxf(amax, fabsf(m[i]));
}

template <bool HOLD, class Luck>
DEVICE void codes_of(const float (&m)[BLOCK], float inverse, const Luck& luck, u32 (&codes)[2]) {
    codes[0] = codes[1] = 0;
    // The first code goes in last, and lowest.
    UNROLL for (int i = BLOCK - 1; i >= 0; i--)
        codes[i / 8] = __funnelshift_l(stochastic_top<HOLD>(m[i] * inverse, upper28(luck, i)), codes[i / 8], 4);
}

// The scale of moments whose `finite_amax` is this; gives what brings them to codes.
DEVICE float choose_scale(float amax, u32& scale) {
    int quarters = (int)((__float_as_uint(sixth(amax)) + 0x1FFFFF) >> 21);
    scale = clamped(quarters, (int)SCALE_SHIFT, (int)SCALE_SHIFT + 255) - (int)SCALE_SHIFT;
    return one_over(moment_scale(scale));
}

template <class Luck> DEVICE void encode_four(const float (&m)[BLOCK], const Luck& luck, u32 (&codes)[2], u8& scale) {
    u32 chosen;
    codes_of<true>(m, choose_scale(finite_amax(m), chosen), luck, codes);
    scale = (u8)chosen;
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
