// A row learns: second moments, first moments, then the weight's own kind, block by block. A thread moves a block
// of 16, a warp a tile, a thread block one row after the other; no warp waits for another.
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
constexpr int THREADS = 160, AT_ONCE = 4; // of a thread block at most, and how many of these find room

// ---- second moments ----

// Averages of the rows, and roots of the columns' profile; or, full, one number for each element.
struct SecondMoments {
    float* second;
    const float* profile;
    u32 full, width;
    Average average;
    float per_root, per_old_root; // correct a root, and one of the step before
    float own;                    // root, corrected, of the share that an element's own gradient has
    ColumnSums columns;
};

// Whether no root is beyond 2^60 where no moment is beyond LARGE: no column's share is beyond the number of columns, and a
// gradient hardly beyond the moment it went into.
DEVICE bool tame_roots(const SecondMoments& of, float of_row, const Step& step) {
    return !of.full & (of_row <= LARGE) & (of.own <= 512.0f) & (step.average.fresh >= 1.0f / 512.0f) & tame_eps(step);
}

// Of factored moments: `of_row` is the root of the row's average, corrected.
DEVICE void roots_of(const SecondMoments& of, float of_row, u32 block, float eps, const float (&g)[BLOCK],
                     float (&roots)[BLOCK]) {
    const float* profile = of.profile + profile_place(block * BLOCK);
    UNROLL for (int i = 0; i < BLOCK; i += 4) {
        float4 four = *(const float4*)(profile + profile_place(i));
        roots[i] = four.x, roots[i + 1] = four.y, roots[i + 2] = four.z, roots[i + 3] = four.w;
    }
    // What is no number does not count.
    UNROLL for (int i = 0; i < BLOCK; i++) roots[i] = fmaxf(__fmaf_rn(of_row, roots[i], eps), of.own * fabsf(g[i]));
}

// Of full ones, which follow.
DEVICE void full_roots(const SecondMoments& of, u64 first, float eps, const float (&g)[BLOCK], float (&roots)[BLOCK]) {
    float* v = of.second + first;
    UNROLL for (int i = 0; i < BLOCK; i++) {
        v[i] = average_of(of.average, v[i], g[i] * g[i]);
        roots[i] = root(v[i]) * of.per_root + eps;
    }
}

// ---- first moments ----

