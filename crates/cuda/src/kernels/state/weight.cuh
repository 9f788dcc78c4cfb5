// `state::weight`: a block of NVFP4 codes with remainders under a sticky scale.
#pragma once
#include "adamw.cuh"

namespace state {

template <int BITS> struct Nvfp4 {
    u32 codes[2];
    u32 rest[REST<BITS>];
    u8 scale;

    static constexpr int ONE = 1 << (BITS - 1); // units in one block scale

    DEVICE int units(int i) const {
        u32 code = nibble(codes, i);
        int along = halves(code) * (ONE / 2) + rest_of<BITS>(rest, i);
        return code & 8 ? -along : along;
    }

    // The old scale while it serves.
    DEVICE u8 next_scale(float amax, float global) const {
        float s = fabsf(e4m3(scale)) * global;
        bool near_six = amax >= (6.0f - 0.5f) * s && amax <= (6.0f + 0.5f) * s;
        bool near_four = amax >= (4.0f - 0.5f) * s && amax <= (4.0f + 0.5f) * s;
        if (near_six || near_four) return scale;
        u8 chosen = to_e4m3(clamped(amax / 6.0f / global, 0.015625f, 448.0f)), old = scale & 0x7F;
        bool serves = amax > 6.5f * s ? chosen > old : chosen < old;
        return serves ? chosen : scale;
    }

    // The value, in units, of the nearest code of k units; zero has no sign. Codes are apart by half the power of two
    // below them, from one block scale on, so adding enough of that power rounds to them, ties to even.
    static DEVICE float nearest_code(float k) {
        constexpr float SMALL = 1.0f / 8192.0f / ONE, ENOUGH = 6291456.0f;
        float power = fmaxf(__uint_as_float(__float_as_uint(k) & 0x7F800000), (float)ONE);
        // Five goes to six: from four on, a number counts as a 4096th more.
        float more = __fmaf_rn(fmaxf(power, 2.0f * ONE), SMALL, -2.0f * ONE * SMALL);
        float shifted = __fmaf_rn(power, ENOUGH, __fmaf_rn(k, more, k));
        return __fmaf_rn(power, -ENOUGH, shifted);
    }

    // Nearest codes of k units, and what remains along their signs.
    static DEVICE void split(const int (&k)[BLOCK], u32 (&codes)[2], u32 (&rest)[REST<BITS>]) {
        u32 tops[BLOCK];
        UNROLL for (int i = 0; i < BLOCK; i++) {
            float units = float_of_units(k[i]), code = nearest_code(units);
            float along = __uint_as_float(__float_as_uint(units - code) ^ (__float_as_uint(code) & 0x80000000));
            put_rest<BITS>(rest, i, (int)__float_as_uint(along + SHIFT));
            tops[i] = __float_as_uint(code * __uint_as_float(1u << (24 - BITS)));
        }
        pack_tops(tops, codes);
    }

    // Whether the scale stays under a block whose farthest position is this: near six or four.
    static DEVICE bool stays(int farthest) {
        constexpr int half = ONE << 15;
        int from_six = farthest - 12 * half, from_four = farthest - 8 * half;
        return (from_six >= -half && from_six <= half) || (from_four >= -half && from_four <= half);
    }

    // The scale and the whole units of a block whose scale may change; false where it stays as it is.
    template <class Luck>
    DEVICE bool in_values(const int (&k)[BLOCK], float global, const Push& push, const Luck& luck, u8& chosen,
                          int (&now)[BLOCK], Tally& tally) const {
        float unit = e4m3(scale) / (float)ONE, w[BLOCK], delta[BLOCK], moved[BLOCK];
        UNROLL for (int i = 0; i < BLOCK; i++) w[i] = float_of_units(k[i]) * unit * global;
        push.values(w, delta);
        if (!any(delta)) return false;
        UNROLL for (int i = 0; i < BLOCK; i++) moved[i] = w[i] + delta[i];
        u32 largest = largest_bits(moved);
        if (largest >= 0x7F800000) {
            tally.refused += 1;
            return false;
        }
        chosen = next_scale(__uint_as_float(largest), global);
        bool kept = chosen == scale;
        float per_tensor = 1.0f / global, per_unit = (float)ONE / e4m3(chosen);
        constexpr int limit = 7 * ONE - 1;
        UNROLL for (int i = 0; i < BLOCK; i++) {
            // Under the old scale only the update is rounded: what is stored is whole already.
            float t = hold((kept ? delta[i] : moved[i]) * per_tensor * per_unit);
            int wanted = (kept ? k[i] : 0) + stochastic(t, luck[i]);
            now[i] = clamped(wanted, -limit, limit);
            tally.saturated += now[i] != wanted;
        }
        return true;
    }

    template <class Luck> DEVICE void update(float global, const Push& push, const Luck& luck, Tally& tally) {
        int k[BLOCK], positions[BLOCK], now[BLOCK];
        UNROLL for (int i = 0; i < BLOCK; i++) k[i] = units(i);
        push.positions<16>(k, e4m3(scale) / (float)ONE * global, positions);
        u8 chosen = scale;
        if (stays(farthest(positions))) settle<16>(positions, luck, now);
        else if (!in_values(k, global, push, luck, chosen, now, tally)) return;
        bool kept = chosen == scale;
        u32 new_codes[2] = {}, new_rest[REST<BITS>] = {}, same_codes[2] = {}, same_rest[REST<BITS>] = {};
        split(now, new_codes, new_rest);
        // What has not moved keeps its bits, however they are spelled.
        UNROLL for (int i = 0; i < BLOCK; i++) {
            int same = kept && now[i] == k[i] ? -1 : 0;
            put_nibble(same_codes, i, same);
            put_rest<BITS>(same_rest, i, same);
        }
        UNROLL for (int i = 0; i < 2; i++) new_codes[i] ^= (new_codes[i] ^ codes[i]) & same_codes[i];
        UNROLL for (int i = 0; i < REST<BITS>; i++) new_rest[i] ^= (new_rest[i] ^ rest[i]) & same_rest[i];
        tally.changed += nibbles_changed(codes, new_codes);
        tally.rescaled += !kept;
        UNROLL for (int i = 0; i < 2; i++) codes[i] = new_codes[i];
        UNROLL for (int i = 0; i < REST<BITS>; i++) rest[i] = new_rest[i];
        scale = chosen;
    }
};

} // namespace state
