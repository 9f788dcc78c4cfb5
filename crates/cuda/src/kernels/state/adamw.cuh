// `state::adamw` and `state::Push`: the move of a weight, in f32, element by element.
#pragma once
#include "units.cuh"

namespace state {

// As `adamw::Step`, field by field; `limit` is the one that v asks for.
struct Step {
    float keep, size, per_root, per_old_root, eps, decay, limit, per_square;
};

// As `adamw::OfRow`.
struct OfRow {
    float inverse, limit;
};

// Of a row whose factored v has this root.
DEVICE OfRow of_row(const Step& step, float root) {
    float corrected = root * step.per_old_root + step.eps;
    return {1.0f / corrected, step.limit * corrected};
}

// What sixteen weights are moved by: size * times * along[i] - decay * w[i].
struct Push {
    float along[BLOCK];
    float size, times, decay;

    DEVICE void values(const float (&w)[BLOCK], float (&delta)[BLOCK]) const {
        UNROLL for (int i = 0; i < BLOCK; i++) delta[i] = size * times * along[i] - decay * w[i];
    }

    // Whole units of moves, if they are near, as `settled` gives them. Of weights of k(i) units, of 256 of which
    // `size` is `far`, times `times`.
    template <class Luck, class K> DEVICE void settle(K k, float far, const Luck& luck, u32 (&moves)[BLOCK]) const {
        if (decay == 0.0f) {
            UNROLL for (int i = 0; i < BLOCK; i++) moves[i] = settled(held_fma(along[i], far, luck.luck(i)));
        } else {
            float lost = decay * PER_256;
            UNROLL for (int i = 0; i < BLOCK; i++) {
                float t = __fmaf_rn(along[i], far, -(lost * float_of_units(k(i))));
                moves[i] = settled(held_sum(t, luck.luck(i)));
            }
        }
    }

    // Whole units of any moves.
    template <class Luck> DEVICE void whole_units(const int (&k)[BLOCK], float unit, const Luck& luck, int (&whole)[BLOCK]) const {
        float far = size / unit * times;
        u32 near[BLOCK];
        settle([&](int i) { return k[i]; }, far * PER_256, luck, near);
        UNROLL for (int i = 0; i < BLOCK; i++) {
            float t = decay == 0.0f ? along[i] * far : __fmaf_rn(along[i], far, -(decay * float_of_units(k[i])));
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

// The next moment: a sum.
DEVICE float followed(const Step& step, float m, float g) {
    return __fmaf_rn(step.keep, m, g);
}

// Along moments over roots, of which the inverses are given: `Step::ratio` and `Step::push`. NUMBERS: there is no NaN.
template <bool NUMBERS>
DEVICE Push push_of(const Step& step, const float (&m)[BLOCK], const float (&inverses)[BLOCK], const OfRow& row) {
    Push push;
    push.size = -step.size, push.times = row.inverse, push.decay = step.decay;
    UNROLL for (int i = 0; i < BLOCK; i++) {
        float free = m[i] * inverses[i];
        push.along[i] = NUMBERS ? fminf(fmaxf(free, -row.limit), row.limit) : clamped(free, -row.limit, row.limit);
    }
    return push;
}

// What the squares of a block's moves count, the first four for all; what is not finite counts as the most.
DEVICE u32 squares_of(const Step& step, const Push& push) {
    constexpr float MOST = 16777216.0f;
    float squares[4];
    UNROLL for (int i = 0; i < 4; i++) squares[i] = push.along[i] * push.along[i];
    float sum = ((squares[0] + squares[2]) + (squares[1] + squares[3])) * step.per_square;
    return (u32)fminf(sum * push.times * push.times, MOST);
}

} // namespace state
