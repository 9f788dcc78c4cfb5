// `state::adamw` and `state::Push`: the move of a weight, in f32, element by element.
#pragma once
#include "units.cuh"

namespace state {

// As `adamw::Step`, field by field.
struct Step {
    Average average;
    float size, per_root, eps, decay, limit, correction;
};

// What sixteen weights are moved by: size * along[i] - decay * w[i].
struct Push {
    float along[BLOCK];
    float size, decay;

    DEVICE void values(const float (&w)[BLOCK], float (&delta)[BLOCK]) const {
        UNROLL for (int i = 0; i < BLOCK; i++) delta[i] = size * along[i] - decay * w[i];
    }

    // What weights of k - MORE units are moved by, in units, of which `size` is so many.
    template <int MORE = 0> DEVICE void in_units(const int (&k)[BLOCK], float times, float (&t)[BLOCK]) const {
        UNROLL for (int i = 0; i < BLOCK; i++) t[i] = along[i] * times;
        if (decay == 0.0f) return;
        UNROLL for (int i = 0; i < BLOCK; i++) t[i] -= decay * float_of_units(k[i] - MORE);
    }

    // Where they come to lie, in 2^-FRACTION of a unit.
    template <int FRACTION>
    DEVICE void positions(const int (&k)[BLOCK], float unit, int (&positions)[BLOCK]) const {
        float t[BLOCK];
        in_units(k, size / unit, t);
        UNROLL for (int i = 0; i < BLOCK; i++) positions[i] = position<FRACTION>(k[i], t[i]);
    }
};

// What `update_near` did, or why it did nothing: a move was far, or the scale does not stay for sure.
enum Moved { DONE, NOT_NEAR, NO_STAY };

// Weights of a block, of k - MORE units, that move by less than 2^(22 - FRACTION) units: there a sum with SHIFT has t in
// 2^-FRACTION of a unit, to nearest, in its bits.
template <int FRACTION, int MORE = 0> struct Near {
    u32 outside;
    int lowest, highest;

    static constexpr int ZERO = SHIFT_BITS + MORE * (1 << FRACTION); // where positions of zero are

    // Whole units of moved weights, rounded down or up as the upper bits of `luck` decide.
    template <class Luck>
    DEVICE void move(const int (&k)[BLOCK], const Push& push, float times, const Luck& luck, int (&now)[BLOCK]) {
        float t[BLOCK];
        push.in_units<MORE>(k, times, t);
        outside = 0, lowest = highest = ZERO;
        UNROLL for (int i = 0; i < BLOCK; i++) {
            u32 bits = __float_as_uint(__fmaf_rn(t[i], (float)(1 << FRACTION), SHIFT));
            outside |= bits ^ 0x4B000000;
            int position = k[i] * (1 << FRACTION) + (int)bits;
            lowest = min(lowest, position), highest = max(highest, position);
            now[i] = (position + (int)luck.template upper<FRACTION>(i) - SHIFT_BITS) >> FRACTION;
        }
    }

    // Whether one was not near, or NaN.
    DEVICE bool wild() const { return outside >> 23 != 0; }

    DEVICE int farthest() const { return max(highest - ZERO, ZERO - lowest); }
};

// n / d to nearest, as a division gives it: the remainder of almost the quotient is exact. For what is in the middle
// of the range, since nothing may be lost below it.
DEVICE float quotient(float n, float d) {
    float inverse = one_over(d), almost = n * inverse;
    return __fmaf_rn(__fmaf_rn(-d, almost, n), inverse, almost);
}

// Along moments over roots, which are corrected already. TAME: the moments are, no root is beyond 2^60, and eps is in the
// middle of the range (`tame_eps`).
template <bool TAME> DEVICE Push push_of(const Step& step, const float (&m)[BLOCK], const float (&roots)[BLOCK]) {
    Push push;
    push.size = -step.size, push.decay = step.decay;
    UNROLL for (int i = 0; i < BLOCK; i++) {
        float root = roots[i] + step.eps;
        push.along[i] = TAME ? quotient(m[i], root) : m[i] / root;
    }
    if (step.limit < __uint_as_float(0x7F800000)) {
        UNROLL for (int i = 0; i < BLOCK; i++) {
            float low = push.along[i] < -step.limit ? -step.limit : push.along[i];
            push.along[i] = low > step.limit ? step.limit : low;
        }
    }
    return push;
}

DEVICE bool tame_eps(const Step& step) {
    return (step.eps >= SMALL) & (step.eps <= LARGE);
}

// The sum of the squares of a row's moves, in whole numbers.
DEVICE u64 squares_of(const Step& step, float sum) {
    float squares = sum * step.correction * step.correction * 65536.0f;
    constexpr u64 MOST = 1ull << 44;
    // What is too large is held, NaN is zero.
    return squares >= (float)MOST ? MOST : squares > 0.0f ? (u64)squares : 0;
}

} // namespace state
