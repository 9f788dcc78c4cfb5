// `state::second` of columns: sums of their squares, their profile, and averages that follow.
#pragma once
#include "../chain.cuh"
#include "place.cuh"
#include "second.cuh"

namespace state {

constexpr u32 EVERYBODY = 0xffffffffu;

// ---- the profile ----

// Where the inverse root of a column's profile is. Threads next to each other, with a block each, read fours that lie side by
// side: rows of 32 fours, the first of each block of a tile, the second and so on.
DEVICE u32 profile_place(u32 column) {
    u32 block = column / BLOCK, four = column % BLOCK / 4;
    return ((block / 32 * 4 + four) * 32 + block % 32) * 4 + column % 4;
}

constexpr u32 PROFILING = 256; // threads of a thread block that makes one, as in update.rs

// What a thread needs for the profile of a tile; loaded long before it is needed.
struct Averages {
    float lane[TILE / BLOCK];    // those that one of sixteen lanes adds up
    float own[TILE / PROFILING]; // those whose inverse roots the thread makes

    // Zeros behind the last one, which add nothing.
    DEVICE Averages(const float* averages, u32 tile, u32 columns) {
        u32 there = min(TILE, columns - tile * TILE);
        const float* near = averages + tile * TILE;
        UNROLL for (u32 i = 0; i < TILE / BLOCK; i++) {
            u32 at = i * BLOCK + threadIdx.x % BLOCK;
            lane[i] = at < there ? near[at] : 0.0f;
        }
        UNROLL for (u32 i = 0; i < TILE / PROFILING; i++) {
            u32 at = i * PROFILING + threadIdx.x;
            own[i] = at < there ? near[at] : 0.0f;
        }
    }

    // Inverse roots of the profile: of averages over their mean, added in f64, which every warp does for itself.
    DEVICE void profile(float* inverses, u32 tile, u32 columns) const {
        double mean = 0.0;
        UNROLL for (u32 i = 0; i < TILE / BLOCK; i++) mean += lane[i];
        for (int apart = BLOCK / 2; apart > 0; apart /= 2) mean += __shfl_xor_sync(EVERYBODY, mean, apart);
        float by = (float)(mean / (double)min(TILE, columns - tile * TILE));
        UNROLL for (u32 i = 0; i < TILE / PROFILING; i++)
            inverses[profile_place(i * PROFILING + threadIdx.x)] = by > 0.0f ? 1.0f / root_in_range(own[i] / by) : 1.0f;
    }
};

// ---- sums ----

// Rows of a panel; of so many panels one is looked at; and so many of those are added up first.
constexpr u32 GROUP = 16, APART = 8, TOGETHER = 4;

// Columns whose squares a warp sums, of panels that are added up: eight threads a panel, four columns each.
constexpr u32 ABREAST = 32;
static_assert(TOGETHER * (ABREAST / 4) == 32, "a warp");

// Sums of columns: of panels of this call that are looked at, and of the step.
struct ColumnSums {
    float *sums, *step, *averages;
    u32 first, panels;           // the first panel that is looked at, and how many are
    u32 begins, ends, looked_at; // so many rows in all

