// `state::second`: roots of second moments, and averages that follow. Those of columns are in `columns.cuh`.
#pragma once
#include "device.cuh"

namespace state {

constexpr float FLOOR = 1e-30f;

DEVICE float root(float v) {
    return sqrtf(v > FLOOR ? v : FLOOR);
}

// The same, but for infinity, whose root may be no number. (Every finite number was tried on an H200.)
DEVICE float root_in_range(float v) {
    float x = v > FLOOR ? v : FLOOR, inverse = about_one_over_root(x), almost = x * inverse;
    return __fmaf_rn(__fmaf_rn(-almost, almost, x), 0.5f * inverse, almost);
}

// An average that follows a mean; one that is not finite is not followed.
DEVICE float follow(Average average, float old, float mean) {
    float now = average_of(average, old, mean);
    return now < __uint_as_float(0x7F800000) ? now : old;
}

constexpr u32 TILE = 32 * BLOCK; // columns that have averages and a profile of their own

DEVICE u32 tiles_of(u32 columns) {
    return (columns + TILE - 1) / TILE;
}

} // namespace state
