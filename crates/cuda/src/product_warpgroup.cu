// Products of bf16 matrices by warpgroups: out[r,c] (+)= s * sum_k left[r,k] right[k,c] (see product_warpgroup.rs).
//
// Two blocks, a pair, make results side by side, 128 rows each of the same columns: what they take of the right side is
// brought for both at once. In each block one thread has boxes of both sides brought, as many steps ahead as there are
// stages, and two warpgroups multiply them, 64 rows each. They take a step at their own pace: while one writes its
// results, the other has the tensor cores for itself.
//
// Pairs stay until all is done. Tiles go by in groups of rows, so that what neighbours share is still near.
#include "boxes.cuh"
#include "warpgroup.cuh"

const u32 WARPGROUPS = 2, ROWS = WARPGROUPS * BOX_SIDE, THREADS = (WARPGROUPS * 4 + 1) * 32;
// Bytes of all stages, and of what counts their arrivals; behind them some results of each thread.
const u32 RING = 24 * BOX_BYTES, ARRIVALS = 256, SOME = 32;
// Rows of tiles (of pairs) that go by together.
const u32 GROUP = 8;

struct Work {
    Map left, right;
    void *out;
    const float *added; // what results are added to, as they lie; none: nothing
    const float *scale; // none: 1
    u32 rows, columns, inner, stride;
    // Values of the map's rows in front of the matrix.
    u32 left_skipped, right_skipped;
    u32 narrow;
};

// What lies in shared memory behind the stages.
template <u32 STAGES> struct Arrivals {
    // Of a stage's boxes; of those that are done with it, in both blocks.
    u64 full[STAGES], empty[STAGES];
};

struct Tile {
    u32 row, column;
};

__device__ __forceinline__ u32 parts(u32 of, u32 most) { return (of + most - 1) / most; }

template <u32 COLUMNS> __device__ __forceinline__ u32 tiles_of(const Work &work) {
    return parts(work.rows, 2 * ROWS) * parts(work.columns, COLUMNS);
}

template <u32 COLUMNS> __device__ __forceinline__ Tile tile_at(const Work &work, u32 number) {
    u32 group = GROUP * parts(work.columns, COLUMNS), first = number / group * GROUP;
    u32 height = min(GROUP, parts(work.rows, 2 * ROWS) - first), within = number % group;
    return Tile{((first + within % height) * 2 + block_of_pair()) * ROWS, within / height * COLUMNS};
}

// A stage, and whether its round is an odd one.
template <u32 STAGES> struct Turn {
    u32 stage = 0, odd = 0;
    __device__ __forceinline__ void next() {
        if (++stage == STAGES) stage = 0, odd ^= 1;
    }
};

// ---- one thread brings ----

// Rows from `row` on (columns, of the right side), steps from `k` on.
template <bool TURNED, bool BOTH>
__device__ __forceinline__ void bring(const Map &map, u32 skipped, u32 row, u32 k, u8 *to, u64 *arrivals) {
    u32 x = skipped + (TURNED ? row : k), y = TURNED ? k : row;
    if (BOTH) fetch_box_for_both(map, x, y, to, arrivals);
    else fetch_box(map, x, y, to, arrivals);
}

template <u32 COLUMNS, u32 STAGES, bool LEFT_TURNED, bool RIGHT_TURNED>
__device__ __forceinline__ void bring_all(const Work &work, Arrivals<STAGES> &arrivals, u8 *ring) {
    const u32 LEFT = ROWS / BOX_SIDE, HALF = COLUMNS / BOX_SIDE / 2, BOXES = LEFT + 2 * HALF;
    Turn<STAGES> turn;
    u32 own = block_of_pair() * HALF;
    for (u32 number = blockIdx.x / 2; number < tiles_of<COLUMNS>(work); number += gridDim.x / 2) {
        Tile tile = tile_at<COLUMNS>(work, number);
        for (u32 k = 0; k < work.inner; k += BOX_SIDE, turn.next()) {
            wait_for_round(&arrivals.empty[turn.stage], turn.odd ^ 1);
            u64 *full = &arrivals.full[turn.stage];
            u8 *to = ring + turn.stage * BOXES * BOX_BYTES;
            arrive_and_expect(full, BOXES * BOX_BYTES);
#pragma unroll
            for (u32 i = 0; i < LEFT; i++)
                bring<LEFT_TURNED, false>(work.left, work.left_skipped, tile.row + i * BOX_SIDE, k, to + i * BOX_BYTES,
                                          full);
#pragma unroll
            for (u32 i = own; i < own + HALF; i++)
                bring<RIGHT_TURNED, true>(work.right, work.right_skipped, tile.column + i * BOX_SIDE, k,
                                          to + (LEFT + i) * BOX_BYTES, full);
        }
    }
}