    DEVICE u32 count() const { return (panels + TOGETHER - 1) / TOGETHER; }
};

// Four numbers of a row, or as many as are there and zeros.
template <bool NARROW, bool WHOLE> struct Four;
template <bool WHOLE> struct Four<true, WHOLE> { // narrow rows are whole
    uint2 words;
    DEVICE void load(const u8* from, u32) { words = *(const uint2*)from; }
    DEVICE void none() { words = make_uint2(0, 0); }
    DEVICE float operator[](int i) const {
        u32 word = i < 2 ? words.x : words.y;
        return i % 2 ? upper(word) : lower(word);
    }
};
template <bool WHOLE> struct Four<false, WHOLE> {
    float of[4];
    DEVICE void load(const u8* from, u32 there) {
        if (WHOLE) {
            float4 four = *(const float4*)from;
            of[0] = four.x, of[1] = four.y, of[2] = four.z, of[3] = four.w;
        } else {
            UNROLL for (int i = 0; i < 4; i++) of[i] = i < there ? ((const float*)from)[i] : 0.0f;
        }
    }
    DEVICE void none() { UNROLL for (int i = 0; i < 4; i++) of[i] = 0.0f; }
    DEVICE float operator[](int i) const { return of[i]; }
};

// Sums that there are for warps to make.
DEVICE u32 sums_of(const ColumnSums& of, u32 columns) {
    return of.count() * ((columns + ABREAST - 1) / ABREAST);
}

// Makes one of them. WHOLE: columns are a multiple of 64.
template <bool NARROW, bool WHOLE>
DEVICE void sum_columns(const ColumnSums& of, const u8* gradient, u32 rows, u32 columns, u32 number) {
    u32 lane = threadIdx.x % 32, parts = (columns + ABREAST - 1) / ABREAST;
    u32 group = number / parts, column = number % parts * ABREAST + lane % 8 * 4, panel = group * TOGETHER + lane / 8;
    u32 row = (of.first + panel * APART) * GROUP, each = NARROW ? 2 : 4;
    u32 there = panel < of.panels && column < columns ? min(GROUP, rows - row) : 0;
    // All of them are read before the first is needed; zeros add nothing.
    const u8* from = gradient + ((u64)row * columns + column) * each;
    Four<NARROW, WHOLE> near[GROUP];
    UNROLL for (u32 i = 0; i < GROUP; i++, from += columns * each) {
        if (i < there) near[i].load(from, columns - column);
        else near[i].none();
    }
    float sum[4] = {};
    UNROLL for (u32 i = 0; i < GROUP; i++)
        UNROLL for (int j = 0; j < 4; j++) sum[j] = __fmaf_rn(near[i][j], near[i][j], sum[j]);
    float* to = of.sums + (u64)group * columns + column;
    UNROLL for (int j = 0; j < 4; j++) {
        float total = 0.0f;
        UNROLL for (int i = 0; i < (int)TOGETHER; i++) total += __shfl_sync(EVERYBODY, sum[j], i * 8 + lane % 8);
        if (lane < 8 && column + j < columns) to[j] = total;
    }
}

// ---- averages that follow ----

// Adds sums of a column to those of the step in their order; at its end the average follows.
DEVICE void follow_column(const ColumnSums& of, Average average, u32 columns, u32 column) {
    float total = of.begins ? 0.0f : of.step[column];
    // Several are read before the first is needed; zeros add nothing.
    constexpr u32 AT_ONCE = 16;
#pragma unroll 1
    for (u32 at = 0; at < of.count(); at += AT_ONCE) {
        float near[AT_ONCE];
        UNROLL for (u32 i = 0; i < AT_ONCE; i++)
            near[i] = at + i < of.count() ? of.sums[(u64)(at + i) * columns + column] : 0.0f;
        UNROLL for (u32 i = 0; i < AT_ONCE; i++) total += near[i];
    }
    of.step[column] = total;
    if (of.ends && of.looked_at > 0)
        of.averages[column] = follow(average, of.averages[column], total / (float)of.looked_at);
}

// Where thread blocks of a call meet; zeros before.
struct Meeting {
    u32 arrived, taken; // thread blocks that have made their sums and read what they need; columns that follow, by 32
};

// Columns follow once all thread blocks have arrived, by whatever warps have nothing else to do then. Nobody waits: the first
// warp of the last one to arrive, which counted that, finds all there if nobody else did. Out of the way of those who find
// all of it taken.
__device__ __noinline__ void follow_columns(Meeting* meeting, ColumnSums of, Average average, u32 columns) {
    for (;;) {
        u32 taken = columns;
        if (threadIdx.x % 32 == 0 && look(&meeting->arrived) == gridDim.x) taken = atomicAdd(&meeting->taken, 1u);
        taken = __shfl_sync(EVERYBODY, taken, 0);
        __syncwarp();
        u32 column = taken * 32 + threadIdx.x % 32;
        if (taken >= (columns + 31) / 32) return;
        if (column < columns) follow_column(of, average, columns, column);
    }
}

} // namespace state
