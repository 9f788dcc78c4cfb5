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
constexpr int MOST_THREADS = 160;       // that move blocks
constexpr int APART = MOST_THREADS + 4; // moves of a lane lie together, in other banks than those of the next

// ---- second moments ----

// Roots of the rows, corrected, and of the columns' profile; or, full, one number for each element.
struct SecondMoments {
    float* second;
    const float *rows, *profile;
    u32 full, width;
    Average average;
    float per_root; // corrects a root
    float own;      // root, corrected, of the share that an element's own gradient has
    ColumnSums columns;
};

// Gives whether none is beyond 2^60 where the moments are tame; `number` counts the tensor's blocks, `index` the rows of
// this call.
DEVICE bool roots_of(const SecondMoments& of, u64 number, u32 index, u32 block, const Average& first,
                     const float (&g)[BLOCK], float (&roots)[BLOCK]) {
    if (of.full) {
        float* v = of.second + number * BLOCK;
        UNROLL for (int i = 0; i < BLOCK; i++) {
            v[i] = average_of(of.average, v[i], g[i] * g[i]);
            roots[i] = root(v[i]) * of.per_root;
        }
        return false;
    }
    float of_row = of.rows[index];
    const float* profile = of.profile + profile_place(block * BLOCK);
    UNROLL for (int i = 0; i < BLOCK; i += 4) {
        float4 four = *(const float4*)(profile + profile_place(i));
        roots[i] = four.x, roots[i + 1] = four.y, roots[i + 2] = four.z, roots[i + 3] = four.w;
    }
    // What is no number does not count.
    UNROLL for (int i = 0; i < BLOCK; i++) roots[i] = fmaxf(of_row * roots[i], of.own * fabsf(g[i]));
    // No column's share is beyond the number of columns, and a gradient hardly beyond the moment it went into.
    return (of_row <= LARGE) & (of.own <= 512.0f) & (first.fresh >= 1.0f / 512.0f);
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

    // Moves them by a gradient and keeps them rounded, and gives what they push: of four bits, where all is tame, else false
    // and nothing is done. One run of instructions without a branch, since two kinds of units work at it.
    DEVICE bool move_tame(const Step& step, const float (&g)[BLOCK], const float (&roots)[BLOCK], const Other& luck,
                          Push& push) {
        float m[BLOCK], amax;
        bool tame = follow_four_tame(four, scale, g, step.average, m, amax);
        u8 chosen;
        float inverse = choose_scale(amax, chosen);
        // The largest shows whether one must be held.
        if (!(tame & (amax * inverse <= 6.0f))) return false;
        codes_of<false>(m, inverse, luck, four);
        scale = chosen;
        push = push_of<true>(step, m, roots);
        keep_four();
        return true;
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

    DEVICE void add(float ratio) { lane = __fmaf_rn(ratio, ratio, lane); }

    // The next blocks of a row, maybe its last.
    DEVICE void add(const float* ratios, u32 blocks, bool last, const Step& step) {
        const float4* mine = (const float4*)(ratios + threadIdx.x % BLOCK * APART);
        if (threadIdx.x % 32 < BLOCK) {
#pragma unroll 8
            for (u32 i = 0; i < blocks / 4; i++) add(mine[i].x), add(mine[i].y), add(mine[i].z), add(mine[i].w);
            for (u32 block = blocks & ~3u; block < blocks; block++) add(((const float*)mine)[block]);
        }
        if (!last) return;
        all += squares_of(step, fold(lane));
        lane = 0.0f;
    }
};

// What moves a block: in registers, and, for what seldom asks, its ratios in shared memory.
struct Move {
    const Push& push;
    const Own& luck;
    const float* ratios;
};

// A block's `update_far`, which is long and seldom needed.
template <class Block>
__device__ __noinline__ void update_far(Block& block, const typename Block::Tables& tables, float global,
                                        const float* ratios, float size, float decay, Pairs words, Moved why,
                                        Tally& tally) {
    Push push;
    push.size = size, push.decay = decay;
    UNROLL for (int i = 0; i < BLOCK; i++) push.along[i] = ratios[i * APART];
    block.update_far(tables, global, push, Own{words}, why, tally);
}

template <class Block>
DEVICE void update(Block& block, const typename Block::Tables& tables, float global, const Move& by, Tally& tally) {
    Moved moved = block.update_near(tables, global, by.push, by.luck, tally);
    if (moved == DONE) return;
    // Copies, so that what is in registers stays there.
    Block copy = block;
    Tally here = {};
    update_far(copy, tables, global, by.ratios, by.push.size, by.push.decay, by.luck, moved, here);
    block = copy;
    tally.changed += here.changed, tally.rescaled += here.rescaled;
    tally.saturated += here.saturated, tally.refused += here.refused;
}

// Ratios of a thread block's moves; passes take turns with them.
typedef float Ratios[2][BLOCK * APART];

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

// Moves a thread's blocks of every row, one in each pass. W is a block of a kind of weight: its format, bytes that its
// remainders have, and how it moves.
template <class W, bool WHOLE>
DEVICE void move_rows(const Task& task, const SecondMoments& second, const Step& step, Ratios& ratios,
                      const typename W::Tables& tables, Tally& tally) {
    u32 blocks = second.width / BLOCK, movers = blockDim.x - 32, turn = 0;
    float global = tensor_scale(task.weight, W::FORMAT);
    Row<W> row(task, blocks, blockIdx.x, global);
    for (u32 index = blockIdx.x, start = 0; index < task.rows; turn ^= 1) {
        u32 block = start + threadIdx.x, next = index;
        start += movers;
        Row<W> next_row = row;
        if (start >= blocks) start = 0, next += gridDim.x, next_row = Row<W>(task, blocks, next, global);
        if (block < blocks) {
            // All loads come first: none waits for what is computed.
            float g[BLOCK], roots[BLOCK];
            row.gradient.template load_block<WHOLE>(task.columns, block, g);
            Moments<WHOLE ? 4 : 1> moments;
            moments.load_from(task.moment, row.moments, blocks, block);
            W weight;
            weight.load_from(row.at, block);
            u64 number = (u64)(task.first + index) * blocks + block;
            Pairs pairs = draw_pairs(task.draws, number * BLOCK);
            bool tame = roots_of(second, number, index, block, step.average, g, roots) && tame_eps(step);
            Push push;
            if (!(task.moment == MOMENT_FOUR && tame && moments.move_tame(step, g, roots, Other{pairs}, push))) {
                // Read again, so that nobody keeps it until here.
                float again[BLOCK];
                row.gradient.load_again(task.columns, block, again);
                push = moments.move(task.moment, step, again, roots, Other{pairs});
            }
            float* places = ratios[turn] + threadIdx.x;
            UNROLL for (int i = 0; i < BLOCK; i++) places[i * APART] = push.along[i];
            weight.move(row.at, block, tables, Move{push, Own{pairs}, places}, tally);
        }
        index = next, row = next_row;
        __syncthreads();
    }
}

// Adds up the squares of what others have just moved, a row's blocks in their order.
DEVICE u64 add_squares(const Task& task, const SecondMoments& second, const Step& step, const Ratios& ratios) {
    u32 blocks = second.width / BLOCK, movers = blockDim.x - 32, turn = 0, before = 0;
    bool ended = false;
    Squares squares = {};
    // It has nothing to add yet: the columns' averages, which nobody reads now, follow. The last thread blocks, which may
    // have a row less to move, come first.
    u32 from_last = gridDim.x - 1 - blockIdx.x;
    if (!second.full)
        for (u32 column = from_last * 32 + threadIdx.x % 32; column < task.columns; column += gridDim.x * 32)
            follow_column(second.columns, second.average, task.columns, column);
    for (u32 index = blockIdx.x; index < task.rows; index += gridDim.x)
        for (u32 start = 0; start < blocks; start += movers, turn ^= 1) {
            squares.add(ratios[turn ^ 1], before, ended, step);
            __syncthreads();
            before = min(blocks - start, movers), ended = start + movers >= blocks;
        }
    squares.add(ratios[turn ^ 1], before, ended, step);
    return squares.all;
}

template <class W, bool WHOLE> DEVICE void learn(const Task& task, const SecondMoments& second, const Step& step) {
    alignas(16) __shared__ Ratios ratios;
    __shared__ typename W::Tables tables;
    tables.fill();
    Tally tally = {};
    u64 squares = 0;
    // Asked of one thread, so that the compiler sees that a warp goes one way.
    if (__shfl_sync(0xffffffffu, threadIdx.x, 0) < blockDim.x - 32)
        move_rows<W, WHOLE>(task, second, step, ratios, tables, tally);
    else squares = add_squares(task, second, step, ratios);
    count(task.counts, tally, threadIdx.x == blockDim.x - 32 ? squares : 0);
}

// A step's numbers as parameters, in the order of update.rs.
#define NUMBERS                                                                                                  \
    float keep, float fresh, float size, float per_root, float eps, float decay, float limit, float correction,  \
        float second_keep, float second_fresh, float own
#define STEP {{keep, fresh}, size, per_root, eps, decay, limit, correction}
#define SECOND_AVERAGE (Average{second_keep, second_fresh})

// Kinds of weights that need no table.
struct NoTables {
    DEVICE void fill() {}
};

// One kernel for each kind of weight.
#define LEARN(name, MOMENT, FULL, NARROW, WHOLE, ...)                                                            \
    extern "C" __global__ void __launch_bounds__(MOST_THREADS + 32, 4)                                           \
        name(u8* weight, u8* rest, u8* moments, float* second, const float* row_roots, const float* profile,     \
             const float* sums, float* step_sums, float* column_averages, u32 groups, u32 all_rows,              \
             const u8* gradient, u32 narrow, u32 first, u32 rows, u32 columns, u32 moment, u32 full,             \
             int scales_by, u32 key0, u32 key1, u64* counts, NUMBERS) {                                          \
        Task task = {weight, rest,    moments, gradient,  (NARROW) != 0,  first,                                 \
                     rows,   columns, MOMENT,  scales_by, {{key0, key1}}, counts};                               \
        ColumnSums of_columns = {sums, step_sums, column_averages, groups, first == 0, all_rows};                \
        SecondMoments seconds = {second, row_roots, profile, FULL, (columns + BLOCK - 1) / BLOCK * BLOCK,        \
                                 SECOND_AVERAGE, per_root, own, of_columns};                                     \
        learn<__VA_ARGS__, WHOLE>(task, seconds, Step STEP);                                                     \
    }

// Moments of four bits, factored second moments, columns that are a multiple of 64; the same with a narrow gradient; and
// all others.
#define USUAL(name, ...) LEARN(name, MOMENT_FOUR, 0, 0, true, __VA_ARGS__)
#define USUAL_NARROW(name, ...) LEARN(name, MOMENT_FOUR, 0, 1, true, __VA_ARGS__)
#define ANY(name, ...) LEARN(name, moment, full, narrow, false, __VA_ARGS__)
