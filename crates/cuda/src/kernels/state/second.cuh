// `state::second`: roots of second moments. How v follows the gradient is in `update.cu`.
#pragma once
#include "device.cuh"

namespace state {

constexpr float FLOOR = 1e-30f;

DEVICE float root(float v) {
    return sqrtf(v > FLOOR ? v : FLOOR);
}

DEVICE float row_factor(float row, float mean) {
    return mean > 0.0f ? row / mean : 0.0f;
}

} // namespace state
