// A row learns: second moments, first moments, then the weight's own kind, block by block. A thread moves a block
// of 16, a warp a tile, a thread block one row after the other; no warp waits for another. What is usual learns by
// `usual.cuh`.
#pragma once
#include "../common.cuh"
#include "adamw.cuh"
#include "columns.cuh"
#include "draw.cuh"
#include "moment.cuh"
#include "place.cuh"

using namespace state;

// As in update.rs.
enum { MOMENT_FOUR, MOMENT_EIGHT, MOMENT_FLOAT };
constexpr int THREADS = 160; // of a thread block, at most

// ---- second moments ----

// Averages of the rows, and of the columns; or, full, one number for each element.
struct SecondMoments {
    float* second;
    u32 full, width;
    Average average;
    ColumnSums columns;
};

// Of a tile, factored: what the row has in common, and inverse roots of the profile.
struct Factored {
    OfRow row;
    const float* profile;

    DEVICE void inverses(u32 block, float (&inverses)[BLOCK]) const {
        const float* near = profile + profile_place(block % 32 * BLOCK);
        UNROLL for (int i = 0; i < BLOCK; i += 4) {
            float4 four = *(const float4*)(near + profile_place(i));
            inverses[i] = four.x, inverses[i + 1] = four.y, inverses[i + 2] = four.z, inverses[i + 3] = four.w;
        }
    }
};

// Of full ones, which follow.
DEVICE void full_inverses(const SecondMoments& of, u64 first, const Step& step, const float (&g)[BLOCK],
                          float (&inverses)[BLOCK]) {
    float* v = of.second + first;
    UNROLL for (int i = 0; i < BLOCK; i++) {
        v[i] = average_of(of.average, v[i], g[i] * g[i]);
        inverses[i] = 1.0f / (root(v[i]) * step.per_root + step.eps);
    }
}

// ---- first moments ----

// Where a block of a row's first moments is, and its scale.
struct MomentPlace {
    u8 *codes, *scale;
};

// Moves a block of them, of any kind.
DEVICE Push move_moments(const MomentPlace& at, u32 kind, const Step& step, const float (&g)[BLOCK],
                         const float (&inverses)[BLOCK], const OfRow& row, const Other& luck) {
    float m[BLOCK];
    if (kind == MOMENT_FOUR) {
        u32 codes[2];
        load(at.codes, codes);
        follow_four(codes, *at.scale, g, step.keep, m);
        encode_four(m, luck, codes, *at.scale);
        store(at.codes, codes);
    } else if (kind == MOMENT_EIGHT) {
        u32 codes[4];
        load(at.codes, codes);
        decode_eight(codes, *at.scale, m);
        UNROLL for (int i = 0; i < BLOCK; i++) m[i] = followed(step, m[i], g[i]);
        encode_eight(m, luck, codes, *at.scale);
        store(at.codes, codes);
    } else {
        float* floats = (float*)at.codes;
        UNROLL for (int i = 0; i < BLOCK; i++) floats[i] = m[i] = one_nan(followed(step, floats[i], g[i]));
    }
    return push_of<false>(step, m, inverses, row);
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
    const u8* gradient;
    bool narrow;
    u32 first, rows, columns, moment;
    int scales_by;
    Draws draws;
    u32 base; // see `Own`
    u64* counts;
};

DEVICE u32 moment_bytes(u32 kind) {
    return kind == MOMENT_FOUR ? 9 : kind == MOMENT_EIGHT ? 17 : 64;
}

// Adds counts of a warp to those of the call: whole numbers, so that no order shows.
DEVICE void count(u64* counts, const Tally& tally, u64 squares) {
    u32 parts[4] = {tally.changed, tally.rescaled, tally.saturated, tally.refused};
    for (int part = 0; part < 4; part++) {
        u32 sum = parts[part];
        for (int width = 16; width > 0; width /= 2) sum += __shfl_xor_sync(EVERYBODY, sum, width);
        if (threadIdx.x % 32 == 0 && sum > 0) atomicAdd(counts + part, (u64)sum);
    }
    for (int width = 16; width > 0; width /= 2) squares += __shfl_xor_sync(EVERYBODY, squares, width);
    if (threadIdx.x % 32 == 0 && squares > 0) atomicAdd(counts + SQUARES, squares);
}

// What moves a block.
struct Move {
    const Push& push;
    const Own& luck;
};

template <class Block>
DEVICE void update(Block& block, const typename Block::Tables& tables, float global, const Move& by, Tally& tally) {
    float far = Block::times_of(block.scale, global, by.push.size) * by.push.times;
    Moved moved = block.update_near(tables, far, by.push, by.luck, tally);
    if (moved != DONE) block.update_far(global, by.push, by.luck, moved, tally);
}

// A row that learns: the weight's, its moments and its gradient. `index` counts the rows of this call.
template <class W> struct Row {
    Place at;
    u8* moments;
    Gradient gradient;

    DEVICE Row(const Task& task, u32 blocks, u32 index, float global) {
        u32 row = task.first + index;
        const u8* panel = panel_of(task.weight, W::FORMAT, task.columns, row);
        at = {(u8*)codes_of(panel, W::FORMAT, task.columns, row), (u8*)scales_of(panel, W::FORMAT, task.columns, row),
              task.rest + (u64)row * blocks * W::REST_BYTES, global, task.scales_by};
        moments = task.moments + (u64)row * blocks * moment_bytes(task.moment);
        gradient = {task.gradient + (u64)index * task.columns * (task.narrow ? 2 : 4), task.narrow};
    }
};

