// Tensors learn, but those that are kept wide (`update_masters.cu`).
#include "state/int8.cuh"
#include "state/learn.cuh"
#include "state/master.cuh"
#include "state/weight.cuh"

// ---- second moments: those of rows follow the gradient first, those of columns after the last row ----

// Roots of the columns' profile: averages over their mean, added in f64 in their order. One thread adds what all
// have brought near.
extern "C" __global__ void second_profile(const float* averages, float* roots, u32 columns, u32 width) {
    __shared__ float near[1024];
    __shared__ float mean;
    double sum = 0.0;
    for (u32 start = 0; start < columns; start += 1024) {
        for (u32 at = threadIdx.x; at < 1024 && start + at < columns; at += blockDim.x)
            near[at] = averages[start + at];
        __syncthreads();
        u32 count = columns - start < 1024 ? columns - start : 1024;
        if (threadIdx.x == 0)
            for (u32 at = 0; at < count; at++) sum += (double)near[at];
        __syncthreads();
    }
    if (threadIdx.x == 0) mean = (float)(sum / (double)columns);
    __syncthreads();
    for (u32 column = threadIdx.x; column < width; column += blockDim.x)
        roots[column] = mean > 0.0f ? root(averages[column] / mean) : 1.0f;
}

// Sums of squares of a row in sixteen lanes; a half warp for each row.
extern "C" __global__ void second_rows(const float* gradient, float* averages, u32 rows, u32 columns,
                                       float keep, float fresh) {
    u32 row = blockIdx.x * (blockDim.x / BLOCK) + threadIdx.x / BLOCK;
    const float* g = gradient + (u64)row * columns;
    float lane = 0.0f;
    for (u32 at = threadIdx.x % BLOCK; row < rows && at < columns; at += BLOCK) lane += g[at] * g[at];
    float sum = fold(lane);
    if (row < rows && threadIdx.x % BLOCK == 0)
        averages[row] = follow(Average{keep, fresh}, averages[row], sum / (float)columns);
}

// Sums of squares of the columns of group blockIdx.y of the rows.
extern "C" __global__ void second_groups(const float* gradient, float* sums, u32 rows, u32 columns, u32 group) {
    u32 column = blockIdx.x * blockDim.x + threadIdx.x, first = blockIdx.y * group;
    if (column >= columns) return;
    u32 last = first + group < rows ? first + group : rows;
    float sum = 0.0f;
#pragma unroll 8
    for (u32 row = first; row < last; row++) {
        float g = gradient[(u64)row * columns + column];
        sum += g * g;
    }
    sums[(u64)blockIdx.y * columns + column] = sum;
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

    static DEVICE void move(const Place& at, u32 index, const Step& step, const float (&ratio)[BLOCK],
                                   const u32 (&luck)[BLOCK], Tally& tally) {
        Nvfp4<BITS> block;
        u8* rest = at.rest + index * REST_BYTES;
        load(at.codes + index * 8, block.codes);
        load(rest, block.rest);
        block.scale = at.scales[index];
        float w[BLOCK], delta[BLOCK];
        block.values(at.global, w);
        delta_of(step, ratio, w, delta);
        block.update(at.global, w, delta, luck, tally);
        store(at.codes + index * 8, block.codes);
        store(rest, block.rest);
        at.scales[index] = block.scale;
    }
};

template <int BITS> struct Int8Weight {
    static constexpr int FORMAT = INT8, REST_BYTES = 2 * BITS;

    static DEVICE void move(const Place& at, u32 index, const Step& step, const float (&ratio)[BLOCK],
                                   const u32 (&luck)[BLOCK], Tally& tally) {
        Int8<BITS> block;
        u8* rest = at.rest + index * REST_BYTES;
        load(at.codes + index * 16, block.codes);
        if constexpr (BITS > 0) load(rest, block.rest);
        block.scale = at.scales[index];
        float w[BLOCK], delta[BLOCK];
        block.values(w);
        delta_of(step, ratio, w, delta);
        block.update(w, delta, luck, tally);
        store(at.codes + index * 16, block.codes);
        if constexpr (BITS > 0) store(rest, block.rest);
        at.scales[index] = block.scale;
    }
};

struct FloatWeight {
    static constexpr int FORMAT = F32, REST_BYTES = 0;

    static DEVICE void move(const Place& at, u32 index, const Step& step, const float (&ratio)[BLOCK],
                                   const u32 (&)[BLOCK], Tally& tally) {
        float w[BLOCK], old[BLOCK], delta[BLOCK];
        float* place = (float*)at.codes + index * BLOCK;
        UNROLL for (int i = 0; i < BLOCK; i++) old[i] = w[i] = place[i];
        delta_of(step, ratio, w, delta);
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
                                         u32 length, const float* numbers, u64* counts) {
    Step step = {{numbers[0], numbers[1]}, numbers[2], numbers[3], numbers[4], numbers[5], numbers[6], numbers[7]};
    u32 block = blockIdx.x * blockDim.x + threadIdx.x;
    if (block * BLOCK >= length) return;
    float w[BLOCK], m[BLOCK], v[BLOCK], g[BLOCK], ratio[BLOCK], delta[BLOCK];
    load_values(weight, length, block, w);
    load_values(moments, length, block, m);
    load_values(seconds, length, block, v);
    load_values(gradient, length, block, g);
    UNROLL for (int i = 0; i < BLOCK; i++) {
        m[i] = average_of(step.average, m[i], g[i]);
        v[i] = average_of(Average{numbers[8], numbers[9]}, v[i], g[i] * g[i]);
        ratio[i] = ratio_of(step, m[i], root(v[i]));
    }
    delta_of(step, ratio, w, delta);
    float moved[BLOCK];
    UNROLL for (int i = 0; i < BLOCK; i++) moved[i] = w[i] + delta[i];
    if (largest_bits(moved) >= 0x7F800000) {
        atomicAdd(counts + 3, 1ull);
        return;
    }
    for (u32 i = 0; i < BLOCK && block * BLOCK + i < length; i++) {
        u32 at = block * BLOCK + i;
        weight[at] = delta[i] == 0.0f ? w[i] : moved[i];
        moments[at] = m[i];
        seconds[at] = v[i];
    }
}
