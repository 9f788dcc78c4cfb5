// A row learns: second moments, first moments, then the weight's own kind, block by block. A thread moves a block
// of 16, a thread block one row after the other.
#pragma once
#include "../common.cuh"
#include "adamw.cuh"
#include "draw.cuh"
#include "moment.cuh"
#include "place.cuh"
#include "second.cuh"

using namespace state;

// As in update.rs.
enum { MOMENT_FOUR, MOMENT_EIGHT, MOMENT_FLOAT };
constexpr int MOST_THREADS = 256; // that move blocks
constexpr int APART = BLOCK + 1;  // lanes of a block, so that threads do not wait for each other's banks

// ---- second moments ----

// Averages of the rows and roots of the columns' profile; or, full, one number for each element.
struct SecondMoments {
    float* second;
    const float* profile;
    u32 full, width;
    Average average;
    float per_root; // corrects a root
};

DEVICE void roots_of(const SecondMoments& of, u32 row, u32 index, const float (&g)[BLOCK], float (&roots)[BLOCK]) {
    if (of.full) {
        float* v = of.second + (u64)row * of.width + index * BLOCK;
        UNROLL for (int i = 0; i < BLOCK; i++) {
            v[i] = average_of(of.average, v[i], g[i] * g[i]);
            roots[i] = root(v[i]) * of.per_root;
        }
    } else {
        float of_row = root(of.second[row]) * of.per_root, own = sqrtf(of.average.fresh) * of.per_root;
        float profile[BLOCK];
        load_values(of.profile, of.width, index, profile);
        // What is no number does not count.
        UNROLL for (int i = 0; i < BLOCK; i++) roots[i] = fmaxf(of_row * profile[i], own * fabsf(g[i]));
    }
}

// ---- first moments ----

// A block of a row's first moments.
struct Moments {
    u8 *place, *scale_place;
    u32 four[2], eight[4];
    u8 scale;

    DEVICE void load_from(u32 kind, u8* row, u32 blocks, u32 index) {
        place = row + index * (kind == MOMENT_FOUR ? 8 : kind == MOMENT_EIGHT ? 16 : 64);
        scale_place = row + blocks * (kind == MOMENT_FOUR ? 8 : 16) + index;
        if (kind == MOMENT_FLOAT) return;
        if (kind == MOMENT_FOUR) load(place, four);
        else load(place, eight);
        scale = *scale_place;
    }

    // Moves them and keeps them rounded; m is what they are before that.
    DEVICE void move(u32 kind, const Average& average, const float (&g)[BLOCK], const Other& luck,
                     float (&m)[BLOCK]) {
        if (kind == MOMENT_FOUR) {
            follow_four(four, scale, g, average, m);
            encode_four(m, luck, four, scale);
            store(place, four);
            *scale_place = scale;
        } else if (kind == MOMENT_EIGHT) {
            decode_eight(eight, scale, m);
            UNROLL for (int i = 0; i < BLOCK; i++) m[i] = average_of(average, m[i], g[i]);
            encode_eight(m, luck, eight, scale);
            store(place, eight);
            *scale_place = scale;
        } else {
            float* floats = (float*)place;
            UNROLL for (int i = 0; i < BLOCK; i++)
                floats[i] = m[i] = one_nan(average_of(average, floats[i], g[i]));
        }
    }
};

// ---- all of it ----

// A row of a weight: its codes (values), its scales, its remainders (master).
struct Place {
    u8 *codes, *scales, *rest;
    float global;
    int scales_by;
};

// One call: rows `first..` of a weight from rows 0.. of a gradient.
struct Task {
    u8 *weight, *rest, *moments;
    const float* gradient;
    u32 first, rows, columns, moment;
    int scales_by;
    Draws draws;
    u64* counts;
};

DEVICE u32 moment_bytes(u32 kind) {
    return kind == MOMENT_FOUR ? 9 : kind == MOMENT_EIGHT ? 17 : 64;
}

// Adds counts of a thread block to those of the call: whole numbers, so that no order shows.
DEVICE void count(u64* counts, const Tally& tally, u64 squares) {
    u32 parts[4] = {tally.changed, tally.rescaled, tally.saturated, tally.refused};
    for (int part = 0; part < 4; part++) {
        u32 sum = parts[part];
        for (int width = 16; width > 0; width /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, width);
        if (threadIdx.x % 32 == 0 && sum > 0) atomicAdd(counts + part, (u64)sum);
    }
    if (squares > 0) atomicAdd(counts + SQUARES, squares);
}

