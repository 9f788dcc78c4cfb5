// Tensors learn, but those that are kept wide (`update_masters.cu`).
#include "state/int8.cuh"
#include "state/learn.cuh"
#include "state/master.cuh"
#include "state/weight.cuh"

// ---- second moments: sums in one pass over the gradient; those of rows are followed first, those of columns last ----

constexpr u32 GROUP = 64;        // rows
constexpr u32 TILE = 256;        // columns of a group that are looked at together
constexpr u32 STRIDE = TILE + 16; // two rows lie in different banks
constexpr u32 EACH = TILE / BLOCK;

// Roots of the columns' profile: averages over their mean, added in f64 in sixteen lanes.
DEVICE void profile_of(const float* averages, float* roots, u32 columns, u32 width, float* near) {
    constexpr u32 MOST = GROUP * STRIDE; // a multiple of sixteen
    __shared__ float mean;
    double lane = 0.0;
    for (u32 start = 0; start < columns; start += MOST) {
        u32 count = min(columns - start, MOST);
        for (u32 at = threadIdx.x; at < count; at += blockDim.x) near[at] = averages[start + at];
        __syncthreads();
        if (threadIdx.x < 32)
#pragma unroll 8
            for (u32 at = threadIdx.x % BLOCK; at < count; at += BLOCK) lane += (double)near[at];
        __syncthreads();
    }
    if (threadIdx.x < 32) {
        for (int width = 8; width > 0; width /= 2) lane += __shfl_xor_sync(0xffffffffu, lane, width);
        if (threadIdx.x == 0) mean = (float)(lane / (double)columns);
    }
    __syncthreads();
    for (u32 column = threadIdx.x; column < width; column += blockDim.x)
        roots[column] = mean > 0.0f ? root(averages[column] / mean) : 1.0f;
}

// Sums of squares of the rows and of the columns of a group of rows: sixteen threads, the lanes of its sum, for each
// row, which walk over the columns. The averages of the rows follow. The last group comes first: what is read last is
// what the update reads first, and near. One more thread block makes the profile.
extern "C" __global__ void __launch_bounds__(GROUP * BLOCK)
    second_sums(const float* gradient, float* row_averages, float* sums, const float* column_averages, float* roots,
                u32 rows, u32 columns, u32 width, float keep, float fresh) {
    float* tile = (float*)dynamic_shared;
    if (blockIdx.x == 0) return profile_of(column_averages, roots, columns, width, tile);
    u32 group = gridDim.x - 1 - blockIdx.x, row = threadIdx.x / BLOCK, lane = threadIdx.x % BLOCK;
    u32 number = group * GROUP + row;
    const float* g = gradient + (u64)number * columns;
    float sum = 0.0f, next[EACH];
    UNROLL for (u32 i = 0; i < EACH; i++) {
        u32 column = i * BLOCK + lane;
        next[i] = number < rows && column < columns ? g[column] : 0.0f;
    }
    for (u32 start = 0; start < columns; start += TILE) {
        UNROLL for (u32 i = 0; i < EACH; i++) {
            tile[row * STRIDE + i * BLOCK + lane] = next[i];
            sum = __fmaf_rn(next[i], next[i], sum);
            u32 column = start + TILE + i * BLOCK + lane;
            next[i] = number < rows && column < columns ? g[column] : 0.0f;
        }
        __syncthreads();
        if (threadIdx.x < TILE && start + threadIdx.x < columns) {
            float of_column = 0.0f;
#pragma unroll 16
            for (u32 i = 0; i < GROUP; i++) {
                float x = tile[i * STRIDE + threadIdx.x];
                of_column = __fmaf_rn(x, x, of_column);
            }
            sums[(u64)group * columns + start + threadIdx.x] = of_column;
        }
        __syncthreads();
    }
    sum = fold(sum);
    if (number < rows && lane == 0)
        row_averages[number] = follow(Average{keep, fresh}, row_averages[number], sum / (float)columns);
}

// Adds the groups' sums to those of the step in their order; at its end (`all_rows`, else zero) the averages
// follow.
extern "C" __global__ void second_columns(const float* sums, float* totals, float* averages, u32 columns, u32 groups,
                                          u32 begins, u32 all_rows, float keep, float fresh) {
    u32 column = blockIdx.x * blockDim.x + threadIdx.x;
    if (column >= columns) return;
    float total = begins ? 0.0f : totals[column];
    for (u32 number = 0; number < groups; number++) total += sums[(u64)number * columns + column];
    totals[column] = total;
    if (all_rows) averages[column] = follow(Average{keep, fresh}, averages[column], total / (float)all_rows);
}

