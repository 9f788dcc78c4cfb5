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

    // Where weights of k units come to lie, in 2^-FRACTION of a unit.
    template <int FRACTION>
    DEVICE void positions(const int (&k)[BLOCK], float unit, int (&positions)[BLOCK]) const {
        float times = size / unit;
        UNROLL for (int i = 0; i < BLOCK; i++)
            positions[i] = position<FRACTION>(k[i], along[i] * times - decay * float_of_units(k[i]));
    }
};

// Along moments over roots, which are corrected already.
DEVICE Push push_of(const Step& step, const float (&m)[BLOCK], const float (&roots)[BLOCK]) {
    Push push;
    push.size = -step.size, push.decay = step.decay;
    UNROLL for (int i = 0; i < BLOCK; i++) push.along[i] = m[i] / (roots[i] + step.eps);
    if (step.limit < __uint_as_float(0x7F800000)) {
        UNROLL for (int i = 0; i < BLOCK; i++) {
            float low = push.along[i] < -step.limit ? -step.limit : push.along[i];
            push.along[i] = low > step.limit ? step.limit : low;
        }
    }
    return push;
}

// The sum of the squares of a row's moves, in whole numbers.
DEVICE u64 squares_of(const Step& step, float sum) {
    float squares = sum * step.correction * step.correction * 65536.0f;
    constexpr u64 MOST = 1ull << 44;
    // What is too large is held, NaN is zero.
    return squares >= (float)MOST ? MOST : squares > 0.0f ? (u64)squares : 0;
}

} // namespace state
