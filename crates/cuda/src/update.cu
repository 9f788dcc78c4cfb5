// Tensors learn, but those that are kept wide (`update_masters.cu`).
#include "state/int8.cuh"
#include "state/learn.cuh"
#include "state/master.cuh"
#include "state/weight.cuh"

// ---- second moments: they follow the gradient first ----

// Sums of squares of a row in sixteen lanes; a half warp for each row.
extern "C" __global__ void second_rows(const float* gradient, float* averages, u32 rows, u32 columns,
                                       float keep, float fresh) {
    u32 row = blockIdx.x * (blockDim.x / BLOCK) + threadIdx.x / BLOCK;
    const float* g = gradient + (u64)row * columns;
    float lane = 0.0f;
    for (u32 at = threadIdx.x % BLOCK; row < rows && at < columns; at += BLOCK) lane += g[at] * g[at];
    float sum = fold(lane);
    if (row < rows && threadIdx.x % BLOCK == 0)
        averages[row] = average_of(Average{keep, fresh}, averages[row], sum / (float)columns);
}

// Sums of squares of the columns of chunk blockIdx.y of the rows.
extern "C" __global__ void second_chunks(const float* gradient, float* sums, u32 rows, u32 columns, u32 chunk) {
    u32 column = blockIdx.x * blockDim.x + threadIdx.x, first = blockIdx.y * chunk;
    if (column >= columns) return;
    u32 last = first + chunk < rows ? first + chunk : rows;
    float sum = 0.0f;
    for (u32 row = first; row < last; row++) {
        float g = gradient[(u64)row * columns + column];
        sum += g * g;
    }
    sums[blockIdx.y * columns + column] = sum;
}

// Averages of the columns follow the sums of the chunks, added in their order.
extern "C" __global__ void second_columns(const float* sums, float* averages, u32 rows, u32 columns, u32 chunks,
                                          float keep, float fresh) {
    u32 column = blockIdx.x * blockDim.x + threadIdx.x;
    if (column >= columns) return;
    float total = 0.0f;
    for (u32 number = 0; number < chunks; number++) total += sums[number * columns + column];
    averages[column] = average_of(Average{keep, fresh}, averages[column], total / (float)rows);
}

// Mean of the rows' averages, added in f64 in their order: one thread adds what all have brought near.
extern "C" __global__ void second_mean(const float* averages, float* mean, u32 rows) {
    __shared__ float near[1024];
    double sum = 0.0;
    for (u32 start = 0; start < rows; start += 1024) {
        for (u32 at = threadIdx.x; at < 1024 && start + at < rows; at += blockDim.x)
            near[at] = averages[start + at];
        __syncthreads();
        u32 count = rows - start < 1024 ? rows - start : 1024;
        if (threadIdx.x == 0)
            for (u32 at = 0; at < count; at++) sum += (double)near[at];
        __syncthreads();
    }
    if (threadIdx.x == 0) *mean = (float)(sum / (double)rows);
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