// Adds the squares of a row's moves in sixteen lanes, block after block, and those of the rows in whole numbers.
struct Squares {
    float lane;
    u64 all;

    // The next blocks of a row, maybe its last.
    DEVICE void add(const float* ratios, u32 blocks, bool last, const Step& step) {
#pragma unroll 8
        for (u32 block = 0; block < blocks; block++) {
            float ratio = ratios[block * APART + threadIdx.x % BLOCK];
            lane = __fmaf_rn(ratio, ratio, lane);
        }
        if (!last) return;
        all += squares_of(step, fold(lane));
        lane = 0.0f;
    }
};

// W is a block of a kind of weight: its format, bytes that its remainders have, and how it moves. Adding up the
// squares takes a row's blocks in their order: the last warp does it for those that the others have just moved.
template <class W> DEVICE void learn(const Task& task, const SecondMoments& second, const Step& step) {
    __shared__ float ratios[2][MOST_THREADS * APART];
    u32 blocks = second.width / BLOCK, movers = blockDim.x - 32, turn = 0, before = 0;
    bool adds = threadIdx.x >= movers, ended = false;
    Tally tally = {};
    Squares squares = {};
    for (u32 index = blockIdx.x; index < task.rows; index += gridDim.x) {
        u32 row = task.first + index;
        const u8* panel = panel_of(task.weight, W::FORMAT, task.columns, row);
        Place at = {(u8*)codes_of(panel, W::FORMAT, task.columns, row),
                    (u8*)scales_of(panel, W::FORMAT, task.columns, row),
                    task.rest + (u64)row * blocks * W::REST_BYTES,
                    tensor_scale(task.weight, W::FORMAT), task.scales_by};
        u8* row_moments = task.moments + (u64)row * blocks * moment_bytes(task.moment);
        for (u32 start = 0; start < blocks; start += movers, turn ^= 1) {
            u32 block = start + threadIdx.x;
            if (adds) {
                squares.add(ratios[turn ^ 1], before, ended, step);
            } else if (block < blocks) {
                // All loads come first: none waits for what is computed.
                float g[BLOCK], roots[BLOCK], m[BLOCK];
                load_values(task.gradient + (u64)index * task.columns, task.columns, block, g);
                Moments moments;
                moments.load_from(task.moment, row_moments, blocks, block);
                W weight;
                weight.load_from(at, block);
                Pairs pairs = draw_pairs(task.draws, ((u64)row * blocks + block) * BLOCK);
                roots_of(second, row, block, g, roots);
                moments.move(task.moment, step.average, g, Other{pairs}, m);
                Push push = push_of(step, m, roots);
                UNROLL for (int i = 0; i < BLOCK; i++) ratios[turn][threadIdx.x * APART + i] = push.along[i];
                weight.move(at, block, push, Own{pairs}, tally);
            }
            __syncthreads();
            before = min(blocks - start, movers), ended = start + movers >= blocks;
        }
    }
    if (adds) squares.add(ratios[turn ^ 1], before, ended, step);
    count(task.counts, tally, threadIdx.x == movers ? squares.all : 0);
}

// A step's numbers as parameters, in the order of update.rs.
#define NUMBERS                                                                                                  \
    float keep, float fresh, float size, float per_root, float eps, float decay, float limit, float correction,  \
        float second_keep, float second_fresh
#define STEP {{keep, fresh}, size, per_root, eps, decay, limit, correction}
#define SECOND_AVERAGE (Average{second_keep, second_fresh})

// One kernel for each kind of weight; moments and second moments are chosen inside.
#define LEARN(name, ...)                                                                                         \
    extern "C" __global__ void __launch_bounds__(MOST_THREADS + 32)                                              \
        name(u8* weight, u8* rest, u8* moments, float* second, const float* profile, const float* gradient,      \
             u32 first, u32 rows, u32 columns, u32 moment, u32 full, int scales_by, u32 key0, u32 key1,          \
             u64* counts, NUMBERS) {                                                                             \
        Task task = {weight,  rest,   moments,   gradient,        first, rows,                                   \
                     columns, moment, scales_by, {{key0, key1}}, counts};                                        \
        SecondMoments seconds = {second, profile, full, (columns + BLOCK - 1) / BLOCK * BLOCK,                   \
                                 SECOND_AVERAGE, per_root};                                                      \
        learn<__VA_ARGS__>(task, seconds, Step STEP);                                                            \
    }
