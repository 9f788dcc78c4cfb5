// `state::int8`: a block of 8-bit codes with remainders under a sticky power of two.
#pragma once
#include "adamw.cuh"

namespace state {

template <int BITS> struct Int8 {
    u32 codes[4];
    u32 rest[REST<BITS>];
    u8 scale;

    static constexpr int HALF = (1 << BITS) >> 1; // of a code, in units
    static constexpr int LEAST = 48 << BITS;
    static constexpr int LIMIT = (127 << BITS) + (BITS > 0 ? HALF - 1 : 0);

    DEVICE int units(int i) const {
        return signed_byte(codes, i) * (1 << BITS) + rest_of<BITS>(rest, i);
    }

    // The old exponent while it serves.
    DEVICE u8 next_scale(float amax) const {
        float code = e8m0(scale);
        u8 chosen = exponent_for(amax);
        float most = (float)LIMIT / (float)(1 << BITS) * code;
        bool leaves = (amax > most && chosen > scale) || (amax < (float)LEAST / (float)(1 << BITS) * code && chosen < scale);
        return leaves ? chosen : scale;
    }

    // The exponent and the whole units of a block whose exponent may change; false where it stays as it is.
    template <class Luck>
    DEVICE bool in_values(const int (&k)[BLOCK], const Push& push, const Luck& luck, u8& chosen, int (&now)[BLOCK],
                          Tally& tally) const {
        float code = e8m0(scale), w[BLOCK], delta[BLOCK], moved[BLOCK];
        UNROLL for (int i = 0; i < BLOCK; i++) w[i] = float_of_units(k[i]) / (float)(1 << BITS) * code;
        push.values(w, delta);
        if (!any(delta)) return false;
        UNROLL for (int i = 0; i < BLOCK; i++) moved[i] = w[i] + delta[i];
        u32 largest = largest_bits(moved);
        if (largest >= 0x7F800000) {
            tally.refused += 1;
            return false;
        }
        chosen = next_scale(__uint_as_float(largest));
        bool kept = chosen == scale;
        float per_code = inverse_power_of_two(chosen);
        UNROLL for (int i = 0; i < BLOCK; i++) {
            // Under the old scale only the update is rounded: what is stored is whole already.
            float t = hold((kept ? delta[i] : moved[i]) * per_code * (float)(1 << BITS));
            int wanted = (kept ? k[i] : 0) + stochastic(t, luck[i]);
            now[i] = clamped(wanted, -LIMIT, LIMIT);
            tally.saturated += now[i] != wanted;
        }
        return true;
    }

    // Whether the exponent stays under a block of so many units.
    static DEVICE bool stays(const int (&now)[BLOCK]) {
        int lowest = 0, highest = 0;
        UNROLL for (int i = 0; i < BLOCK; i++) lowest = min(lowest, now[i]), highest = max(highest, now[i]);
        int farthest = max(highest, -lowest);
        return farthest >= LEAST && farthest <= LIMIT;
    }

    DEVICE void put(const int (&now)[BLOCK], Tally& tally) {
        u32 old[4] = {codes[0], codes[1], codes[2], codes[3]};
        UNROLL for (int i = 0; i < 4; i++) codes[i] = 0;
        UNROLL for (int i = 0; i < REST<BITS>; i++) rest[i] = 0;
        UNROLL for (int i = 0; i < BLOCK; i++) {
            int code = (now[i] + HALF) >> BITS;
            put_byte(codes, i, code);
            put_rest<BITS>(rest, i, now[i] - code * (1 << BITS));
        }
        UNROLL for (int i = 0; i < 4; i++) tally.changed += bytes_changed(old[i], codes[i]);
    }

    typedef NoTables Tables;

    // Of 256 units under an exponent, `size` is so many times.
    static DEVICE float times_of(u8 scale, float, float size) {
        return size / (e8m0(scale) / (float)(1 << BITS)) * PER_256;
    }

    // A move of less than 64 units under an exponent that stays. Where it is none, nothing moves.
    template <class Luck>
    DEVICE Moved update_near(const Tables&, float times, const Push& push, const Luck& luck, Tally& tally) {
        int now[BLOCK];
        u32 moves[BLOCK], outside = 0;
        push.settle([&](int i) { return units(i); }, times, luck, moves);
        UNROLL for (int i = 0; i < BLOCK; i++) {
            outside |= moves[i] ^ SETTLED;
            now[i] = units(i) + (int)(moves[i] - SETTLED - 64);
        }
        if (outside >= 128) return NOT_NEAR;
        if (!stays(now)) return NO_STAY;
        put(now, tally);
        return DONE;
    }

    // Another one, for the reason that was given.
    template <class Luck>
    DEVICE void update_far(float, const Push& push, const Luck& luck, Moved why, Tally& tally) {
        int k[BLOCK], now[BLOCK] = {};
        UNROLL for (int i = 0; i < BLOCK; i++) k[i] = units(i);
        if (why == NOT_NEAR) {
            push.whole_units(k, e8m0(scale) / (float)(1 << BITS), luck, now);
            UNROLL for (int i = 0; i < BLOCK; i++) now[i] += k[i];
        }
        u8 chosen = scale;
        if (!stays(now) && !in_values(k, push, luck, chosen, now, tally)) return;
        put(now, tally);
        tally.rescaled += chosen != scale;
        scale = chosen;
    }
};

} // namespace state
