// `state::second`: roots of second moments, and averages that follow. Sums of columns' squares are in `update.cu`.
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

// Where the root of a column's profile is. Threads next to each other, with a block each, read fours that lie side by
// side: rows of 32 fours, the first of each block, the second and so on.
DEVICE u32 profile_place(u32 column) {
    u32 block = column / BLOCK, four = column % BLOCK / 4;
    return ((block / 32 * 4 + four) * 32 + block % 32) * 4 + column % 4;
}

// Rows of a panel; of so many panels one is looked at; and so many of those are added up first.
constexpr u32 GROUP = 16, APART = 4, TOGETHER = 4;

// Sums of columns: of panels of this call that are looked at, and of the step.
struct ColumnSums {
    const float* sums;
    float *step, *averages;
    u32 count, begins, ends, looked_at; // so many rows in all
};

// Adds sums of a column to those of the step in their order; at its end the average follows.
DEVICE void follow_column(const ColumnSums& of, Average average, u32 columns, u32 column) {
    float total = of.begins ? 0.0f : of.step[column];
    // Several are read before the first is needed; zeros add nothing.
    constexpr u32 AT_ONCE = 16;
#pragma unroll 1
    for (u32 at = 0; at < of.count; at += AT_ONCE) {
        float near[AT_ONCE];
        UNROLL for (u32 i = 0; i < AT_ONCE; i++)
            near[i] = at + i < of.count ? of.sums[(u64)(at + i) * columns + column] : 0.0f;
        UNROLL for (u32 i = 0; i < AT_ONCE; i++) total += near[i];
    }
    of.step[column] = total;
    if (of.ends && of.looked_at > 0)
        of.averages[column] = follow(average, of.averages[column], total / (float)of.looked_at);
}

} // namespace state
