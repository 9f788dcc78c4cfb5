// Products of bf16 matrices by pairs of blocks: tiles of sum_i s_i * sum_k left_i[r,k] right_i[k,c].
//
// Two blocks, a pair, make results side by side, 128 rows each of the same columns: what they take of the right side is
// brought for both at once. In each block one thread has boxes of both sides brought, as many steps ahead as there are
// stages, and two warpgroups multiply them, 64 rows each. They take a step at their own pace: while one writes its
// results, the other has the tensor cores for itself.
//
// Pairs stay until all is done. Tiles go by in groups of rows, so that what neighbours share is still near.
//
// What kind of product it is, its kernels say by a type: how many COLUMNS a block sums at once; which sides are TURNED;
// how many FACTORS there may be; whether it is GATED, so that half of the columns are of the first right side and half
// the same ones of the second, by the first left side both; and what becomes of sums. `take` is given those of a tile, and
// puts them down or holds on to them: what is left to do is done in PIECES (`finish`) beside the products of the next tile.
#pragma once
#include "boxes.cuh"
#include "warpgroup.cuh"

const u32 WARPGROUPS = 2, ROWS = WARPGROUPS * BOX_SIDE, THREADS = (WARPGROUPS + 1) * 128;
// Bytes of all stages, and of what counts their arrivals.
const u32 RING = 24 * BOX_BYTES, ARRIVALS = 256;
// Rows of tiles (of pairs) that go by together.
const u32 GROUP = 8;
const u32 MOST_FACTORS = 3;

// Two sides that are multiplied.
struct Factors {
    Map left, right;
    const float *scale; // none: 1
    u32 inner;
    // Values of the map's rows in front of the matrix.
    u32 left_skipped, right_skipped;
};

