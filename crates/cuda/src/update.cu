// Tensors learn whose moments have four bits, whose second moments are factored and whose rows are whole: the usual
// ones. Others: `update_any.cu`, `update_masters.cu`.
#include "state/kinds.cuh"

// ---- second moments ----

constexpr u32 AT_ONCE = 256; // threads: columns, or lanes of sixteen rows
constexpr u32 ROWS = AT_ONCE / BLOCK;

// Roots of the columns' profile: averages over their mean, added in f64 in sixteen lanes.
DEVICE void profile_of(const float* averages, float* roots, u32 columns, u32 width) {
    constexpr u32 MOST = 4096; // a multiple of sixteen
    __shared__ float near[MOST], mean;
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
        roots[profile_place(column)] = mean > 0.0f ? root(averages[column] / mean) : 1.0f;
}

// Adds the squares of `count` numbers, each so many after the other, in their order; AHEAD are read before the first of
// them is needed.
DEVICE float sum_of_squares(const float* g, u32 count, u32 apart) {
    constexpr u32 AHEAD = 32;
    float sum = 0.0f;
    u32 at = 0;
    for (; at + AHEAD <= count; at += AHEAD, g += (u64)AHEAD * apart) {
        float near[AHEAD];
        UNROLL for (u32 i = 0; i < AHEAD; i++) near[i] = g[(u64)i * apart];
        UNROLL for (u32 i = 0; i < AHEAD; i++) sum = __fmaf_rn(near[i], near[i], sum);
    }
    for (; at < count; at++, g += apart) sum = __fmaf_rn(*g, *g, sum);
    return sum;
}

// Sums of squares, of rows by some thread blocks and of the columns of a group of rows by others, which are neighbours:
// what one reads is near for the other. Averages of the rows follow, those of the columns in `learn`. The last group
// comes first: what is read last is what the update reads first. One more thread block makes the profile.
extern "C" __global__ void __launch_bounds__(AT_ONCE, 5)
    second_sums(const float* gradient, float* row_averages, float* row_roots, float* sums,
                const float* column_averages, float* profile, u32 rows, u32 columns, u32 width, float keep, float fresh,
                float per_root) {
    if (blockIdx.x == 0) return profile_of(column_averages, profile, columns, width);
    u32 parts = GROUP / ROWS + (columns + AT_ONCE - 1) / AT_ONCE, number = gridDim.x - 1 - blockIdx.x;
    u32 group = number / parts, part = number % parts, first = group * GROUP;
    if (part < GROUP / ROWS) {
        u32 row = first + part * ROWS + threadIdx.x / BLOCK, lane = threadIdx.x % BLOCK;
        bool there = row < rows && lane < columns;
        const float* g = gradient + (u64)row * columns + lane;
        float sum = fold(there ? sum_of_squares(g, (columns - lane + BLOCK - 1) / BLOCK, BLOCK) : 0.0f);
        if (row >= rows || lane != 0) return;
        float now = follow(Average{keep, fresh}, row_averages[row], sum / (float)columns);
        row_averages[row] = now, row_roots[row] = root(now) * per_root;
    } else {
        u32 column = (part - GROUP / ROWS) * AT_ONCE + threadIdx.x;
        if (column >= columns) return;
        const float* g = gradient + (u64)first * columns + column;
        sums[(u64)group * columns + column] = sum_of_squares(g, min(GROUP, rows - first), columns);
    }
}

// ---- tensors ----

USUAL(update_nvfp4_byte, Nvfp4Weight<8>)
USUAL(update_nvfp4_nibble, Nvfp4Weight<4>)
USUAL(update_int8_nibble, Int8Weight<4>)
USUAL(update_int8_none, Int8Weight<0>)

// A vector of f32 learns, a thread for each number; warps have whole blocks. A block that would not be finite stays as it
// is.
extern "C" __global__ void update_vector(float* weight, float* moments, float* seconds, const float* gradient,
                                         u32 length, u64* counts, NUMBERS) {
    Step step = STEP;
    u32 at = blockIdx.x * blockDim.x + threadIdx.x;
    bool there = at < length;
    float w = there ? weight[at] : 0.0f, g = there ? gradient[at] : 0.0f;
    float m = average_of(step.average, there ? moments[at] : 0.0f, g);
    float v = average_of(SECOND_AVERAGE, there ? seconds[at] : 0.0f, g * g);
    float along = clamped(m / (root(v) * step.per_root + step.eps), -step.limit, step.limit);
    float delta = -step.size * along - step.decay * w, moved = w + delta;
    u32 largest = __float_as_uint(moved) & 0x7FFFFFFF;
    for (int apart = BLOCK / 2; apart > 0; apart /= 2)
        largest = max(largest, __shfl_xor_sync(0xffffffffu, largest, apart));
    if (largest >= 0x7F800000) {
        if (there && threadIdx.x % BLOCK == 0) atomicAdd(counts + REFUSED, 1ull);
    } else if (there) {
        weight[at] = delta == 0.0f ? w : moved;
        moments[at] = m, seconds[at] = v;
    }
}
