// `state::units`: whole units, rounded up or down, and the nibbles and bytes they are kept in. Words hold
// the bytes as they lie: nibble i of a block is word i / 8, byte i is word i / 4.
#pragma once
#include "device.cuh"

namespace state {

constexpr float SHIFT = 12582912.0f; // 1.5 * 2^23: numbers near it have steps of one
constexpr int SHIFT_BITS = 0x4B400000;
constexpr float FAR = 1048576.0f;

// To nearest, ties to even.
DEVICE int nearest(float t) {
    return (int)__float_as_uint(t + SHIFT) - SHIFT_BITS;
}

// Down or up as the upper half of `bits` decides.
DEVICE int stochastic(float t, u32 bits) {
    float shifted = t + SHIFT;
    int part = nearest((t - (shifted - SHIFT)) * 65536.0f);
    return (int)__float_as_uint(shifted) - SHIFT_BITS + ((part + (int)(bits >> 16)) >> 16);
}

// NaN becomes `-FAR`.
DEVICE float hold(float t) {
    return fminf(fmaxf(t, -FAR), FAR);
}

// Exact for fewer than 2^22 units.
DEVICE float float_of_units(int k) {
    return __uint_as_float((u32)(k + SHIFT_BITS)) - SHIFT;
}

// ---- whole units of a move of less than 64 ----

// `units::settled` and `units::near`, all of it over 256, where a sum is held within zero and one: from the sum of a move
// with its luck, whole units above SETTLED, and 64 more; from 128 on, or below zero, where the move is not near.
constexpr u32 SETTLED = 0x47400000;
constexpr float PER_256 = 1.0f / 256.0f;
DEVICE u32 settled(float sum) {
    return __float_as_uint(__fadd_rd(sum, 49152.0f - 128.0f * PER_256));
}

// The squares of sixteen numbers: of every fourth one in a row, then two and two of these sums.
DEVICE float squares(const float (&x)[BLOCK]) {
    float sums[4];
    UNROLL for (int i = 0; i < 4; i++) sums[i] = x[i] * x[i];
    UNROLL for (int i = 4; i < BLOCK; i++) sums[i % 4] = __fmaf_rn(x[i], x[i], sums[i % 4]);
    return (sums[0] + sums[2]) + (sums[1] + sums[3]);
}

// The bits of the largest magnitude: 0x7F800000 or more when a number is not finite.
DEVICE u32 largest_bits(const float (&x)[BLOCK]) {
    u32 largest = 0;
    UNROLL for (int i = 0; i < BLOCK; i++) largest = max(largest, __float_as_uint(x[i]) & 0x7FFFFFFF);
    return largest;
}

// Largest magnitude, the largest finite number at most; NaN counts as zero.
DEVICE float finite_amax(const float (&m)[BLOCK]) {
    float amax = 0.0f;
    UNROLL for (int i = 0; i < BLOCK; i++) amax = fmaxf(amax, fabsf(m[i]));
    return fminf(amax, __uint_as_float(0x7F7FFFFF));
}

// 1 / x to nearest, for what is in the middle of the range.
DEVICE float one_over(float x) {
    float almost = about_one_over(x);
    return __fmaf_rn(__fmaf_rn(-x, almost, 1.0f), almost, almost);
}

// a / 6 to nearest: the remainder is exact. (Every mantissa was tried.)
DEVICE float sixth(float a) {
    float almost = a * (1.0f / 6.0f);
    return __fmaf_rn(__fmaf_rn(-6.0f, almost, a), 1.0f / 6.0f, almost);
}

// Well inside the range.
constexpr float LARGE = (float)(1ll << 40);

DEVICE bool any(const float (&x)[BLOCK]) {
    u32 bits = 0;
    UNROLL for (int i = 0; i < BLOCK; i++) bits |= __float_as_uint(x[i]);
    return bits << 1 != 0;
}

// Smallest exponent byte, 1 to 248, under which `amax` is at most 127.
DEVICE u8 exponent_for(float amax) {
    return (u8)clamped((int)((__float_as_uint(amax) + 0x1FFFF) >> 23) - 6, 1, 248);
}

DEVICE float power_of_two(u8 byte) {
    return __uint_as_float((u32)clamped((int)byte, 1, 248) << 23);
}

DEVICE float inverse_power_of_two(u8 byte) {
    u32 bits = (254u - (byte < 254 ? byte : 254)) << 23;
    return __uint_as_float(bits > 1u << 22 ? bits : 1u << 22);
}

// Exact value of an E8M0 byte; 255 is NaN.
DEVICE float e8m0(u8 byte) {
    return __uint_as_float(byte == 0 ? 1u << 22 : byte == 255 ? 0x7FC00000u : (u32)byte << 23);
}

// Exact value of an E4M3 byte. Its exponent and mantissa, put where those of an f32 are, lack a factor 2^120.
DEVICE float e4m3(u8 byte) {
    u32 magnitude = byte & 0x7F;
    float value = __uint_as_float(magnitude << 20) * __uint_as_float(247u << 23);
    u32 bits = magnitude == 0x7F ? 0x7FC00000u : __float_as_uint(value);
    return __uint_as_float(bits | (u32)(byte & 0x80) << 24);
}

// Nearest E4M3, ties to even, saturating; for what is not negative, or NaN.
DEVICE u8 to_e4m3(float a) {
    if (is_nan(a)) return 0x7F;
    a = a < 448.0f ? a : 448.0f;
    u32 bits = __float_as_uint(a);
    // 2^14 has steps of 2^-9: the sum's low bits count them.
    if (a < 0.015625f) return (u8)(__float_as_uint(a + 16384.0f) - 0x46800000u);
    return (u8)(((bits + 0x7FFFF + (bits >> 20 & 1)) >> 20) - (120 << 3));
}

// Magnitude of an E2M1 code in halves, 0 1 2 3 4 6 8 12: one byte of eight.
DEVICE int halves(u32 code) {
    return (int)__byte_perm(0x03020100, 0x0C080604, code & 7);
}

// Four codes from number `first` on in halves, a byte each with BIAS more.
constexpr u32 BIAS = 64;
DEVICE u32 biased_halves(const u32 (&codes)[2], int first) {
    // Magnitudes of codes without a sign, then of those with one: of the others only the sign is taken, which is none.
    u32 four = codes[first / 8] >> (4 * (first % 8));
    return permuted(0x43424140, 0x4C484644, four) | permuted(0x3D3E3F40, 0x34383A3C, four ^ 0x8888);
}

DEVICE u32 nibble(const u32* words, int i) {
    return words[i / 8] >> (4 * (i % 8)) & 15;
}

DEVICE int signed_byte(const u32* words, int i) {
    return (int)(words[i / 4] << (24 - 8 * (i % 4))) >> 24;
}

DEVICE void put_nibble(u32* words, int i, u32 value) {
    words[i / 8] |= (value & 15) << (4 * (i % 8));
}

DEVICE void put_byte(u32* words, int i, int value) {
    words[i / 4] |= ((u32)value & 255) << (8 * (i % 4));
}

DEVICE u32 nibbles_changed(const u32* old, const u32* now) {
    u32 changed = 0;
    UNROLL for (int word = 0; word < 2; word++) {
        u32 difference = old[word] ^ now[word];
        u32 pairs = difference | difference >> 1;
        changed += __popc((pairs | pairs >> 2) & 0x11111111);
    }
    return changed;
}

DEVICE u32 bytes_changed(u32 old, u32 now) {
    u32 difference = old ^ now;
    return __popc((((difference & 0x7F7F7F7F) + 0x7F7F7F7F) | difference) & 0x80808080);
}

// Words of the remainders of a block: of 8 or 4 bits; there is one, unused, where there are no bits.
template <int BITS> constexpr int REST = BITS == 0 ? 1 : BITS / 2;

template <int BITS> DEVICE int rest_of(const u32 (&words)[REST<BITS>], int i) {
    if (BITS == 8) return signed_byte(words, i);
    if (BITS == 4) return (int)(nibble(words, i) << 28) >> 28;
    return 0;
}

template <int BITS> DEVICE void put_rest(u32 (&words)[REST<BITS>], int i, int rest) {
    if (BITS == 8) put_byte(words, i, rest);
    if (BITS == 4) put_nibble(words, i, (u32)rest);
}

} // namespace state
