// `state::master`: wide weights, moved in f32 or, rounded stochastically, in bf16; codes follow from them.
#pragma once
#include "quantize.cuh"

namespace state {

// w += delta in f32; false, and nothing moves, if it would not be finite.
DEVICE bool advance_f32(float (&w)[BLOCK], const float (&delta)[BLOCK]) {
    float moved[BLOCK];
    // Adding zero turns a negative zero into zero.
    UNROLL for (int i = 0; i < BLOCK; i++) moved[i] = delta[i] == 0.0f ? w[i] : w[i] + delta[i];
    if (largest_bits(moved) >= 0x7F800000) return false;
    UNROLL for (int i = 0; i < BLOCK; i++) w[i] = moved[i];
    return true;
}

// The same for numbers that bf16 holds, rounded by `luck`.
template <class Luck> DEVICE bool advance_bf16(float (&w)[BLOCK], const float (&delta)[BLOCK], const Luck& luck) {
    float sums[BLOCK];
    UNROLL for (int i = 0; i < BLOCK; i++) sums[i] = w[i] + delta[i];
    if (largest_bits(sums) >= 0x7F7F0000) return false;
    UNROLL for (int i = 0; i < BLOCK; i++) {
        u32 rounded = (__float_as_uint(sums[i]) + (luck[i] >> 16)) & 0xFFFF0000;
        w[i] = delta[i] == 0.0f ? w[i] : __uint_as_float(rounded);
    }
    return true;
}

// The codes of weights that moved.
DEVICE void follow_nvfp4(const float (&w)[BLOCK], float global, int scales, u32 (&codes)[2], u8& scale,
                         Tally& tally) {
    u32 now[2];
    u8 chosen;
    quantize_nvfp4(w, global, scales, now, chosen);
    float largest = 6.0f * 448.0f * global;
    tally.changed += nibbles_changed(codes, now);
    tally.rescaled += chosen != scale;
    UNROLL for (int i = 0; i < BLOCK; i++) tally.saturated += fabsf(w[i]) > largest;
    codes[0] = now[0], codes[1] = now[1], scale = chosen;
}

DEVICE void follow_int8(const float (&w)[BLOCK], u32 (&codes)[4], u8& scale, Tally& tally) {
    u32 now[4];
    u8 chosen;
    quantize_int8(w, now, chosen);
    UNROLL for (int i = 0; i < BLOCK; i++) tally.changed += signed_byte(codes, i) != signed_byte(now, i);
    tally.rescaled += chosen != scale;
    UNROLL for (int i = 0; i < 4; i++) codes[i] = now[i];
    scale = chosen;
}

} // namespace state
