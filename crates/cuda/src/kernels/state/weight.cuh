// `state::weight`: a block of NVFP4 codes with remainders under a sticky scale.
#pragma once
#include "adamw.cuh"

namespace state {

// Where `Nvfp4::Spellings` are.
template <int BITS> DEVICE const void* spellings();

template <int BITS> struct Nvfp4 {
    u32 codes[2];
    u32 rest[REST<BITS>];
    u8 scale;

    static constexpr int ONE = 1 << (BITS - 1); // units in one block scale
    static constexpr int LIMIT = 7 * ONE - 1;   // units, and half a unit more

    // ---- units ----

    // More than there are.
    static constexpr int MORE = (int)BIAS * (ONE / 2) + (BITS == 8 ? 0 : ONE);

    // Four remainders from number `first` on, a byte each; of four bits, with ONE more.
    DEVICE u32 rests(int first) const {
        if constexpr (BITS == 8) return rest[first / 4];
        u32 word = rest[first / 8] ^ 0x88888888;
        return __byte_perm(word & 0x0F0F0F0F, word >> 4 & 0x0F0F0F0F, first % 8 < 4 ? 0x5140 : 0x7362);
    }

    // Sixteen of both.
    struct Bytes {
        u32 halves[BLOCK / 4], rests[BLOCK / 4];

        // Units of an element and MORE, onto `sum`.
        DEVICE int units(int i, int sum) const {
            int by = 8 * (i % 4);
            return dot_bytes(rests[i / 4], 1u << by, dot_bytes(halves[i / 4], (u32)(ONE / 2) << by, sum));
        }
    };

    DEVICE Bytes bytes() const {
        Bytes bytes;
        UNROLL for (int i = 0; i < BLOCK / 4; i++)
            bytes.halves[i] = biased_halves(codes, 4 * i), bytes.rests[i] = rests(4 * i);
        return bytes;
    }

    // ---- spellings: a remainder in the lowest byte, a code above it, and above that where the number lies ----

    // Near six or four block scales, between them, beyond.
    enum Where : u32 { SIX = 1 << 12, BETWEEN = 1 << 13, FOUR = 1 << 14, BEYOND = 1 << 15 };

    static DEVICE bool stays(u32 where) {
        return !(where & BEYOND) && (where & SIX || (where & (FOUR | BETWEEN)) == FOUR);
    }

    static constexpr DEVICE u32 where(int k) {
        int halves = 2 * (k ^ (k >> 31)) / ONE;
        return halves >= 13 ? BEYOND : halves >= 11 ? SIX : halves >= 9 ? BETWEEN : halves >= 7 ? FOUR : 0;
    }

    static constexpr DEVICE u32 spelled(int k) {
        int a = k ^ (k >> 31);
        // One comparison per midpoint; half a unit more than `a` is on none of them.
        u32 code = (4 * a >= ONE) + (4 * a >= 3 * ONE) + (4 * a >= 5 * ONE) + (4 * a >= 7 * ONE) + (2 * a >= 5 * ONE) +
                   (2 * a >= 7 * ONE) + (a >= 5 * ONE);
        int of_code = (code < 5 ? (int)code : code == 5 ? 6 : code == 6 ? 8 : 12), units = of_code * (ONE / 2);
        if (k < 0) units = -units;
        if (k < 0 && code > 0) code |= 8;
        return ((u32)(k - units) & ((1u << BITS) - 1)) | code << 8 | where(k);
    }

    // Every number of units that a near move leads to. Where remainders are small, as they are at first in a model that came
    // without, units lie near multiples of 64, which would be in one bank of the memory: so a place is left out after each 64.
    static constexpr int FIRST = -(LIMIT + 1) - 64, COUNT = LIMIT + 64 - FIRST;
    static constexpr DEVICE u32 place(u32 at) { return BITS == 8 ? at + (at >> 6) : at; }
    static constexpr u32 PLACES = (place(COUNT) + 7) / 8 * 8; // whole fours of words
    struct alignas(16) Spellings {
        u16 of[PLACES];

        constexpr DEVICE Spellings() : of() {
            for (int at = 0; at < COUNT; at++) of[place(at)] = (u16)spelled(at + FIRST);
        }
    };

    struct Tables {
        uint4 fours[PLACES / 8];

        // A thread's part.
        DEVICE void fill() {
            const uint4* from = (const uint4*)spellings<BITS>();
            for (u32 at = threadIdx.x; at < PLACES / 8; at += blockDim.x) fours[at] = from[at];
        }

        // Of so many units, and MORE than there are, and what `settled` has more. All that is more is a multiple of 64, so that
        // it may be taken off behind `place`.
        DEVICE u32 at(u32 units) const {
            constexpr u32 BEFORE = SETTLED + 64 + MORE + FIRST;
            static_assert(BITS != 8 || BEFORE % 64 == 0);
            return *(const u16*)((const u8*)fours + (place(units) - place(BEFORE)) * 2);
        }
    };

    // Codes and remainders of sixteen spellings.
    DEVICE void pack(const u32 (&now)[BLOCK]) {
        UNROLL for (int i = 0; i < 2; i++) {
            const u32* of = now + 8 * i;
            u32 pairs[2], rests[2];
            UNROLL for (int j = 0; j < 2; j++) {
                // Two remainders below, their codes above.
                u32 first = __byte_perm(of[4 * j], of[4 * j + 1], 0x5140);
                u32 second = __byte_perm(of[4 * j + 2], of[4 * j + 3], 0x5140);
                rests[j] = __byte_perm(first, second, 0x5410);
                u32 apart = __byte_perm(first, second, 0x7632);
                pairs[j] = (apart & 0xFF0FFF0F) | (apart >> 4 & 0x00F000F0);
            }
            codes[i] = __byte_perm(pairs[0], pairs[1], 0x6420);
            if constexpr (BITS == 8) rest[2 * i] = rests[0], rest[2 * i + 1] = rests[1];
            else
                rest[i] = __byte_perm(rests[0] | rests[0] >> 4, rests[1] | rests[1] >> 4, 0x6420);
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

    // ---- moves ----

    // The scale and the whole units of a block whose scale may change; false where it stays as it is.
    template <class Luck>
    DEVICE bool in_values(const int (&k)[BLOCK], float global, const Push& push, const Luck& luck, u8& chosen,
                          int (&now)[BLOCK], Tally& tally) const {
        float unit = e4m3(scale) / (float)ONE, w[BLOCK], delta[BLOCK], moved[BLOCK];
        UNROLL for (int i = 0; i < BLOCK; i++) w[i] = (float_of_units(k[i]) + 0.5f) * unit * global;
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
            float t = hold((kept ? delta[i] : moved[i]) * per_tensor * per_unit - (kept ? 0.0f : 0.5f));
            int wanted = (kept ? k[i] : 0) + stochastic(t, luck[i]);
            now[i] = clamped(wanted, ~LIMIT, LIMIT);
            tally.saturated += now[i] != wanted;
        }
        return true;
    }

    // Of 256 units under a scale, `size` is so many times.
    static DEVICE float times_of(u8 scale, float global, float size) {
        return size / (e4m3(scale) / (float)ONE * global) * PER_256;
    }

    // A move of less than 64 units under a scale that stays. Where it is none, nothing moves.
    template <class Luck>
    DEVICE Moved update_near(const Tables& tables, float times, const Push& push, const Luck& luck, Tally& tally) {
        Bytes of = bytes();
        u32 moves[BLOCK], now[BLOCK], any = 0, all = ~0u, where = 0;
        push.settle([&](int i) { return of.units(i, -MORE); }, times, luck, moves);
        UNROLL for (int i = 0; i < BLOCK; i++) any |= moves[i], all &= moves[i];
        // What is below SETTLED has other bits, too: a sum is held.
        if ((any & ~SETTLED) >= 128) return NOT_NEAR;
        UNROLL for (int i = 0; i < BLOCK; i++)
            now[i] = tables.at((u32)of.units(i, (int)moves[i])), where |= now[i];
        if (!stays(where)) return NO_STAY;
        // Where nothing moves, all keep their bits, however they are spelled.
        if (any != SETTLED + 64 || all != SETTLED + 64) put(now, tally);
        return DONE;
    }

    // Another one, for the reason that was given.
    template <class Luck>
    DEVICE void update_far(float global, const Push& push, const Luck& luck, Moved why, Tally& tally) {
        int k[BLOCK], now[BLOCK];
        u32 spellings[BLOCK], all = 0;
        Bytes of = bytes();
        UNROLL for (int i = 0; i < BLOCK; i++) k[i] = of.units(i, -MORE);
        u8 chosen = scale;
        if (why == NOT_NEAR) {
            push.whole_units(k, e4m3(scale) / (float)ONE * global, luck, now);
            UNROLL for (int i = 0; i < BLOCK; i++) now[i] += k[i], all |= where(now[i]);
        }
        if (!stays(all) && !in_values(k, global, push, luck, chosen, now, tally)) return;
        bool same = chosen == scale;
        UNROLL for (int i = 0; i < BLOCK; i++) same &= now[i] == k[i], spellings[i] = spelled(now[i]);
        if (!same) put(spellings, tally);
        tally.rescaled += chosen != scale;
        scale = chosen;
    }

    DEVICE void put(const u32 (&spellings)[BLOCK], Tally& tally) {
        u32 old[2] = {codes[0], codes[1]};
        pack(spellings);
        tally.changed += nibbles_changed(old, codes);
    }
};

__device__ const Nvfp4<8>::Spellings SPELLINGS_BYTE;
__device__ const Nvfp4<4>::Spellings SPELLINGS_NIBBLE;

template <> DEVICE const void* spellings<8>() {
    return &SPELLINGS_BYTE;
}

template <> DEVICE const void* spellings<4>() {
    return &SPELLINGS_NIBBLE;
}

} // namespace state