// A block of a row's first moments; SURE as in `load`.
template <int SURE> struct Moments {
    u8 *place, *scale_place;
    u32 four[2], eight[4];
    u8 scale;

    DEVICE void load_from(u32 kind, u8* row, u32 blocks, u32 index) {
        place = row + index * (kind == MOMENT_FOUR ? 8 : kind == MOMENT_EIGHT ? 16 : 64);
        scale_place = row + blocks * (kind == MOMENT_FOUR ? 8 : 16) + index;
        if (kind == MOMENT_FLOAT) return;
        if (kind == MOMENT_FOUR) load<SURE>(place, four);
        else load<SURE>(place, eight);
        scale = *scale_place;
    }

    DEVICE void keep_four() const {
        store<SURE>(place, four);
        *scale_place = scale;
    }

    // The same, of any.
    DEVICE Push move(u32 kind, const Step& step, const float (&g)[BLOCK], const float (&roots)[BLOCK], const Other& luck) {
        float m[BLOCK];
        if (kind == MOMENT_FOUR) {
            follow_four(four, scale, g, step.average, m);
            encode_four(m, luck, four, scale);
            keep_four();
        } else if (kind == MOMENT_EIGHT) {
            decode_eight(eight, scale, m);
            UNROLL for (int i = 0; i < BLOCK; i++) m[i] = average_of(step.average, m[i], g[i]);
            encode_eight(m, luck, eight, scale);
            store<SURE>(place, eight);
            *scale_place = scale;
        } else {
            float* floats = (float*)place;
            UNROLL for (int i = 0; i < BLOCK; i++)
                floats[i] = m[i] = one_nan(average_of(step.average, floats[i], g[i]));
        }
        return push_of<false>(step, m, roots);
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
    const u8* gradient;
    bool narrow;
    u32 first, rows, columns, moment;
    int scales_by;
    Draws draws;
    u32 half; // see `Own`
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
    for (int width = 16; width > 0; width /= 2) squares += __shfl_xor_sync(0xffffffffu, squares, width);
    if (threadIdx.x % 32 == 0 && squares > 0) atomicAdd(counts + SQUARES, squares);
}

// What moves a block.
struct Move {
    const Push& push;
    const Own& luck;
};

// A block's `update_far`, which is long and seldom needed.
template <class Block>
__device__ __noinline__ void update_far(Block& block, float global, const Push& push, Own luck, Moved why, Tally& tally) {
    block.update_far(global, push, luck, why, tally);
}

template <class Block>
DEVICE void update(Block& block, const typename Block::Tables& tables, float global, const Move& by, Tally& tally) {
    Moved moved = block.update_near(tables, global, by.push, by.luck, tally);
    if (moved == DONE) return;
    // Copies, so that what is in registers stays there.
    Block copy = block;
    Push push = by.push;
    Tally here = {};
    update_far(copy, global, push, by.luck, moved, here);
    block = copy;
    tally.changed += here.changed, tally.rescaled += here.rescaled;
    tally.saturated += here.saturated, tally.refused += here.refused;
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

// W is a block of a kind of weight: its format, bytes that its remainders have, and how it moves.
template <class W> DEVICE void move_weight(const Common<W>& of, const Row<W>& row, u32 block, W& weight, const Push& push,
                                           const Pairs& pairs, Counts& counts) {
    counts.moves += squares_of(of.step, squares(push.along));
    weight.move(row.at, block, of.tables, Move{push, Own{{pairs}, of.task.half}}, counts.tally);
}

// Moves a block, whatever its moments are and how they are kept.
template <class W, bool WHOLE>
DEVICE void move_any(const Common<W>& of, const Row<W>& row, u32 number, u32 block, float of_row, Counts& counts) {
    const Task& task = of.task;
    u32 blocks = of.second.width / BLOCK;
    u64 first = ((u64)number * blocks + block) * BLOCK;
    float g[BLOCK], roots[BLOCK];
    row.gradient.template load_block<WHOLE>(task.columns, block, g);
    Moments<WHOLE ? 4 : 1> moments;
    moments.load_from(task.moment, row.moments, blocks, block);
    W weight;
    weight.load_from(row.at, block);
    Pairs pairs = draw_pairs(task.draws, first);
    if (of.second.full) full_roots(of.second, first, of.step.eps, g, roots);
    else roots_of(of.second, of_row, block, of.step.eps, g, roots);
    Push push = moments.move(task.moment, of.step, g, roots, Other{pairs});
    move_weight(of, row, block, weight, push, pairs, counts);
}

// The same where it is seldom needed: all of it again, from copies, so that what is in registers stays there.
template <class W>
__device__ __noinline__ Counts move_wild(Task task, SecondMoments second, Step step, const typename W::Tables* tables,
                                         u32 index, u32 block, float of_row) {
    Counts counts = {};
    Common<W> common = {task, second, step, *tables, tensor_scale(task.weight, W::FORMAT)};
    Row<W> row(task, second.width / BLOCK, index, common.global);
    move_any<W, true>(common, row, task.first + index, block, of_row, counts);
    return counts;
}

// Moves a block of four-bit moments with factored second moments.
template <class W>
DEVICE void move_usual(const Common<W>& of, const Row<W>& row, u32 number, u32 block, float of_row, Counts& counts,
                       float& of_gradient) {
    const Task& task = of.task;
    u32 blocks = of.second.width / BLOCK;
    // All loads come first: none waits for what is computed.
    float g[BLOCK];
    row.gradient.template load_block<true>(task.columns, block, g);
    Moments<4> moments;
    moments.load_from(MOMENT_FOUR, row.moments, blocks, block);
    W weight;
    weight.load_from(row.at, block);
    Pairs pairs = draw_pairs(task.draws, ((u64)number * blocks + block) * BLOCK);
    of_gradient = squares(g);
    float roots[BLOCK], m[BLOCK], amax;
    roots_of(of.second, of_row, block, of.step.eps, g, roots);
    follow_four_fast(moments.four, moments.scale, g, of.step.average, m, amax);
    u8 chosen;
    float inverse = choose_scale(amax, chosen);
    // An infinite sum shows what is no number, the largest whether one must be held.
    bool tame = tame_roots(of.second, of_row, of.step) & (of_gradient < __uint_as_float(0x7F800000));
    if (tame & (amax <= LARGE) & (amax * inverse <= 6.0f)) {
        codes_of<false>(m, inverse, Other{pairs}, moments.four);
        moments.scale = chosen;
        moments.keep_four();
        Push push = push_of<true>(of.step, m, roots);
        move_weight(of, row, block, weight, push, pairs, counts);
    } else {
        Counts here = move_wild<W>(task, of.second, of.step, &of.tables, number - task.first, block, of_row);
        counts.tally.changed += here.tally.changed, counts.tally.rescaled += here.tally.rescaled;
        counts.tally.saturated += here.tally.saturated, counts.tally.refused += here.tally.refused;
        counts.moves += here.moves;
    }
}

// USUAL: moments of four bits and factored second moments, in whole rows.
template <class W, bool USUAL> DEVICE void learn(const Task& task, const SecondMoments& second, const Step& step) {
    __shared__ typename W::Tables tables;
    tables.fill();
    Counts counts = {};
    u32 blocks = second.width / BLOCK, tiles = tiles_of(task.columns), lane = threadIdx.x % 32;
    // The columns' averages, which nobody reads now, follow. The last thread blocks, which may have a row less to move, come
    // first.
    u32 from_last = gridDim.x - 1 - blockIdx.x, threads = gridDim.x * blockDim.x;
    if (!second.full)
        for (u32 column = from_last * blockDim.x + threadIdx.x; column < task.columns; column += threads)
            follow_column(second.columns, second.average, task.columns, column);
    Common<W> common = {task, second, step, tables, tensor_scale(task.weight, W::FORMAT)};
    for (u32 index = blockIdx.x; index < task.rows; index += gridDim.x) {
        Row<W> row(task, blocks, index, common.global);
        u32 number = task.first + index;
        for (u32 start = 0; start < blocks; start += blockDim.x) {
            u32 block = start + threadIdx.x, tile = block / 32;
            float *place = second.second + (u64)number * tiles + tile, average = 0.0f, sum = 0.0f;
            if (!second.full && tile < tiles) average = *place;
            float of_row = root(average) * second.per_old_root;
            if (block < blocks) {
                if constexpr (USUAL) move_usual(common, row, number, block, of_row, counts, sum);
                else {
                    float g[BLOCK];
                    row.gradient.template load_block<false>(task.columns, block, g);
                    sum = squares(g);
                    move_any<W, false>(common, row, number, block, of_row, counts);
                }
            }
            if (second.full) continue;
            for (int apart = 16; apart > 0; apart /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, apart);
            float mean = sum / (float)min(TILE, task.columns - tile * TILE);
            if (lane == 0 && tile < tiles) *place = follow(second.average, average, mean);
        }
    }
    count(task.counts, counts.tally, counts.moves);
}

// A step's numbers as parameters, in the order of update.rs.
#define NUMBERS                                                                                                  \
    float keep, float fresh, float size, float per_root, float per_old_root, float eps, float decay, float limit, \
        float per_square, float second_keep, float second_fresh, float own, u32 half
#define STEP {{keep, fresh}, size, per_root, per_old_root, eps, decay, limit, per_square}
#define SECOND_AVERAGE (Average{second_keep, second_fresh})

// Kinds of weights that need no table.
struct NoTables {
    DEVICE void fill() {}
};

// One kernel for each kind of weight.
#define LEARN(name, MOMENT, FULL, NARROW, WHOLE, ...)                                                            \
    extern "C" __global__ void __launch_bounds__(THREADS, AT_ONCE)                                               \
        name(u8* weight, u8* rest, u8* moments, float* second, const float* profile, const float* sums,          \
             float* step_sums, float* column_averages, u32 summed, u32 ends, u32 looked_at, const u8* gradient,  \
             u32 narrow, u32 first, u32 rows, u32 columns, u32 moment, u32 full, int scales_by, u32 key0,        \
             u32 key1, u64* counts, NUMBERS) {                                                                   \
        Task task = {weight, rest,    moments, gradient,  (NARROW) != 0,  first,                                 \
                     rows,   columns, MOMENT,  scales_by, {{key0, key1}}, half,  counts};                        \
        ColumnSums of_columns = {sums, step_sums, column_averages, summed, first == 0, ends, looked_at};         \
        SecondMoments seconds = {second, profile, FULL, (columns + BLOCK - 1) / BLOCK * BLOCK, SECOND_AVERAGE,   \
                                 per_root, per_old_root, own, of_columns};                                       \
        learn<__VA_ARGS__, WHOLE>(task, seconds, Step STEP);                                                     \
    }

// Moments of four bits, factored second moments, columns that are a multiple of 64; the same with a narrow gradient; and
// all others.
#define USUAL(name, ...) LEARN(name, MOMENT_FOUR, 0, 0, true, __VA_ARGS__)
#define USUAL_NARROW(name, ...) LEARN(name, MOMENT_FOUR, 0, 1, true, __VA_ARGS__)
#define ANY(name, ...) LEARN(name, moment, full, narrow, false, __VA_ARGS__)
