// `nvfp4` and `int8_block`: a block quantised to nearest, for weights that are kept wide.
#pragma once
#include "units.cuh"

namespace state {

// Only for comparison, and long: what is called in several places is code once (not inlined).

// How NVFP4 block scales are chosen, as `nvfp4::Scales`.
enum Scales { NEAREST, FOUR_OVER_SIX, SEARCH };

constexpr float TOP = 1536.0f;

DEVICE u32 e2m1_code(float x) {
    float a = fabsf(x);
    u32 magnitude =
        (a > 0.25f) + (a >= 0.75f) + (a > 1.25f) + (a >= 1.75f) + (a > 2.5f) + (a >= 3.5f) + (a > 5.0f);
    return magnitude | (__float_as_uint(x) >> 28 & 8);
}

// Magnitude that `e2m1_code` gives to a.
DEVICE float round_magnitude(float a) {
    float shift = a < 2.0f ? 4194304.0f : a < 4.0f ? 8388608.0f : 16777216.0f;
    float rounded = (a + shift) - shift;
    return rounded < 6.0f ? rounded : 6.0f;
}

__device__ __noinline__ float scale_error(const float (&x)[BLOCK], u8 scale, float global) {
    float s = e4m3(scale), per_tensor = 1.0f / global, inverse = per_tensor / s;
    float lanes[4] = {};
    UNROLL for (int i = 0; i < BLOCK; i++) {
        float a = fabsf(x[i]);
        float decoded = round_magnitude(a * inverse) * s * global;
        float difference = (a - decoded) * per_tensor;
        lanes[i % 4] += difference * difference;
    }
    return (lanes[0] + lanes[1]) + (lanes[2] + lanes[3]);
}

__device__ __noinline__ void codes_for(const float (&x)[BLOCK], u8 scale, float global, u32 (&codes)[2]) {
    float inverse = (1.0f / global) / e4m3(scale);
    codes[0] = codes[1] = 0;
    UNROLL for (int i = 0; i < BLOCK; i++) put_nibble(codes, i, e2m1_code(x[i] * inverse));
}

DEVICE float code_magnitude(u32 code) {
    return (float)halves(code) * 0.5f;
}

// The block with code `largest` become `target`, if all its values are exact that way.
__device__ __noinline__ bool respell(u32 (&codes)[2], u8& scale, u32 largest, u32 target, u8 least) {
    float s = e4m3(scale);
    u8 byte = to_e4m3(s * code_magnitude(largest) / code_magnitude(target));
    float t = e4m3(byte);
    u32 respelled[2] = {};
    bool exact = byte >= least;
    UNROLL for (int i = 0; i < BLOCK; i++) {
        u32 code = nibble(codes, i);
        float value = code_magnitude(code) * s;
        u32 now = e2m1_code(value / t);
        exact = exact && code_magnitude(now) * t == value;
        put_nibble(respelled, i, now | (code & 8));
    }
    if (exact) codes[0] = respelled[0], codes[1] = respelled[1], scale = byte;
    return exact;
}

// The same values with the smallest scale byte, `least` or more, that can hold them.
DEVICE void canonical(u32 (&codes)[2], u8& scale, u8 least) {
    u32 largest = 0;
    UNROLL for (int i = 0; i < BLOCK; i++) {
        u32 magnitude = nibble(codes, i) & 7;
        largest = magnitude > largest ? magnitude : largest;
    }
    if (largest == 0) {
        scale = 0x08;
        return;
    }
    for (u32 target = 7; target > largest; target--)
        if (respell(codes, scale, largest, target, least)) return;
}

DEVICE void four_over_six(const float (&x)[BLOCK], float y, float global, u32 (&codes)[2], u8& scale) {
    u8 six = to_e4m3(clamped(y, 0.015625f, 448.0f)), four = to_e4m3(clamped(1.5f * y, 0.015625f, 448.0f));
    bool smaller = scale_error(x, four, global) < scale_error(x, six, global);
    scale = smaller ? four : six;
    codes_for(x, scale, global, codes);
    if (smaller) canonical(codes, scale, 0x08);
}

DEVICE void search(const float (&x)[BLOCK], float amax, float y, float global, u32 (&codes)[2], u8& scale) {
    float top = TOP / 6.0f, per_tensor = 1.0f / global;
    if (amax == 0.0f || fabsf(y - top) <= top / 1048576.0f) return four_over_six(x, y, global, codes, scale);
    float limit = y < top ? TOP : __uint_as_float(0x7F800000);
    int start = to_e4m3(clamped(y, 0.001953125f, 448.0f));
    int end = clamped((int)to_e4m3(y * (12.0f / 7.0f)), 14, 0x7E - 1) + 1;
    int best = start;
    float error = scale_error(x, (u8)start, global);
    for (int byte = start + 1; byte <= end; byte++) {
        float s = e4m3((u8)byte);
        if (round_magnitude(amax * (per_tensor / s)) * s > limit) continue;
        float now = scale_error(x, (u8)byte, global);
        if (now < error) error = now, best = byte;
    }
    for (int byte = start - 1; byte >= 1; byte--) {
        float clipped = amax * per_tensor - 6.0f * e4m3((u8)byte);
        if (clipped > 0.0f && clipped * clipped >= error) break;
        float now = scale_error(x, (u8)byte, global);
        if (now < error) error = now, best = byte;
    }
    scale = (u8)best;
    codes_for(x, scale, global, codes);
    canonical(codes, scale, 1);
}

// `nvfp4::encode_row` of one block of finite numbers.
DEVICE void quantize_nvfp4(const float (&x)[BLOCK], float global, int scales, u32 (&codes)[2], u8& scale) {
    float amax = __uint_as_float(largest_bits(x)), y = amax / 6.0f / global;
    if (scales == SEARCH) return search(x, amax, y, global, codes, scale);
    if (scales == FOUR_OVER_SIX) return four_over_six(x, y, global, codes, scale);
    scale = to_e4m3(clamped(y, 0.015625f, 448.0f));
    codes_for(x, scale, global, codes);
}

// `int8_block::encode_row` of one block of finite numbers.
DEVICE void quantize_int8(const float (&x)[BLOCK], u32 (&codes)[4], u8& scale) {
    int exponent = clamped((int)((largest_bits(x) + 0x10000) >> 23) - 6, 1, 248);
    float inverse = __uint_as_float((254u - exponent) << 23);
    codes[0] = codes[1] = codes[2] = codes[3] = 0;
    UNROLL for (int i = 0; i < BLOCK; i++)
        put_byte(codes, i, (int)__float_as_uint(clamped(x[i] * inverse, -127.0f, 127.0f) + SHIFT));
    scale = (u8)exponent;
}

} // namespace state
