// `state::weight`: a block of NVFP4 codes with remainders under a sticky scale.
#pragma once
#include "units.cuh"

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

    DEVICE void values(float global, float (&w)[BLOCK]) const {
        float unit = e4m3(scale) / (float)ONE;
        UNROLL for (int i = 0; i < BLOCK; i++) w[i] = (float)units(i) * unit * global;
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

    // Nearest code of k units, and what remains along its sign.
    static DEVICE u32 split(int k, int& rest) {
        int a = k < 0 ? -k : k;
        u32 magnitude = (4 * a > ONE) + (4 * a >= 3 * ONE) + (4 * a > 5 * ONE) + (4 * a >= 7 * ONE) +
                        (2 * a > 5 * ONE) + (2 * a >= 7 * ONE) + (a >= 5 * ONE);
        int along = a - halves(magnitude) * (ONE / 2);
        rest = k < 0 && magnitude == 0 ? -along : along;
        return magnitude | (k < 0 && magnitude > 0 ? 8 : 0);
    }

    // w += delta, where w are its values.
    DEVICE void update(float global, const float (&w)[BLOCK], const float (&delta)[BLOCK],
                              const u32 (&luck)[BLOCK], Tally& tally) {
        if (!any(delta)) return;
        float moved[BLOCK];
        UNROLL for (int i = 0; i < BLOCK; i++) moved[i] = w[i] + delta[i];
        u32 largest = largest_bits(moved);
        if (largest >= 0x7F800000) {
            tally.refused += 1;
            return;
        }
        u8 chosen = next_scale(__uint_as_float(largest), global);
        bool kept = chosen == scale;
        float per_tensor = 1.0f / global, per_unit = (float)ONE / e4m3(chosen);
        constexpr int limit = 7 * ONE - 1;
        u32 new_codes[2] = {}, new_rest[REST<BITS>] = {};
        UNROLL for (int i = 0; i < BLOCK; i++) {
            // Under the old scale only the update is rounded: what is stored is whole already.
            int k = units(i), origin = kept ? k : 0;
            float t = hold((kept ? delta[i] : moved[i]) * per_tensor * per_unit);
            int wanted = origin + stochastic(t, luck[i]), now = clamped(wanted, -limit, limit);
            tally.saturated += now != wanted;
            bool stays = kept && now == k;
            int rest_now;
            u32 code = split(now, rest_now);
            put_nibble(new_codes, i, stays ? nibble(codes, i) : code);
            put_rest<BITS>(new_rest, i, stays ? rest_of<BITS>(rest, i) : rest_now);
        }
        tally.changed += nibbles_changed(codes, new_codes);
        tally.rescaled += !kept;
        UNROLL for (int i = 0; i < 2; i++) codes[i] = new_codes[i];
        UNROLL for (int i = 0; i < REST<BITS>; i++) rest[i] = new_rest[i];
        scale = chosen;
    }
};

} // namespace state