// ---- weights: each kind loads a block, moves it and stores it ----

template <int BITS> struct Nvfp4Weight {
    static constexpr int FORMAT = NVFP4, REST_BYTES = 2 * BITS;
    Nvfp4<BITS> block;

    DEVICE void load_from(const Place& at, u32 index) {
        load(at.codes + index * 8, block.codes);
        load(at.rest + index * REST_BYTES, block.rest);
        block.scale = at.scales[index];
    }

    DEVICE void move(const Place& at, u32 index, const Push& push, const Own& luck, Tally& tally) {
        block.update(at.global, push, luck, tally);
        store(at.codes + index * 8, block.codes);
        store(at.rest + index * REST_BYTES, block.rest);
        at.scales[index] = block.scale;
    }
};

template <int BITS> struct Int8Weight {
    static constexpr int FORMAT = INT8, REST_BYTES = 2 * BITS;
    Int8<BITS> block;

    DEVICE void load_from(const Place& at, u32 index) {
        load(at.codes + index * 16, block.codes);
        if constexpr (BITS > 0) load(at.rest + index * REST_BYTES, block.rest);
        block.scale = at.scales[index];
    }

    DEVICE void move(const Place& at, u32 index, const Push& push, const Own& luck, Tally& tally) {
        block.update(push, luck, tally);
        store(at.codes + index * 16, block.codes);
        if constexpr (BITS > 0) store(at.rest + index * REST_BYTES, block.rest);
        at.scales[index] = block.scale;
    }
};

struct FloatWeight {
    static constexpr int FORMAT = F32, REST_BYTES = 0;

    DEVICE void load_from(const Place&, u32) {}

    DEVICE void move(const Place& at, u32 index, const Push& push, const Own&, Tally& tally) {
        float w[BLOCK], old[BLOCK], delta[BLOCK];
        float* place = (float*)at.codes + index * BLOCK;
        UNROLL for (int i = 0; i < BLOCK; i++) old[i] = w[i] = place[i];
        push.values(w, delta);
        if (!advance_f32(w, delta)) {
            tally.refused += 1;
            return;
        }
        UNROLL for (int i = 0; i < BLOCK; i++) {
            tally.changed += __float_as_uint(w[i]) != __float_as_uint(old[i]);
            place[i] = w[i];
        }
    }
};

LEARN(update_nvfp4_byte, Nvfp4Weight<8>)
LEARN(update_nvfp4_nibble, Nvfp4Weight<4>)
LEARN(update_int8_byte, Int8Weight<8>)
LEARN(update_int8_nibble, Int8Weight<4>)
LEARN(update_int8_none, Int8Weight<0>)
LEARN(update_f32, FloatWeight)

// A vector of f32 learns, a thread for each block; a block that would not be finite stays as it is.
extern "C" __global__ void update_vector(float* weight, float* moments, float* seconds, const float* gradient,
                                         u32 length, u64* counts, NUMBERS) {
    Step step = STEP;
    u32 block = blockIdx.x * blockDim.x + threadIdx.x;
    if (block * BLOCK >= length) return;
    float w[BLOCK], m[BLOCK], v[BLOCK], g[BLOCK], delta[BLOCK];
    load_values(weight, length, block, w);
    load_values(moments, length, block, m);
    load_values(seconds, length, block, v);
    load_values(gradient, length, block, g);
    float roots[BLOCK];
    UNROLL for (int i = 0; i < BLOCK; i++) {
        m[i] = average_of(step.average, m[i], g[i]);
        v[i] = average_of(SECOND_AVERAGE, v[i], g[i] * g[i]);
        roots[i] = root(v[i]) * step.per_root;
    }
    push_of(step, m, roots).values(w, delta);
    float moved[BLOCK];
    UNROLL for (int i = 0; i < BLOCK; i++) moved[i] = w[i] + delta[i];
    if (largest_bits(moved) >= 0x7F800000) {
        atomicAdd(counts + REFUSED, 1ull);
        return;
    }
    for (u32 i = 0; i < BLOCK && block * BLOCK + i < length; i++) {
        u32 at = block * BLOCK + i;
        weight[at] = delta[i] == 0.0f ? w[i] : moved[i];
        moments[at] = m[i];
        seconds[at] = v[i];
    }
}
