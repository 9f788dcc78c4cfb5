// What is usual learns: moments of four bits, factored second moments, rows whose columns are a multiple of 64. A thread
// moves a block, a warp a tile, and asks for the next one before; a thread block stays with the same columns, whose profile
// it made. A block that does not move as most do is put aside and moved later, many at once.
#pragma once
#include "learn.cuh"

constexpr int USUAL_THREADS = 256, USUAL_AT_ONCE = 2; // as in update.rs: of a thread block, and how many of these find room
static_assert(USUAL_THREADS == PROFILING, "a thread block makes a profile");

// ---- blocks put aside ----

struct Aside {
    u32 index, block; // a row of this call, and one of its blocks
    float average;    // of the row's tile, before this step
};

template <class W>
__device__ __noinline__ void move_aside(Task task, SecondMoments second, Step step, const typename W::Tables* tables,
                                        const float* profile, Aside of) {
    task.moment = MOMENT_FOUR, second.full = 0;
    Counts counts = {};
    Common<W> common = {task, second, step, *tables, tensor_scale(task.weight, W::FORMAT)};
    Row<W> row(task, second.width / BLOCK, of.index, common.global);
    float g[BLOCK];
    row.gradient.template load_block<true>(task.columns, of.block, g);
    Factored factored = {of_row(step, root(of.average)), profile};
    move_any<W>(common, row, task.first + of.index, of.block, factored, g, counts);
    const Tally& tally = counts.tally;
    u64 parts[5] = {tally.changed, tally.rescaled, tally.saturated, tally.refused, counts.moves};
    for (int part = 0; part < 5; part++)
        if (parts[part] > 0) atomicAdd(task.counts + part, parts[part]);
}

// Those of a warp: all blocks of a tile may come when nearly so many wait as there are threads.
struct Waiting {
    Aside list[32 + 32];
    u32 count;

    // Puts aside what threads have that say so. Whether there is room for those of another tile.
    DEVICE bool put(bool mine, const Aside& aside) {
        u32 apart = __ballot_sync(EVERYBODY, mine), lane = threadIdx.x % 32;
        if (apart == 0) return true;
        u32 before = count, now = before + __popc(apart);
        if (mine) list[before + __popc(apart & ((1u << lane) - 1))] = aside;
        __syncwarp();
        count = now;
        __syncwarp();
        return now <= 32;
    }

    // As many move as there are threads, the last first.
    template <class W> DEVICE void move(const Common<W>& of, const float* profile) {
        u32 lane = threadIdx.x % 32, these = min(count, 32u), rest = count - these;
        if (lane < these) move_aside<W>(of.task, of.second, of.step, &of.tables, profile, list[rest + lane]);
        __syncwarp();
        count = rest;
        __syncwarp();
    }
};

// ---- a tile ----

// Where a thread's block of a tile is, by numbers of blocks, which 32 bits hold: the same places as those of `Row`, found by
// fewer instructions. Found again where it is stored, so that no registers hold it meanwhile.
template <class W> struct Spot {
    u32 row, blocks, block; // `block` is the first one, where there is none
    u32 before;             // blocks of the rows above

    DEVICE Spot(const Common<W>& of, u32 index, u32 tile) {
        row = of.task.first + index, blocks = of.second.width / BLOCK, block = tile * 32 + threadIdx.x % 32;
        if (block >= blocks) block = 0;
        before = row * blocks;
    }

    DEVICE Place weight(const Common<W>& of) const {
        u8* panels = of.task.weight + 64;
        u32 panel = row / 16, number = before + block;
        return {panels + (u64)(number + panel * (16 / W::CODES * blocks)) * W::CODES,
                panels + (u64)(panel + 1) * (16 * W::CODES * blocks) + number,
                of.task.rest + (u64)number * W::REST_BYTES, of.global, 0};
    }

    DEVICE MomentPlace moments(const Common<W>& of) const {
        u8* at = of.task.moments + (u64)before * 9;
        return {at + block * 8, at + (blocks * 8 + block)};
    }

    DEVICE const uint4* gradient(const Common<W>& of, u32 index, u32 fours) const {
        return (const uint4*)of.task.gradient + (u64)(index * blocks + block) * fours;
    }

    DEVICE float* average(const Common<W>& of, u32 tile) const {
        return of.second.second + (row * tiles_of(of.task.columns) + tile);
    }
};

// What a thread has to move, as it was loaded.
template <class W, bool NARROW> struct Part {
    static constexpr int FOURS = NARROW ? 2 : 4;
    uint4 gradient[FOURS];
    float average;
    u32 moments[2], scale;
    W weight;

    DEVICE Part(const Common<W>& of, u32 index, u32 tile) {
        Spot<W> at(of, index, tile);
        MomentPlace moments_at = at.moments(of);
        const uint4* from = at.gradient(of, index, FOURS);
        average = *at.average(of, tile);
        UNROLL for (int i = 0; i < FOURS; i++) gradient[i] = from[i];
        load<4>(moments_at.codes, moments);
        scale = *moments_at.scale;
        weight.load_from(at.weight(of), 0);
    }

    DEVICE void gradient_to(float (&g)[BLOCK]) const {
        UNROLL for (int i = 0; i < FOURS; i++) {
            u32 words[4] = {gradient[i].x, gradient[i].y, gradient[i].z, gradient[i].w};
            UNROLL for (int j = 0; j < 4; j++) {
                if (NARROW) g[8 * i + 2 * j] = lower(words[j]), g[8 * i + 2 * j + 1] = upper(words[j]);
                else g[4 * i + j] = __uint_as_float(words[j]);
            }
        }
    }
};