// What all threads of a thread block have.
template <class W> struct Common {
    const Task& task;
    const SecondMoments& second;
    const Step& step;
    const typename W::Tables& tables;
    float global;
};

// A thread's own counts.
struct Counts {
    Tally tally;
    u64 moves; // squares of these
};

// Moves a block, whatever its moments are and how they are kept. W is a block of a kind of weight: its format, bytes that
// its remainders have, and how it moves.
template <class W>
DEVICE void move_any(const Common<W>& of, const Row<W>& row, u32 number, u32 block, const Factored& factored,
                     const float (&g)[BLOCK], Counts& counts) {
    const Task& task = of.task;
    u32 blocks = of.second.width / BLOCK;
    u64 before = (u64)number * blocks;
    Pairs pairs = draw_pairs(task.draws, before, block);
    float inverses[BLOCK];
    OfRow of_row = factored.row;
    if (of.second.full) {
        full_inverses(of.second, (before + block) * BLOCK, of.step, g, inverses);
        of_row = {1.0f, of.step.limit};
    } else {
        factored.inverses(block, inverses);
    }
    u32 each = task.moment == MOMENT_FOUR ? 8 : task.moment == MOMENT_EIGHT ? 16 : 64;
    MomentPlace moments = {row.moments + block * each, row.moments + blocks * each + block};
    Push push = move_moments(moments, task.moment, of.step, g, inverses, of_row, Other{pairs});
    counts.moves += squares_of(of.step, push);
    W weight;
    weight.load_from(row.at, block);
    weight.move(row.at, block, of.tables, Move{push, Own{{pairs}, task.base}}, counts.tally);
}

// The average of a tile's row follows the squares of its blocks, one of which each thread of the warp has.
DEVICE void follow_row(const SecondMoments& second, float* place, float average, float sum, u32 tile, u32 columns) {
    for (int apart = 16; apart > 0; apart /= 2) sum += __shfl_xor_sync(EVERYBODY, sum, apart);
    if (threadIdx.x % 32 > 0 || tile >= tiles_of(columns)) return;
    u32 count = min(TILE, columns - tile * TILE);
    // The same, and faster.
    float mean = count == TILE ? sum * (1.0f / (float)TILE) : sum / (float)count;
    *place = follow(second.average, average, mean);
}

// Columns follow at once, whose sums and profile are there: nobody else reads their averages.
template <class W>
DEVICE void learn(const Task& task, const SecondMoments& second, const Step& step, const float* profile) {
    __shared__ typename W::Tables tables;
    tables.fill();
    __syncthreads();
    Counts counts = {};
    u32 blocks = second.width / BLOCK, tiles = tiles_of(task.columns);
    if (!second.full)
        for (u32 column = blockIdx.x * blockDim.x + threadIdx.x; column < task.columns; column += gridDim.x * blockDim.x)
            follow_column(second.columns, second.average, task.columns, column);
    Common<W> common = {task, second, step, tables, tensor_scale(task.weight, W::FORMAT)};
    for (u32 index = blockIdx.x; index < task.rows; index += gridDim.x) {
        Row<W> row(task, blocks, index, common.global);
        u32 number = task.first + index;
        for (u32 start = 0; start < blocks; start += blockDim.x) {
            u32 block = start + threadIdx.x, tile = block / 32;
            float *place = second.second + (u64)number * tiles + tile, average = 0.0f, sum = 0.0f;
            if (!second.full && tile < tiles) average = *place;
            Factored factored = {of_row(step, root(average)), profile + tile * TILE};
            if (block < blocks) {
                float g[BLOCK];
                row.gradient.template load_block<false>(task.columns, block, g);
                sum = squares(g);
                move_any<W>(common, row, number, block, factored, g, counts);
            }
            if (!second.full) follow_row(second, place, average, sum, tile, task.columns);
        }
    }
    count(task.counts, counts.tally, counts.moves);
}

// A step's numbers as parameters, in the order of update.rs.
#define NUMBERS                                                                                                  \
    float keep, float size, float per_root, float per_old_root, float eps, float decay, float limit,              \
        float per_square, float second_keep, float second_fresh, u32 base
#define STEP {keep, size, per_root, per_old_root, eps, decay, limit, per_square}
#define SECOND_AVERAGE (Average{second_keep, second_fresh})

// One kernel for each kind of weight.
#define LEARN(name, BOUNDS, MOMENT, FULL, NARROW, BY)                                                            \
    extern "C" __global__ void __launch_bounds__ BOUNDS                                                          \
        name(u8* weight, u8* rest, u8* moments, float* second, const float* profile, float* sums,                \
             float* step_sums, float* column_averages, u32 panel, u32 panels, u32 ends, u32 looked_at,           \
             const u8* gradient, u32 narrow, u32 first, u32 rows, u32 columns, u32 moment, u32 full,             \
             int scales_by, u32 key0, u32 key1, u64* counts, NUMBERS) {                                          \
        Task task = {weight, rest,    moments, gradient,  (NARROW) != 0,  first,                                 \
                     rows,   columns, MOMENT,  scales_by, {{key0, key1}}, base,  counts};                        \
        ColumnSums of_columns = {sums, step_sums, column_averages, panel, panels, first == 0, ends, looked_at};  \
        SecondMoments seconds = {second, FULL, (columns + BLOCK - 1) / BLOCK * BLOCK, SECOND_AVERAGE,            \
                                 of_columns};                                                                    \
        BY(task, seconds, Step STEP, profile);                                                                   \
    }

#define ANY(name, ...) LEARN(name, (THREADS), moment, full, narrow, (learn<__VA_ARGS__>))
