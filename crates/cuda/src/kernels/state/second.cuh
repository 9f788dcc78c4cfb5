// `state::second`: roots of second moments, and averages that follow. Sums of squares are in `update.cu`.
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

// Where the root of a column's profile is. Threads next to each other, with a block each, read fours that lie side by
// side: rows of 32 fours, the first of each block, the second and so on. `PROFILE` in update.rs.
DEVICE u32 profile_place(u32 column) {
    u32 block = column / BLOCK, four = column % BLOCK / 4;
    return ((block / 32 * 4 + four) * 32 + block % 32) * 4 + column % 4;
}

constexpr u32 GROUP = 64; // rows whose columns are added up together

// Sums of columns: of every group of rows of this call, and of the step.
struct ColumnSums {
    const float* groups;
    float *step, *averages;
    u32 count, begins, all_rows;
};

// Adds the groups' sums of a column to those of the step in their order; at its end (`all_rows`, else zero) the
// average follows.
DEVICE void follow_column(const ColumnSums& of, Average average, u32 columns, u32 column) {
    float total = of.begins ? 0.0f : of.step[column];
#pragma unroll 16
    for (u32 group = 0; group < of.count; group++) total += of.groups[(u64)group * columns + column];
    of.step[column] = total;
    if (of.all_rows) of.averages[column] = follow(average, of.averages[column], total / (float)of.all_rows);
}

} // namespace state