// Tables that a thread block has made for itself.
struct alignas(16) Made { // fours of the profile are read at once
    float profile[TILE];
    float times[256]; // `times_of` every scale
};

// Moves a row's tile, and loads that of the one that is `ahead` before it ends. Whether there is still room for blocks put
// aside.
template <class W, bool NARROW>
DEVICE bool move_tile(const Common<W>& of, const Made& made, Part<W, NARROW>& part, u32 tile, u32 index, u32 ahead,
                      Waiting& waiting, Counts& counts) {
    const Step& step = of.step;
    const SecondMoments& second = of.second;
    Spot<W> spot(of, index, tile);
    bool there = tile * 32 + threadIdx.x % 32 < spot.blocks;
    Pairs pairs = draw_pairs(of.task.draws, spot.before, spot.block);
    float g[BLOCK], inverses[BLOCK], m[BLOCK], amax, average = part.average;
    Factored factored = {of_row(step, root_in_range(average)), made.profile};
    part.gradient_to(g);
    float of_gradient = squares(g);
    factored.inverses(threadIdx.x, inverses);
    follow_four_fast(part.moments, part.scale, g, step.keep, m, amax);
    W weight = part.weight;
    part = Part<W, NARROW>(of, ahead, tile);
    u32 chosen;
    float inverse = choose_scale(amax, chosen);
    // An infinite sum shows what is no number, the largest whether one must be held.
    bool usual = (of_gradient < __uint_as_float(0x7F800000)) & (amax <= LARGE) & (amax * inverse <= 6.0f);
    Push push = push_of<true>(step, m, inverses, factored.row);
    u32 moments[2];
    codes_of<false>(m, inverse, Other{pairs}, moments);
    float by = made.times[weight.block.scale] * push.times;
    Tally here = {};
    usual &= weight.block.update_near(of.tables, by, push, Own{{pairs}, of.task.base}, here) == DONE;
    again(index);
    Spot<W> to(of, index, tile);
    if (usual & there) {
        weight.keep(to.weight(of), 0);
        MomentPlace moments_to = to.moments(of);
        store<4>(moments_to.codes, moments);
        *moments_to.scale = (u8)chosen;
        counts.tally.changed += here.changed;
        counts.moves += squares_of(step, push);
    }
    follow_row(second, to.average(of, tile), average, there ? of_gradient : 0.0f, tile, of.task.columns);
    return waiting.put(!usual & there, {index, to.block, average});
}

// ---- all of it ----

// There are so many thread blocks that all tiles have equally many.
template <class W, bool NARROW>
DEVICE void learn_usual(const Task& task, const SecondMoments& second, const Step& step, const float*) {
    constexpr u32 WARPS = USUAL_THREADS / 32;
    __shared__ typename W::Tables tables;
    __shared__ Made made;
    __shared__ Waiting of_warps[WARPS];
    u32 warp = threadIdx.x / 32, tiles = tiles_of(task.columns), tile = blockIdx.x % tiles;
    u32 index = blockIdx.x / tiles * WARPS + warp, rows_on = gridDim.x / tiles * WARPS;
    float global = tensor_scale(task.weight, W::FORMAT);
    Common<W> common = {task, second, step, tables, global};
    // A warp that has nothing to do has a tile of the last row with another, and leaves it.
    Part<W, NARROW> part(common, min(index, task.rows - 1), tile);
    Averages averages(second.columns.averages, tile, task.columns);
    tables.fill();
    for (u32 scale = threadIdx.x; scale < 256; scale += blockDim.x)
        made.times[scale] = decltype(W::block)::times_of(scale, global, -step.size);
    Waiting& waiting = of_warps[warp];
    waiting.count = 0;
    for (u32 number = blockIdx.x * WARPS + warp; number < sums_of(second.columns, task.columns); number += gridDim.x * WARPS)
        sum_columns<NARROW, true>(second.columns, task.gradient, task.rows, task.columns, number);
    averages.profile(made.profile, tile, task.columns);
    Meeting* meeting = (Meeting*)(task.counts + MEETING);
    arrive(&meeting->arrived);
    Counts counts = {};
    do {
        for (bool room = true; room && index < task.rows;) {
            u32 ahead = index + rows_on;
            // Behind the end, what is there once more.
            room = move_tile(common, made, part, tile, index, ahead < task.rows ? ahead : index, waiting, counts);
            index = ahead;
        }
        waiting.move(common, made.profile);
    } while (index < task.rows || waiting.count > 0);
    bool left = *(volatile u32*)&meeting->taken < (task.columns + 31) / 32;
    count(task.counts, counts.tally, counts.moves);
    // The same for the whole warp, whose threads may have seen other numbers.
    if (__any_sync(EVERYBODY, left)) follow_columns(meeting, second.columns, second.average, task.columns);
}

#define BOUNDS_USUAL (USUAL_THREADS, USUAL_AT_ONCE)
#define USUAL(name, ...) LEARN(name, BOUNDS_USUAL, MOMENT_FOUR, 0, 0, (learn_usual<__VA_ARGS__, false>))
// With a narrow gradient.
#define USUAL_NARROW(name, ...) LEARN(name, BOUNDS_USUAL, MOMENT_FOUR, 0, 1, (learn_usual<__VA_ARGS__, true>))