struct Work {
    Factors factors[MOST_FACTORS];
    void *out;
    const float *added; // what results are added to, as they lie; none: nothing
    // A gated pair's products, which lie as results do, or nowhere; and where the gradient of the second goes.
    u16 *gate, *up, *dup;
    u32 count, rows, columns, stride, narrow;
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

template <class Kind> __device__ __forceinline__ u32 columns_at_once() { return Kind::COLUMNS / (Kind::GATED ? 2 : 1); }

template <class Kind> __device__ __forceinline__ u32 tiles_of(const Work &work) {
    return parts(work.rows, 2 * ROWS) * parts(work.columns, columns_at_once<Kind>());
}

template <class Kind> __device__ __forceinline__ Tile tile_at(const Work &work, u32 number) {
    u32 group = GROUP * parts(work.columns, columns_at_once<Kind>()), first = number / group * GROUP;
    u32 height = min(GROUP, parts(work.rows, 2 * ROWS) - first), within = number % group;
    return Tile{((first + within % height) * 2 + block_of_pair()) * ROWS, within / height * columns_at_once<Kind>()};
}

template <class Kind> __device__ __forceinline__ u32 factors_of(const Work &work) {
    return Kind::FACTORS == 1 ? 1 : work.count;
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

template <class Kind, u32 STAGES>
__device__ __forceinline__ void bring_all(const Work &work, Arrivals<STAGES> &arrivals, u8 *ring) {
    const u32 LEFT = ROWS / BOX_SIDE, HALF = Kind::COLUMNS / BOX_SIDE / 2, BOXES = LEFT + 2 * HALF;
    Turn<STAGES> turn;
    u32 block = block_of_pair(), own = block * HALF;
    for (u32 number = blockIdx.x / 2; number < tiles_of<Kind>(work); number += gridDim.x / 2) {
        Tile tile = tile_at<Kind>(work, number);
        u32 column = tile.column + (Kind::GATED ? 0 : own * BOX_SIDE);
        for (u32 i = 0; i < factors_of<Kind>(work); i++) {
            const Factors &left = work.factors[i], &right = work.factors[Kind::GATED ? block : i];
            for (u32 k = 0; k < left.inner; k += BOX_SIDE, turn.next()) {
                wait_for_round(&arrivals.empty[turn.stage], turn.odd ^ 1);
                u64 *full = &arrivals.full[turn.stage];
                u8 *to = ring + turn.stage * BOXES * BOX_BYTES;
                arrive_and_expect(full, BOXES * BOX_BYTES);
#pragma unroll
                for (u32 i = 0; i < LEFT; i++)
                    bring<Kind::LEFT_TURNED, false>(left.left, left.left_skipped, tile.row + i * BOX_SIDE, k,
                                                    to + i * BOX_BYTES, full);
#pragma unroll
                for (u32 i = 0; i < HALF; i++)
                    bring<Kind::RIGHT_TURNED, true>(right.right, right.right_skipped, column + i * BOX_SIDE, k,
                                                    to + (LEFT + own + i) * BOX_BYTES, full);
            }
        }
    }
}

// ---- warpgroups multiply ----

// Both blocks hear that this warpgroup is done with a stage: a warp each tells them.
__device__ __forceinline__ void leave(u64 *empty) {
    u32 warp = threadIdx.x / 32 % 4;
    if (threadIdx.x % 32 == 0 && warp < 2) arrive_at(empty, warp);
}

// Sums are in units of it, those of several factors in units of the last one's.
__device__ __forceinline__ float scale_of(const Factors &factors) { return factors.scale ? *factors.scale : 1.0f; }

// Where a warpgroup is among the stages.
template <class Kind, u32 STAGES> struct Steps {
    static const u32 LEFT = ROWS / BOX_SIDE * BOX_BYTES, STAGE = LEFT + Kind::COLUMNS / BOX_SIDE * BOX_BYTES;
    Arrivals<STAGES> &arrivals;
    u8 *ring;
    u32 warpgroup;
    Turn<STAGES> turn = {};
    // Of the stage that the products before these still read.
    u64 *before = nullptr;

    // Starts the products of a stage, behind those of the one before.
    __device__ __forceinline__ void next(float (&sums)[Kind::COLUMNS / 8][4], bool adds) {
        wait_for_round(&arrivals.full[turn.stage], turn.odd);
        u8 *stage = ring + turn.stage * STAGE;
        Place a = place_in_pair(stage + warpgroup * BOX_BYTES, BOX_BYTES), b = place_in_pair(stage + LEFT, BOX_BYTES);
        begin_products();
#pragma unroll
        for (u32 step = 0; step < BOX_SIDE / 16; step++)
            start_multiplying<Kind::LEFT_TURNED, Kind::RIGHT_TURNED>(
                sums, further(a, step * (Kind::LEFT_TURNED ? 2048 : 32)),
                further(b, step * (Kind::RIGHT_TURNED ? 2048 : 32)), adds || step > 0);
        end_products();
        wait_for_tiles_but<1>();
        if (before) leave(before);
        before = &arrivals.empty[turn.stage];
        turn.next();
    }

    __device__ __forceinline__ void end(float (&sums)[Kind::COLUMNS / 8][4]) {
        wait_for_products_but<0>(sums);
        leave(before);
        before = nullptr;
    }
};

template <class Kind, u32 STAGES>
__device__ __forceinline__ void multiply_all(const Work &work, Arrivals<STAGES> &arrivals, u8 *ring) {
    // The same for all threads of a warp, and known to be.
    Steps<Kind, STAGES> steps{arrivals, ring, __shfl_sync(0xffffffffu, threadIdx.x / 128, 0)};
    Kind kind(work);
    for (u32 number = blockIdx.x / 2; number < tiles_of<Kind>(work); number += gridDim.x / 2) {
        float sums[Kind::COLUMNS / 8][4];
        for (u32 i = 0; i < factors_of<Kind>(work); i++) {
            if (i > 0) {
                float by = scale_of(work.factors[i - 1]) / scale_of(work.factors[i]);
                wait_for_products_but<0>(sums);
#pragma unroll
                for (u32 j = 0; j < Kind::COLUMNS / 2; j++) sums[j / 4][j % 4] *= by;
            }
            u32 k = 0;
#pragma unroll
            for (int piece = 0; piece < Kind::PIECES; piece++) {
                if (k < work.factors[i].inner) steps.next(sums, i + k > 0);
                kind.finish(piece);
                k += BOX_SIDE;
            }
            for (; k < work.factors[i].inner; k += BOX_SIDE) steps.next(sums, i + k > 0);
        }
        steps.end(sums);
        kind.take(tile_at<Kind>(work, number), sums);
    }
#pragma unroll
    for (int piece = 0; piece < Kind::PIECES; piece++) kind.finish(piece);
}

template <class Kind> __device__ __forceinline__ void product(const Work &work) {
    const u32 STAGES = RING / BOX_BYTES / (ROWS / BOX_SIDE + Kind::COLUMNS / BOX_SIDE);
    Arrivals<STAGES> &arrivals = *(Arrivals<STAGES> *)(aligned_shared + RING);
    if (threadIdx.x == 0) {
        for (u32 i = 0; i < STAGES; i++)
            begin_rounds(&arrivals.full[i], 1), begin_rounds(&arrivals.empty[i], 2 * WARPGROUPS);
        show_rounds();
    }
    wait_for_pair();
    // Who brings gives registers to those that multiply; as a warpgroup, for only whole ones can.
    if (threadIdx.x < WARPGROUPS * 128) {
        have_more_registers<240>();
        multiply_all<Kind, STAGES>(work, arrivals, aligned_shared);
    } else {
        have_fewer_registers<24>();
        if (threadIdx.x == WARPGROUPS * 128) bring_all<Kind, STAGES>(work, arrivals, aligned_shared);
    }
    // The other block still writes here until it is done.
    wait_for_pair();
}

#define PRODUCT(name, ...)                                                                                             \
    extern "C" __global__ void __launch_bounds__(THREADS, 1) name(const __grid_constant__ Work work) {                 \
        product<__VA_ARGS__>(work);                                                                                    \
    }

// ---- a thread's part of a row: two of every eight sums, by four threads ----
//
// Neighbours exchange them, so that each has some side by side and stores touch few lines.

// The first row of this thread in a tile; the other is 8 further.
__device__ __forceinline__ u32 row_of_thread(Tile tile) {
    return tile.row + threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4;
}

// Four of sixteen: those of the first eight for even threads, of the second for odd ones.
__device__ __forceinline__ float4 four_of(float a, float b, float c, float d) {
    bool odd = threadIdx.x & 1;
    float x = __shfl_xor_sync(0xffffffffu, odd ? a : c, 1), y = __shfl_xor_sync(0xffffffffu, odd ? b : d, 1);
    return odd ? make_float4(x, y, c, d) : make_float4(a, b, x, y);
}

// Words of four threads, four by four, turned: pairs of every eight become eight side by side.
__device__ __forceinline__ uint4 turned(u32 a, u32 b, u32 c, u32 d) {
    bool one = threadIdx.x & 1, two = threadIdx.x & 2;
    u32 x = __shfl_xor_sync(0xffffffffu, one ? a : b, 1), y = __shfl_xor_sync(0xffffffffu, one ? c : d, 1);
    if (one) a = x, c = y;
    else b = x, d = y;
    x = __shfl_xor_sync(0xffffffffu, two ? a : c, 2), y = __shfl_xor_sync(0xffffffffu, two ? b : d, 2);
    return two ? make_uint4(x, y, c, d) : make_uint4(a, b, x, y);
}

// Words of one row of two, of eights from `n` on, as they are and turned.
template <u32 EIGHTS>
__device__ __forceinline__ void pairs_of(u32 (&words)[4], const float (&sums)[EIGHTS][4], u32 n, u32 half, float scale) {
#pragma unroll
    for (u32 i = 0; i < 4; i++)
        words[i] = pair_of(sums[n + i][half * 2] * scale, sums[n + i][half * 2 + 1] * scale);
}
__device__ __forceinline__ uint4 turned(const u32 (&words)[4]) {
    return turned(words[0], words[1], words[2], words[3]);
}
