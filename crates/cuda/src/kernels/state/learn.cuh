// A row learns: second moments, first moments, then the weight's own kind, block by block. A thread moves a block
// of 16, a thread block one row after the other. The order of sums is that of `ops::update`: squares of moves in
// sixteen lanes over the blocks of a row.
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
constexpr int MOST_THREADS = 256;

// ---- second moments ----

// Averages of the rows and roots of the columns' profile; or, full, one number for each element.
struct SecondMoments {
    float* second;
    const float* profile;
    u32 full, width;
    Average average;
};

DEVICE void roots_of(const SecondMoments& of, u32 row, u32 index, const float (&g)[BLOCK], float (&roots)[BLOCK]) {
    if (of.full) {
        float* v = of.second + (u64)row * of.width + index * BLOCK;
        UNROLL for (int i = 0; i < BLOCK; i++) {
            v[i] = average_of(of.average, v[i], g[i] * g[i]);
            roots[i] = root(v[i]);
        }
    } else {
        float of_row = root(of.second[row]), own = sqrtf(of.average.fresh), profile[BLOCK];
        load_values(of.profile, of.width, index, profile);
        UNROLL for (int i = 0; i < BLOCK; i++) {
            float both = of_row * profile[i], mine = own * fabsf(g[i]);
            roots[i] = mine > both ? mine : both;
        }
    }
}

// ---- first moments ----

// Moves the moments of block `index` of a row and keeps them rounded; m is what they were before that.
DEVICE void move_moments(u32 kind, u8* row, u32 blocks, u32 index, const Average& average,
                         const float (&g)[BLOCK], const u32 (&luck)[BLOCK], float (&m)[BLOCK]) {
    if (kind == MOMENT_FOUR) {
        u8 *place = row + index * 8, *scale = row + blocks * 8 + index;
        u32 codes[2];
        load(place, codes);
        decode_four(codes, *scale, m);
        UNROLL for (int i = 0; i < BLOCK; i++) m[i] = average_of(average, m[i], g[i]);
        encode_four(m, luck, codes, *scale);
        store(place, codes);
    } else if (kind == MOMENT_EIGHT) {
        u8 *place = row + index * 16, *scale = row + blocks * 16 + index;
        u32 codes[4];
        load(place, codes);
        decode_eight(codes, *scale, m);
        UNROLL for (int i = 0; i < BLOCK; i++) m[i] = average_of(average, m[i], g[i]);
        encode_eight(m, luck, codes, *scale);
        store(place, codes);
    } else {
        float* place = (float*)row + index * BLOCK;
        UNROLL for (int i = 0; i < BLOCK; i++)
            place[i] = m[i] = one_nan(average_of(average, place[i], g[i]));
    }
}

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
    if (threadIdx.x == 0 && squares > 0) atomicAdd(counts + 4, squares);
}

// W is a kind of weight: its format, bytes that its remainders have in a block, and how a block moves.
template <class W> DEVICE void learn(const Task& task, const SecondMoments& second, const Step& step) {
    // Lanes of a block lie apart by 17, so that threads do not wait for each other's banks.
    __shared__ float squares[MOST_THREADS * 17];
    u32 blocks = second.width / BLOCK;
    Tally tally = {};
    u64 sum_of_squares = 0;
    for (u32 index = blockIdx.x; index < task.rows; index += gridDim.x) {
        u32 row = task.first + index;
        const u8* panel = panel_of(task.weight, W::FORMAT, task.columns, row);
        Place at = {(u8*)codes_of(panel, W::FORMAT, task.columns, row),
                    (u8*)scales_of(panel, W::FORMAT, task.columns, row),
                    task.rest + (u64)row * blocks * W::REST_BYTES,
                    tensor_scale(task.weight, W::FORMAT), task.scales_by};
        u8* moments = task.moments + (u64)row * blocks * moment_bytes(task.moment);
        float lane = 0.0f;
        for (u32 start = 0; start < blocks; start += blockDim.x) {
            u32 block = start + threadIdx.x;
            if (block < blocks) {
                float g[BLOCK], roots[BLOCK], m[BLOCK], ratio[BLOCK];
                u32 own[BLOCK], other[BLOCK];
                load_values(task.gradient + (u64)index * task.columns, task.columns, block, g);
                draw_pairs(task.draws, ((u64)row * blocks + block) * BLOCK, own, other);
                roots_of(second, row, block, g, roots);
                move_moments(task.moment, moments, blocks, block, step.average, g, other, m);
                UNROLL for (int i = 0; i < BLOCK; i++) {
                    ratio[i] = ratio_of(step, m[i], roots[i]);
                    squares[threadIdx.x * 17 + i] = ratio[i] * ratio[i];
                }
                W::move(at, block, step, ratio, own, tally);
            }
            __syncthreads();
            u32 there = blocks - start < blockDim.x ? blocks - start : blockDim.x;
            if (threadIdx.x < BLOCK)
                for (u32 block = 0; block < there; block++) lane += squares[block * 17 + threadIdx.x];
            __syncthreads();
        }
        if (threadIdx.x < 32) {
            float sum = fold(lane);
            if (threadIdx.x == 0) sum_of_squares += squares_of(step, sum);
        }
    }
    count(task.counts, tally, sum_of_squares);
}

// One kernel for each kind of weight; moments and second moments are chosen inside.
#define LEARN(name, ...)                                                                                        \
    extern "C" __global__ void name(                                                                            \
        u8* weight, u8* rest, u8* moments, float* second, const float* profile, const float* gradient,          \
        u32 first, u32 rows, u32 columns, u32 moment, u32 full, int scales_by, u32 key0, u32 key1,              \
        const float* numbers, u64* counts) {                                                                    \
        Task task = {weight,  rest,   moments,   gradient,        first, rows,                                  \
                     columns, moment, scales_by, {{key0, key1}}, counts};                                       \
        SecondMoments seconds = {second, profile, full, (columns + BLOCK - 1) / BLOCK * BLOCK,                  \
                                 {numbers[8], numbers[9]}};                                                     \
        Step step = {{numbers[0], numbers[1]}, numbers[2], numbers[3], numbers[4],                              \
                     numbers[5], numbers[6], numbers[7]};                                                       \
        learn<__VA_ARGS__>(task, seconds, step);                                                                \
    }
