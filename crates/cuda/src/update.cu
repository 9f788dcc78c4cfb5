// Tensors learn whose moments have four bits, whose second moments are factored and whose rows are whole: the usual
// ones. Others: `update_any.cu`, `update_masters.cu`.
#include "state/kinds.cuh"
#include "state/usual.cuh"

// ---- second moments ----

constexpr u32 SUMMING = 128; // threads, of a fourth of a tile each; as in update.rs

// Roots of the profile of a tile: averages over their mean, added in f64 in sixteen lanes.
DEVICE void profile_of(const float* averages, float* roots, u32 tile, u32 columns, u32 width) {
    __shared__ float near[TILE], mean;
    u32 first = tile * TILE, there = min(TILE, columns - first);
    // Zeros behind the last one, which add nothing.
    UNROLL for (u32 at = threadIdx.x; at < TILE; at += SUMMING) near[at] = at < there ? averages[first + at] : 0.0f;
    __syncthreads();
    if (threadIdx.x < 32) {
        double lane = 0.0;
        UNROLL for (u32 at = 0; at < TILE; at += BLOCK) lane += near[at + threadIdx.x % BLOCK];
        for (int apart = 8; apart > 0; apart /= 2) lane += __shfl_xor_sync(0xffffffffu, lane, apart);
        if (threadIdx.x == 0) mean = (float)(lane / (double)there);
    }
    __syncthreads();
    for (u32 at = threadIdx.x; at < min(TILE, width - first); at += SUMMING)
        roots[profile_place(first + at)] = mean > 0.0f ? root(near[at] / mean) : 1.0f;
}

// Sums of the squares of columns, of some panels together, of those that are looked at: `first` is the first of them,
// `panels` their number. The last come first: what is read last is what the update reads first. The first thread blocks
// make the profile.
struct Summing {
    u32 column, panel, end, place;

    // Whether there is something to do, a thread taking so many columns.
    DEVICE bool find(u32 each, u32 panels, u32 columns, u32 width, const float* averages, float* profile) {
        u32 tiles = tiles_of(columns);
        if (blockIdx.x < tiles) return profile_of(averages, profile, blockIdx.x, columns, width), false;
        u32 parts = (columns + each * SUMMING - 1) / (each * SUMMING), number = gridDim.x - 1 - blockIdx.x;
        u32 group = number / parts;
        column = (number % parts * SUMMING + threadIdx.x) * each;
        panel = group * TOGETHER, end = min(panel + TOGETHER, panels), place = group * columns + column;
        return column < columns;
    }
};

extern "C" __global__ void __launch_bounds__(SUMMING)
    column_sums(const float* gradient, float* sums, const float* averages, float* profile, u32 first, u32 panels, u32 rows,
                u32 columns, u32 width) {
    Summing at;
    if (!at.find(1, panels, columns, width, averages, profile)) return;
    float total = 0.0f;
    for (u32 panel = at.panel; panel < at.end; panel++) {
        u32 row = (first + panel * APART) * GROUP;
        float near[GROUP], sum = 0.0f;
        // Zeros add nothing.
        UNROLL for (u32 i = 0; i < GROUP; i++)
            near[i] = row + i < rows ? gradient[(u64)(row + i) * columns + at.column] : 0.0f;
        UNROLL for (u32 i = 0; i < GROUP; i++) sum = __fmaf_rn(near[i], near[i], sum);
        total += sum;
    }
    sums[at.place] = total;
}

// The same of narrow rows, four columns each.
extern "C" __global__ void __launch_bounds__(SUMMING)
    column_sums_narrow(const u16* gradient, float* sums, const float* averages, float* profile, u32 first, u32 panels,
                       u32 rows, u32 columns, u32 width) {
    Summing at;
    if (!at.find(4, panels, columns, width, averages, profile)) return;
    // All of them are read before the first is needed; zeros add nothing.
    uint2 near[TOGETHER][GROUP];
    UNROLL for (u32 panel = 0; panel < TOGETHER; panel++) {
        u32 row = (first + (at.panel + panel) * APART) * GROUP;
        const u16* from = gradient + (u64)row * columns + at.column;
        UNROLL for (u32 i = 0; i < GROUP; i++)
            near[panel][i] = row + i < rows ? *(const uint2*)(from + (u64)i * columns) : make_uint2(0, 0);
    }
    float total[4] = {};
    UNROLL for (u32 panel = 0; panel < TOGETHER; panel++) {
        float sum[4] = {};
        UNROLL for (u32 i = 0; i < GROUP; i++) {
            uint2 of = near[panel][i];
            float four[4] = {lower(of.x), upper(of.x), lower(of.y), upper(of.y)};
            UNROLL for (int j = 0; j < 4; j++) sum[j] = __fmaf_rn(four[j], four[j], sum[j]);
        }
        UNROLL for (int j = 0; j < 4; j++) total[j] += sum[j];
    }
    *(float4*)(sums + at.place) = make_float4(total[0], total[1], total[2], total[3]);
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
    float along = clamped(m * (1.0f / (root(v) * step.per_root + step.eps)), -step.limit, step.limit);
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
