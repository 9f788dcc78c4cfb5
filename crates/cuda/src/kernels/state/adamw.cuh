// `state::adamw` and `state::Push`: the move of a weight, in f32, element by element.
#pragma once
#include "units.cuh"

namespace state {

// As `adamw::Step`, field by field.
struct Step {
    Average average;
    float size, per_root, per_old_root, eps, decay, limit, per_square;
};

// What sixteen weights are moved by: size * along[i] - decay * w[i].
struct Push {
    float along[BLOCK];
    float size, decay;

    DEVICE void values(const float (&w)[BLOCK], float (&delta)[BLOCK]) const {
        UNROLL for (int i = 0; i < BLOCK; i++) delta[i] = size * along[i] - decay * w[i];
    }

    // Whole units of moves, if they are near, as `settled` gives them. Of weights of k(i) units, of 256 of which
    // `size` is `times`.
    template <class Luck, class K> DEVICE void settle(K k, float times, const Luck& luck, u32 (&moves)[BLOCK]) const {
        if (decay == 0.0f) {
            UNROLL for (int i = 0; i < BLOCK; i++) moves[i] = settled(held_fma(along[i], times, luck.luck(i)));
        } else {
            float lost = decay * PER_256;
            UNROLL for (int i = 0; i < BLOCK; i++) {
                float t = __fmaf_rn(along[i], times, -(lost * float_of_units(k(i))));
                moves[i] = settled(held_sum(t, luck.luck(i)));
            }
        }
    }

    // Whole units of any moves.
    template <class Luck> DEVICE void whole_units(const int (&k)[BLOCK], float unit, const Luck& luck, int (&whole)[BLOCK]) const {
        float times = size / unit;
        u32 near[BLOCK];
        settle([&](int i) { return k[i]; }, times * PER_256, luck, near);
        UNROLL for (int i = 0; i < BLOCK; i++) {
            float t = decay == 0.0f ? along[i] * times : __fmaf_rn(along[i], times, -(decay * float_of_units(k[i])));
            u32 whole_near = near[i] - SETTLED;
            whole[i] = whole_near < 128 ? (int)whole_near - 64 : stochastic(hold(t), luck[i]);
        }
    }
};

// What came of a move of less than 64 units, or why there was none: a move is far, or the scale does not stay.
enum Moved { DONE, NOT_NEAR, NO_STAY };

// Kinds of weights that need no table.
struct NoTables {
    DEVICE void fill() {}
};

// Along moments over roots, which are corrected already and have eps in them. TAME: no root is beyond 2^60, and eps is in
// the middle of the range.
template <bool TAME> DEVICE Push push_of(const Step& step, const float (&m)[BLOCK], const float (&roots)[BLOCK]) {
    Push push;
    push.size = -step.size, push.decay = step.decay;
    UNROLL for (int i = 0; i < BLOCK; i++) push.along[i] = m[i] * (TAME ? one_over(roots[i]) : 1.0f / roots[i]);
    if (step.limit < __uint_as_float(0x7F800000)) {
        UNROLL for (int i = 0; i < BLOCK; i++) {
            float low = push.along[i] < -step.limit ? -step.limit : push.along[i];
            push.along[i] = low > step.limit ? step.limit : low;
        }
    }
    return push;
}

// What the squares of a block's moves count; what is not finite counts as the most.
DEVICE u32 squares_of(const Step& step, float sum) {
    constexpr float MOST = 16777216.0f;
    return (u32)fminf(sum * step.per_square, MOST);
}

} // namespace state
