// `state::adamw`: the move of a weight, in f32, element by element.
#pragma once
#include "units.cuh"

namespace state {

// As `adamw::Step`, field by field.
struct Step {
    Average average;
    float size, per_root, eps, decay, limit, correction;
};

DEVICE float ratio_of(const Step& step, float m, float root) {
    float free = m / (root * step.per_root + step.eps);
    float low = free < -step.limit ? -step.limit : free;
    return low > step.limit ? step.limit : low;
}

DEVICE void delta_of(const Step& step, const float (&ratio)[BLOCK], const float (&w)[BLOCK],
                     float (&delta)[BLOCK]) {
    UNROLL for (int i = 0; i < BLOCK; i++) delta[i] = -(step.size * ratio[i]) - step.decay * w[i];
}

// The sum of the squares of a row's moves, in whole numbers.
DEVICE u64 squares_of(const Step& step, float sum) {
    float squares = sum * step.correction * step.correction * 65536.0f;
    constexpr u64 MOST = 1ull << 44;
    // What is too large is held, NaN is zero.
    return squares >= (float)MOST ? MOST : squares > 0.0f ? (u64)squares : 0;
}

} // namespace state
