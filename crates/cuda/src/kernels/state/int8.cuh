// `state::int8`: a block of 8-bit codes with remainders under a sticky power of two.
#pragma once
#include "units.cuh"

namespace state {

template <int BITS> struct Int8 {
    u32 codes[4];
    u32 rest[REST<BITS>];
    u8 scale;

    static constexpr int HALF = (1 << BITS) >> 1; // of a code, in units
    static constexpr int LIMIT = (127 << BITS) + (BITS > 0 ? HALF - 1 : 0);

    DEVICE int units(int i) const {
        return signed_byte(codes, i) * (1 << BITS) + rest_of<BITS>(rest, i);
    }

    DEVICE void values(float (&w)[BLOCK]) const {
        float code = e8m0(scale);
        UNROLL for (int i = 0; i < BLOCK; i++) w[i] = (float)units(i) / (float)(1 << BITS) * code;
    }

    // The old exponent while it serves.
    DEVICE u8 next_scale(float amax) const {
        float code = e8m0(scale);
        u8 chosen = exponent_for(amax);
        float most = (float)LIMIT / (float)(1 << BITS) * code;
        bool leaves = (amax > most && chosen > scale) || (amax < 48.0f * code && chosen < scale);
        return leaves ? chosen : scale;
    }

    // w += delta, where w are its values.
    DEVICE void update(const float (&w)[BLOCK], const float (&delta)[BLOCK], const u32 (&luck)[BLOCK],
                              Tally& tally) {
        if (!any(delta)) return;
        float moved[BLOCK];
        UNROLL for (int i = 0; i < BLOCK; i++) moved[i] = w[i] + delta[i];
        u32 largest = largest_bits(moved);
        if (largest >= 0x7F800000) {
            tally.refused += 1;
            return;
        }
        u8 chosen = next_scale(__uint_as_float(largest));
        bool kept = chosen == scale;
        float per_code = inverse_power_of_two(chosen);
        u32 new_codes[4] = {}, new_rest[REST<BITS>] = {};
        UNROLL for (int i = 0; i < BLOCK; i++) {
            // Under the old scale only the update is rounded: what is stored is whole already.
            int origin = kept ? units(i) : 0;
            float t = hold((kept ? delta[i] : moved[i]) * per_code * (float)(1 << BITS));
            int wanted = origin + stochastic(t, luck[i]), now = clamped(wanted, -LIMIT, LIMIT);
            int code = (now + HALF) >> BITS;
            tally.saturated += now != wanted;
            tally.changed += code != signed_byte(codes, i);
            put_byte(new_codes, i, code);
            put_rest<BITS>(new_rest, i, now - code * (1 << BITS));
        }
        tally.rescaled += !kept;
        UNROLL for (int i = 0; i < 4; i++) codes[i] = new_codes[i];
        UNROLL for (int i = 0; i < REST<BITS>; i++) rest[i] = new_rest[i];
        scale = chosen;
    }
};

} // namespace state