// ---- warpgroups multiply ----

// Both blocks hear that this warpgroup is done with a stage: a warp each tells them.
__device__ __forceinline__ void leave(u64 *empty) {
    u32 warp = threadIdx.x / 32 % 4;
    if (threadIdx.x % 32 == 0 && warp < 2) arrive_at(empty, warp);
}

// A thread's part of a row: two of every eight results, by four threads. Neighbours exchange them, so that each has some
// side by side and stores touch few lines.

// Four of sixteen: those of the first eight for even threads, of the second for odd ones.
__device__ __forceinline__ float4 four_of(float a, float b, float c, float d) {
    bool odd = threadIdx.x & 1;
    float x = __shfl_xor_sync(0xffffffffu, odd ? a : c, 1), y = __shfl_xor_sync(0xffffffffu, odd ? b : d, 1);
    return odd ? make_float4(x, y, c, d) : make_float4(a, b, x, y);
}

// Words of four threads, four by four, turned.
__device__ __forceinline__ uint4 turned(u32 a, u32 b, u32 c, u32 d) {
    bool one = threadIdx.x & 1, two = threadIdx.x & 2;
    u32 x = __shfl_xor_sync(0xffffffffu, one ? a : b, 1), y = __shfl_xor_sync(0xffffffffu, one ? c : d, 1);
    if (one) a = x, c = y;
    else b = x, d = y;
    x = __shfl_xor_sync(0xffffffffu, two ? a : c, 2), y = __shfl_xor_sync(0xffffffffu, two ? b : d, 2);
    return two ? make_uint4(x, y, c, d) : make_uint4(a, b, x, y);
}

// This thread's part of a row of results (of two), if it is `there`; whole and aligned.
template <u32 COLUMNS>
__device__ __forceinline__ void put_row(const Work &work, u64 at, bool there, const float (&sums)[COLUMNS / 8][4],
                                        u32 half, float scale) {
    u32 lane = threadIdx.x % 32;
    if (work.narrow) {
        u16 *to = (u16 *)work.out + at + lane % 4 * 8;
#pragma unroll
        for (u32 n = 0; n < COLUMNS / 8; n += 4) {
            u32 words[4];
#pragma unroll
            for (u32 i = 0; i < 4; i++)
                words[i] = pair_of(sums[n + i][half * 2] * scale, sums[n + i][half * 2 + 1] * scale);
            uint4 eight = turned(words[0], words[1], words[2], words[3]);
            if (there) *(uint4 *)(to + n * 8) = eight;
        }
        return;
    }
    at += lane % 2 * 8 + lane % 4 / 2 * 4;
#pragma unroll
    for (u32 n = 0; n < COLUMNS / 8; n += 2) {
        float4 four = four_of(sums[n][half * 2] * scale, sums[n][half * 2 + 1] * scale, sums[n + 1][half * 2] * scale,
                              sums[n + 1][half * 2 + 1] * scale);
        if (!there) continue;
        float *to = (float *)work.out + at + n * 8;
        if (work.added == work.out) {
            add_four_to(to, four);
            continue;
        }
        if (work.added) {
            float4 before = *(const float4 *)(work.added + at + n * 8);
            four = make_float4(before.x + four.x, before.y + four.y, before.z + four.z, before.w + four.w);
        }
        *(float4 *)to = four;
    }
}

__device__ __forceinline__ void put_one(const Work &work, u64 at, float x) {
    if (work.narrow) ((u16 *)work.out)[at] = bf16_of(x);
    else ((float *)work.out)[at] = work.added ? work.added[at] + x : x;
}

// This thread's part of 64 rows of results.
template <u32 COLUMNS>
__device__ __forceinline__ void put(const Work &work, Tile tile, const float (&sums)[COLUMNS / 8][4], float scale) {
    u32 lane = threadIdx.x % 32, row = tile.row + threadIdx.x / 32 * 16 + lane / 4;
    bool aligned = work.stride % (work.narrow ? 8 : 4) == 0 && ((u64)work.out | (u64)work.added) % 16 == 0;
    if (aligned && tile.column + COLUMNS <= work.columns) {
#pragma unroll
        for (u32 half = 0; half < 2; half++) {
            u32 r = row + half * 8;
            put_row<COLUMNS>(work, (u64)r * work.stride + tile.column, r < work.rows, sums, half, scale);
        }
        return;
    }
    // Edges, and rows that begin anywhere: one by one, from memory, so that the code is short.
    float *some = (float *)(aligned_shared + RING + ARRIVALS) + threadIdx.x;
#pragma unroll
    for (u32 first = 0; first < COLUMNS / 2; first += SOME) {
#pragma unroll
        for (u32 i = 0; i < SOME; i++) some[i * WARPGROUPS * 128] = sums[(first + i) / 4][i % 4] * scale;
#pragma unroll 1
        for (u32 i = 0; i < SOME; i++) {
            u32 r = row + i % 4 / 2 * 8, c = tile.column + lane % 4 * 2 + (first + i) / 4 * 8 + i % 2;
            if (r < work.rows && c < work.columns) put_one(work, (u64)r * work.stride + c, some[i * WARPGROUPS * 128]);
        }
    }
}

