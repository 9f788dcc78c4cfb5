// `state::second`: roots of second moments. How v follows the gradient is in `update.cu`.
#pragma once
#include "device.cuh"

namespace state {

constexpr float FLOOR = 1e-30f;

DEVICE float root(float v) {
    return sqrtf(v > FLOOR ? v : FLOOR);
}

// An average that follows a mean; one that is not finite is not followed.
DEVICE float follow(Average average, float old, float mean) {
    float now = average_of(average, old, mean);
    return now < __uint_as_float(0x7F800000) ? now : old;
}

} // namespace state
