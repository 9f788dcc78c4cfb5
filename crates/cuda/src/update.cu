// Tensors learn whose moments have four bits, whose second moments are factored and whose rows are whole: the usual
// ones. Others: `update_any.cu`, `update_masters.cu`.
#include "state/kinds.cuh"

// ---- second moments ----

constexpr u32 AT_ONCE = 256; // threads: columns, or lanes of sixteen rows
constexpr u32 ROWS = AT_ONCE / BLOCK;

// Thread blocks that make the profile, each of so many columns; `PROFILE` in update.rs.
constexpr u32 PROFILE = 32 * BLOCK;

DEVICE u32 profiling(u32 width) {
    return (width + PROFILE - 1) / PROFILE;
}

// Roots of the profile of some columns: averages over their mean, added in f64 in sixteen lanes, by every thread block that
// needs it.
DEVICE void profile_of(const float* averages, float* roots, u32 columns, u32 width) {
    constexpr u32 MOST = 4096, AHEAD = 16; // so many are read before the first of them is needed
    __shared__ float near[MOST], mean;
    double lane = 0.0;
    for (u32 start = 0; start < columns; start += MOST) {
        // Zeros behind the last one, which add nothing.
        for (u32 at = threadIdx.x; at < MOST; at += AHEAD * blockDim.x) {
            float some[AHEAD];
            UNROLL for (u32 i = 0; i < AHEAD; i++) {
                u32 column = start + at + i * blockDim.x;
                some[i] = column < columns ? averages[column] : 0.0f;
            }
            UNROLL for (u32 i = 0; i < AHEAD; i++) near[at + i * blockDim.x] = some[i];
        }
        __syncthreads();
        u32 end = min((columns - start + 127) & ~127u, MOST);
        if (threadIdx.x < 32)
            for (u32 at = threadIdx.x % BLOCK; at < end; at += 8 * BLOCK) {
                double eight[8];
                UNROLL for (int i = 0; i < 8; i++) eight[i] = near[at + i * BLOCK];
                UNROLL for (int i = 0; i < 8; i++) lane += eight[i];
            }
        __syncthreads();
    }
    if (threadIdx.x < 32) {
        for (int width = 8; width > 0; width /= 2) lane += __shfl_xor_sync(0xffffffffu, lane, width);
        if (threadIdx.x == 0) mean = (float)(lane / (double)columns);
    }
    __syncthreads();
    u32 first = blockIdx.x * PROFILE, end = min(first + PROFILE, width);
    for (u32 column = first + threadIdx.x; column < end; column += blockDim.x)
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

// The average of a row follows the sum of its squares.
DEVICE void follow_row(Average average, float per_root, float sum, u32 columns, float& row_average, float& row_root) {
    row_average = follow(average, row_average, sum / (float)columns), row_root = root(row_average) * per_root;
}

// Sums of squares, of rows by some thread blocks and of the columns of a group of rows by others, which are neighbours:
// what one reads is near for the other. Averages of the rows follow, those of the columns in `learn`. The last group
// comes first: what is read last is what the update reads first. The first thread blocks make the profile.
extern "C" __global__ void __launch_bounds__(AT_ONCE, 5)
    second_sums(const float* gradient, float* row_averages, float* row_roots, float* sums,
                const float* column_averages, float* profile, u32 rows, u32 columns, u32 width, float keep, float fresh,
                float per_root) {
    if (blockIdx.x < profiling(width)) return profile_of(column_averages, profile, columns, width);
    u32 parts = GROUP / ROWS + (columns + AT_ONCE - 1) / AT_ONCE, number = gridDim.x - 1 - blockIdx.x;
    u32 group = number / parts, part = number % parts, first = group * GROUP;
    if (part < GROUP / ROWS) {
        u32 row = first + part * ROWS + threadIdx.x / BLOCK, lane = threadIdx.x % BLOCK;
        bool there = row < rows && lane < columns;
        const float* g = gradient + (u64)row * columns + lane;
        float sum = fold(there ? sum_of_squares(g, (columns - lane + BLOCK - 1) / BLOCK, BLOCK) : 0.0f);
        if (row < rows && lane == 0)
            follow_row({keep, fresh}, per_root, sum, columns, row_averages[row], row_roots[row]);
    } else {
        u32 column = (part - GROUP / ROWS) * AT_ONCE + threadIdx.x;
        if (column >= columns) return;
        const float* g = gradient + (u64)first * columns + column;
        sums[(u64)group * columns + column] = sum_of_squares(g, min(GROUP, rows - first), columns);
    }
}

// As `sum_of_squares`, of neighbours in narrow rows, so many words of them; `apart` counts words.
template <int WORDS> DEVICE void sums_of_squares(const u32* g, u32 count, u32 apart, float (&sums)[2 * WORDS]) {
    constexpr u32 AHEAD = 32 / WORDS;
    UNROLL for (int i = 0; i < 2 * WORDS; i++) sums[i] = 0.0f;
    for (u32 at = 0; at < count; at += AHEAD, g += (u64)AHEAD * apart) {
        u32 near[AHEAD][WORDS];
        // Zeros add nothing.
        UNROLL for (u32 i = 0; i < AHEAD; i++) {
            if (at + i < count) load<4 * WORDS>((const u8*)(g + (u64)i * apart), near[i]);
            else UNROLL for (int word = 0; word < WORDS; word++) near[i][word] = 0;
        }
        UNROLL for (u32 i = 0; i < AHEAD; i++)
            UNROLL for (int word = 0; word < WORDS; word++) {
                float low = lower(near[i][word]), high = upper(near[i][word]);
                sums[2 * word] = __fmaf_rn(low, low, sums[2 * word]);
                sums[2 * word + 1] = __fmaf_rn(high, high, sums[2 * word + 1]);
            }
    }
}

constexpr u32 NARROW_AT_ONCE = 128;            // threads: four columns each, or two lanes of a row
constexpr u32 NARROW_ROWS = NARROW_AT_ONCE / 8;

// The same of narrow rows.
extern "C" __global__ void __launch_bounds__(NARROW_AT_ONCE, 8)
    second_sums_narrow(const u32* gradient, float* row_averages, float* row_roots, float* sums,
                       const float* column_averages, float* profile, u32 rows, u32 columns, u32 width, float keep,
                       float fresh, float per_root) {
    if (blockIdx.x < profiling(width)) return profile_of(column_averages, profile, columns, width);
    u32 row_parts = GROUP / NARROW_ROWS, parts = row_parts + (columns + 4 * NARROW_AT_ONCE - 1) / (4 * NARROW_AT_ONCE);
    u32 number = gridDim.x - 1 - blockIdx.x, group = number / parts, part = number % parts, first = group * GROUP;
    if (part < row_parts) {
        u32 row = first + part * NARROW_ROWS + threadIdx.x / 8, lanes = threadIdx.x % 8;
        float two[2] = {};
        if (row < rows) sums_of_squares<1>(gradient + (u64)row * (columns / 2) + lanes, columns / BLOCK, BLOCK / 2, two);
        // As `fold`, whose last step is that of the two.
        UNROLL for (int apart = 4; apart > 0; apart /= 2)
            UNROLL for (int i = 0; i < 2; i++) two[i] += __shfl_xor_sync(0xffffffffu, two[i], apart);
        if (row < rows && lanes == 0)
            follow_row({keep, fresh}, per_root, two[0] + two[1], columns, row_averages[row], row_roots[row]);
    } else {
        u32 column = ((part - row_parts) * NARROW_AT_ONCE + threadIdx.x) * 4;
        if (column >= columns) return;
        float four[4];
        sums_of_squares<2>(gradient + ((u64)first * columns + column) / 2, min(GROUP, rows - first), columns / 2, four);
        *(float4*)(sums + (u64)group * columns + column) = make_float4(four[0], four[1], four[2], four[3]);
    }
}

// ---- tensors ----

USUAL(update_nvfp4_byte, Nvfp4Weight<8>)
USUAL_NARROW(update_nvfp4_byte_narrow, Nvfp4Weight<8>)
USUAL(update_nvfp4_nibble, Nvfp4Weight<4>)
USUAL_NARROW(update_nvfp4_nibble_narrow, Nvfp4Weight<4>)
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