template <u32 COLUMNS, u32 STAGES, bool LEFT_TURNED, bool RIGHT_TURNED>
__device__ __forceinline__ void multiply_all(const Work &work, Arrivals<STAGES> &arrivals, u8 *ring) {
    const u32 LEFT = ROWS / BOX_SIDE * BOX_BYTES, STAGE = LEFT + COLUMNS / BOX_SIDE * BOX_BYTES;
    Turn<STAGES> turn;
    // The same for all threads of a warp, and known to be.
    u32 warpgroup = __shfl_sync(0xffffffffu, threadIdx.x / 128, 0);
    float scale = work.scale ? *work.scale : 1.0f;
    for (u32 number = blockIdx.x / 2; number < tiles_of<COLUMNS>(work); number += gridDim.x / 2) {
        float sums[COLUMNS / 8][4];
        u64 *before = nullptr;
        for (u32 k = 0; k < work.inner; k += BOX_SIDE, turn.next()) {
            wait_for_round(&arrivals.full[turn.stage], turn.odd);
            u8 *stage = ring + turn.stage * STAGE;
            Place a = place_in_pair(stage + warpgroup * BOX_BYTES, BOX_BYTES), b = place_in_pair(stage + LEFT, BOX_BYTES);
            begin_products();
#pragma unroll
            for (u32 step = 0; step < BOX_SIDE / 16; step++)
                start_multiplying<LEFT_TURNED, RIGHT_TURNED>(sums, further(a, step * (LEFT_TURNED ? 2048 : 32)),
                                                             further(b, step * (RIGHT_TURNED ? 2048 : 32)),
                                                             k + step > 0);
            end_products();
            wait_for_tiles_but<1>();
            if (before) leave(before);
            before = &arrivals.empty[turn.stage];
        }
        wait_for_products_but<0>(sums);
        leave(before);
        put<COLUMNS>(work, tile_at<COLUMNS>(work, number), sums, scale);
    }
}

template <u32 COLUMNS, bool LEFT_TURNED, bool RIGHT_TURNED> __device__ __forceinline__ void product(const Work &work) {
    const u32 STAGES = RING / BOX_BYTES / (ROWS / BOX_SIDE + COLUMNS / BOX_SIDE);
    Arrivals<STAGES> &arrivals = *(Arrivals<STAGES> *)(aligned_shared + RING);
    if (threadIdx.x == 0) {
        for (u32 i = 0; i < STAGES; i++)
            begin_rounds(&arrivals.full[i], 1), begin_rounds(&arrivals.empty[i], 2 * WARPGROUPS);
        show_rounds();
    }
    wait_for_pair();
    if (threadIdx.x < WARPGROUPS * 128)
        multiply_all<COLUMNS, STAGES, LEFT_TURNED, RIGHT_TURNED>(work, arrivals, aligned_shared);
    else if (threadIdx.x == WARPGROUPS * 128)
        bring_all<COLUMNS, STAGES, LEFT_TURNED, RIGHT_TURNED>(work, arrivals, aligned_shared);
    // The other block still writes here until it is done.
    wait_for_pair();
}

#define PRODUCT(name, columns, left, right)                                                                            \
    extern "C" __global__ void __launch_bounds__(THREADS, 1) name(const __grid_constant__ Work work) {                 \
        product<columns, left, right>(work);                                                                           \
    }

// Rows of tokens by rows of a weight, by its columns; columns of gradients by columns of tokens.
PRODUCT(product_rows_rows_256, 256, false, false)
PRODUCT(product_rows_rows_128, 128, false, false)
PRODUCT(product_rows_columns_256, 256, false, true)
PRODUCT(product_rows_columns_128, 128, false, true)
PRODUCT(product_columns_columns_256, 256, true, true)
PRODUCT(product_columns_columns_128, 128, true, true)
