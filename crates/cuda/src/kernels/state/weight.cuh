// `state::weight`: a block of NVFP4 codes with remainders under a sticky scale.
#pragma once
#include "adamw.cuh"

namespace state {

template <int BITS> struct Nvfp4 {
    u32 codes[2];
    u32 rest[REST<BITS>];
    u8 scale;

    static constexpr int ONE = 1 << (BITS - 1); // units in one block scale
    static constexpr int LIMIT = 7 * ONE - 1;   // units
    static constexpr u32 LOW = (1u << BITS) - 1;

    // ---- spellings: a remainder, and above it a code ----

    DEVICE u32 spelling(int i) const { return BITS == 8 ? with_code(rest[i / 4], i) : spelling_of_nibbles(i); }

    // Where `Tables::units` has a spelling's: remainders that are alike, as all are when a run begins, would lie in one
    // bank of shared memory and be read one after the other.
    DEVICE u32 place(int i) const {
        return BITS == 8 ? with_code(rest[i / 4] ^ four_codes(i) << 1, i) : place_of(spelling_of_nibbles(i));
    }

    static DEVICE u32 place_of(u32 spelling) { return spelling ^ (spelling >> BITS << 1 & LOW); }

    // Where `Tables::spelled` has a number of units: codes are multiples of half of one.
    static DEVICE u32 place_of_units(int k) { return k + (k >> (BITS - 2)) * 2; }

    // Codes of element i and its neighbours, a byte each.
    DEVICE u32 four_codes(int i) const {
        u32 word = codes[i / 8];
        return __byte_perm(word & 0x0F0F0F0F, word >> 4 & 0x0F0F0F0F, i % 8 < 4 ? 0x5140 : 0x7362);
    }

    // Byte i of four, and above it the code. The upper bytes repeat the sign of the code's byte, which is none.
    DEVICE u32 with_code(u32 four, int i) const { return permuted(four, four_codes(i), i % 4 * 0x1111 + 0xCC40); }

    DEVICE u32 spelling_of_nibbles(int i) const {
        u32 word = codes[i / 8], low = rest[i / 8];
        if (i % 2) word >>= 4, low >>= 4;
        return ((word & 0x0F0F0F0F) << 4 | (low & 0x0F0F0F0F)) >> (8 * (i % 8 / 2)) & 255;
    }

    static DEVICE int units_of(u32 spelling) {
        u32 code = spelling >> BITS;
        int along = halves(code) * (ONE / 2) + ((int)(spelling << (32 - BITS)) >> (32 - BITS));
        return code & 8 ? -along : along;
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

    // The nearest code of k units, and what remains along its sign.
    static DEVICE u32 spelled(int k) {
        float units = float_of_units(k), code = nearest_code(units);
        float along = __uint_as_float(__float_as_uint(units - code) ^ (__float_as_uint(code) & 0x80000000));
        // So small, a number has its code above bit 22.
        u32 top = __float_as_uint(code * __uint_as_float(1u << (24 - BITS)));
        return (__float_as_uint(along + SHIFT) & LOW) | ((top >> 22 & 7) | (top >> 28 & 8)) << BITS;
    }

    // Both ways, for every block of a thread block; LIMIT counts as zero units.
    struct Tables {
        u16 units[16 << BITS];
        u16 spelled[2 * LIMIT + 1 + 2 * (2 * LIMIT >> (BITS - 2))];

        DEVICE void fill() {
            for (u32 at = threadIdx.x; at < 16 << BITS; at += blockDim.x) units[place_of(at)] = (u16)(units_of(at) + LIMIT);
            for (u32 at = threadIdx.x; at < 2 * LIMIT + 1; at += blockDim.x)
                spelled[place_of_units(at)] = (u16)Nvfp4::spelled((int)at - LIMIT);
            __syncthreads();
        }
    };

    // Codes and remainders of sixteen spellings.
    DEVICE void pack(const u32 (&now)[BLOCK]) {
        UNROLL for (int i = 0; i < 2; i++) {
            const u32* of = now + 8 * i;
            if constexpr (BITS == 8) {
                u32 pairs[2];
                UNROLL for (int j = 0; j < 2; j++) {
                    // Two remainders below, their codes above.
                    u32 first = __byte_perm(of[4 * j], of[4 * j + 1], 0x5140);
                    u32 second = __byte_perm(of[4 * j + 2], of[4 * j + 3], 0x5140);
                    rest[2 * i + j] = __byte_perm(first, second, 0x5410);
                    u32 apart = __byte_perm(first, second, 0x7632);
                    pairs[j] = apart | apart >> 4;
                }
                codes[i] = __byte_perm(pairs[0], pairs[1], 0x6420);
            } else {
                u32 even = of[0] | of[2] << 8 | of[4] << 16 | of[6] << 24;
                u32 odd = of[1] | of[3] << 8 | of[5] << 16 | of[7] << 24;
                rest[i] = (even & 0x0F0F0F0F) | (odd & 0x0F0F0F0F) << 4;
                codes[i] = (even >> 4 & 0x0F0F0F0F) | (odd & 0xF0F0F0F0);
            }
        }
    }

    // ---- scales ----

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

    // Whether the scale stays under a block whose farthest position is this: near six or four.
    static DEVICE bool stays(int farthest) {
        constexpr int half = ONE << 15;
        int from_six = farthest - 12 * half, from_four = farthest - 8 * half;
        return (from_six >= -half && from_six <= half) || (from_four >= -half && from_four <= half);
    }

    // ---- moves ----

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
        UNROLL for (int i = 0; i < BLOCK; i++) {
            // Under the old scale only the update is rounded: what is stored is whole already.
            float t = hold((kept ? delta[i] : moved[i]) * per_tensor * per_unit);
            int wanted = (kept ? k[i] : 0) + stochastic(t, luck[i]);
            now[i] = clamped(wanted, -LIMIT, LIMIT);
            tally.saturated += now[i] != wanted;
        }
        return true;
    }

    // A move of less than 64 units under a scale that stays.
    template <class Luck>
    DEVICE Moved update_near(const Tables& tables, float global, const Push& push, const Luck& luck, Tally& tally) {
        int k[BLOCK], now[BLOCK];
        UNROLL for (int i = 0; i < BLOCK; i++) k[i] = tables.units[place(i)];
        Near<16, LIMIT> near;
        near.move(k, push, push.size / (e4m3(scale) / (float)ONE * global), luck, now);
        if (near.wild()) return NOT_NEAR;
        if (!stays(near.farthest())) return NO_STAY;
        spell(tables, true, k, now, tally);
        return DONE;
    }

    // Another one, for the reason that was given.
    template <class Luck>
    DEVICE void update_far(const Tables& tables, float global, const Push& push, const Luck& luck, Moved why,
                           Tally& tally) {
        int k[BLOCK], positions[BLOCK], now[BLOCK];
        UNROLL for (int i = 0; i < BLOCK; i++) k[i] = tables.units[place(i)] - LIMIT;
        bool stay = false;
        if (why == NOT_NEAR) {
            push.positions<16>(k, e4m3(scale) / (float)ONE * global, positions);
            stay = stays(farthest(positions));
        }
        u8 chosen = scale;
        if (stay) settle<16>(positions, luck, now);
        else if (!in_values(k, global, push, luck, chosen, now, tally)) return;
        UNROLL for (int i = 0; i < BLOCK; i++) k[i] += LIMIT, now[i] += LIMIT;
        spell(tables, chosen == scale, k, now, tally);
        tally.rescaled += chosen != scale;
        scale = chosen;
    }

    // What has not moved, under a scale that is kept, keeps its bits, however they are spelled.
    DEVICE void spell(const Tables& tables, bool kept, const int (&k)[BLOCK], const int (&now)[BLOCK], Tally& tally) {
        u32 spellings[BLOCK], old[2] = {codes[0], codes[1]};
        UNROLL for (int i = 0; i < BLOCK; i++)
            spellings[i] = kept && now[i] == k[i] ? spelling(i) : tables.spelled[place_of_units(now[i])];
        pack(spellings);
        tally.changed += nibbles_changed(old, codes);
    }
};

} // namespace state
