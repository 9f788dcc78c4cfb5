// Gradients of what goes row by row. Rows have the bits of their references; sums over rows are taken in
// chunks, which are added in order.
#include "norm.cuh"

// dx += r g dy - x r^3 mean(g dy x), and r for the gain. Sixteen threads for each row, of any width.
extern "C" __global__ void rms_norm_gradient_any(const void *x, u32 x_narrow, const float *gain, float eps, const float *dy,
                                                 float *dx, float *reciprocals, u32 rows, u32 columns) {
    u64 t = (blockIdx.x * (u64)blockDim.x + threadIdx.x) / 16;
    u32 first = threadIdx.x & 15u;
    bool there = t < rows;
    float squares = 0.0f, products = 0.0f;
    for (u32 c = first; there && c < columns; c += 16) {
        float value = get(x, x_narrow, columns, t, c);
        squares = __fmaf_rn(value, value, squares);
        products = __fmaf_rn(gain[c] * dy[t * columns + c], value, products);
    }
    float r = reciprocal(fold(squares), columns, eps);
    float mean = fold(products) / (float)columns * r * r * r;
    if (!there) return;
    for (u32 c = first; c < columns; c += 16) {
        u64 at = t * columns + c;
        dx[at] += __fmaf_rn(gain[c] * dy[at], r, -(get(x, x_narrow, columns, t, c) * mean));
    }
    if (first == 0) reciprocals[t] = r;
}

const u32 FOURS = 2; // of columns that a thread has

__device__ __forceinline__ float4 four_at(const float *x) { return *(const float4 *)x; }
__device__ __forceinline__ float4 four_at(const u16 *x) { return four_of(*(const uint2 *)x); }

// The same for wide rows of whole fours, x in f32 or narrow. A block takes `chunk` rows, ROWS at a time; a thread has the
// same columns of each, so it sums up their share of the gain's gradient. Each of those rows has two warps for its sums,
// which take long; other blocks of a multiprocessor fetch and write meanwhile.
template <int ROWS, class X>
__device__ __forceinline__ void norm_gradient(const X *x, const float *gain, float eps, const float *dy, float *dx,
                                              float *parts, u32 rows, u32 columns, u32 chunk, void *narrow) {
    const u32 TOGETHER = 16 / sizeof(X); // values of x that are fetched at once; narrow rows have that many at their end
    __shared__ float both[ROWS][2];
    u32 x_columns = (columns + TOGETHER - 1) / TOGETHER * TOGETHER, x_stride = sizeof(X) == 2 ? padded(columns) : columns;
    float *near_gain = (float *)dynamic_shared, *all_dy = near_gain + columns;
    X *all_x = (X *)(all_dy + ROWS * columns);
    u32 first = blockIdx.x * chunk, last = min(first + chunk, rows), warp = threadIdx.x / 32;
    float4 sums[FOURS] = {make_float4(0, 0, 0, 0), make_float4(0, 0, 0, 0)};
    for (u32 c = threadIdx.x * 4; c < columns; c += blockDim.x * 4) start_copy(near_gain + c, gain + c, true);
    for (u32 start = first; start < last; start += ROWS) {
        u32 count = min((u32)ROWS, last - start);
        const u64 at = (u64)start * columns;
        for (u32 c = threadIdx.x * 4; c < columns; c += blockDim.x * 4) {
#pragma unroll
            for (u32 t = 0; t < ROWS; t++) {
                if (t >= count) break;
                start_copy(all_dy + t * columns + c, dy + at + t * columns + c, true);
            }
        }
        for (u32 c = threadIdx.x * TOGETHER; c < columns; c += blockDim.x * TOGETHER) {
#pragma unroll
            for (u32 t = 0; t < ROWS; t++) {
                if (t >= count) break;
                start_copy(all_x + t * x_columns + c, x + (u64)(start + t) * x_stride + c, true);
            }
        }
        float4 d[ROWS][FOURS];
#pragma unroll
        for (u32 i = 0; i < ROWS * FOURS; i++) {
            u32 t = i / FOURS, c = (threadIdx.x + i % FOURS * blockDim.x) * 4;
            if (t < count && c < columns) d[t][i % FOURS] = *(const float4 *)(dx + at + t * columns + c);
        }
        wait_for_copies();
        __syncthreads();
        if (warp < 2 * count) {
            const float *near_dy = all_dy + warp / 2 * columns;
            const X *near_x = all_x + warp / 2 * x_columns;
            float sum = 0.0f;
            if (warp % 2 == 0) sum = reciprocal_of(near_x, columns, eps);
            else for_lane(columns, [&](u64 c) { sum = __fmaf_rn(near_gain[c] * near_dy[c], value_of(near_x + c), sum); });
            if (warp % 2 == 1) sum = fold(sum) / (float)columns;
            if (threadIdx.x % 32 == 0) both[warp / 2][warp % 2] = sum;
        }
        __syncthreads();
#pragma unroll
        for (u32 i = 0; i < ROWS * FOURS; i++) {
            u32 t = i / FOURS, c = (threadIdx.x + i % FOURS * blockDim.x) * 4;
            if (t >= count || c >= columns) continue;
            float r = both[t][0], mean = both[t][1] * r * r * r;
            float4 g = *(const float4 *)(near_gain + c), v = four_at(all_x + t * x_columns + c);
            float4 w = *(const float4 *)(all_dy + t * columns + c), &sum = sums[i % FOURS], &to = d[t][i % FOURS];
            to.x += __fmaf_rn(g.x * w.x, r, -(v.x * mean)), sum.x = __fmaf_rn(w.x, v.x * r, sum.x);
            to.y += __fmaf_rn(g.y * w.y, r, -(v.y * mean)), sum.y = __fmaf_rn(w.y, v.y * r, sum.y);
            to.z += __fmaf_rn(g.z * w.z, r, -(v.z * mean)), sum.z = __fmaf_rn(w.z, v.z * r, sum.z);
            to.w += __fmaf_rn(g.w * w.w, r, -(v.w * mean)), sum.w = __fmaf_rn(w.w, v.w * r, sum.w);
            *(float4 *)(dx + at + t * columns + c) = to;
            if (narrow) put_four(narrow, true, columns, start + t, c, to);
        }
        for (u32 t = 0; t < count; t++) pad(narrow, narrow != nullptr, columns, start + t, threadIdx.x, blockDim.x);
        __syncthreads();
    }
#pragma unroll
    for (u32 i = 0; i < FOURS; i++) {
        u32 c = (threadIdx.x + i * blockDim.x) * 4;
        if (c < columns) *(float4 *)(parts + (u64)blockIdx.x * columns + c) = sums[i];
    }
}

#define NORM_GRADIENT(NAME, ROWS, X, THREADS)                                                                          \
    extern "C" __global__ void __launch_bounds__(THREADS)                                                              \
        NAME(const X *x, const float *gain, float eps, const float *dy, float *dx, float *parts, u32 rows,             \
             u32 columns, u32 chunk, void *narrow) {                                                                   \
        norm_gradient<ROWS, X>(x, gain, eps, dy, dx, parts, rows, columns, chunk, narrow);                             \
    }

NORM_GRADIENT(rms_norm_gradient_1, 1, float, 1024)
NORM_GRADIENT(rms_norm_gradient_2, 2, float, 1024)
NORM_GRADIENT(rms_norm_gradient_4, 4, float, 512)
NORM_GRADIENT(rms_norm_gradient_narrow_1, 1, u16, 1024)
NORM_GRADIENT(rms_norm_gradient_narrow_2, 2, u16, 1024)
NORM_GRADIENT(rms_norm_gradient_narrow_4, 4, u16, 512)

// Sums over the rows of chunk blockIdx.y: of dy, or of dy x r where there is an x.
extern "C" __global__ void column_chunks(const float *dy, const void *x, u32 x_narrow, const float *reciprocals,
                                         float *parts, u32 rows, u32 columns, u32 chunk) {
    u32 column = blockIdx.x * blockDim.x + threadIdx.x, first = blockIdx.y * chunk;
    if (column >= columns) return;
    u32 last = first + chunk < rows ? first + chunk : rows;
    float sum = 0.0f;
#pragma unroll 4
    for (u32 row = first; row < last; row++) {
        float d = dy[(u64)row * columns + column];
        sum = x ? __fmaf_rn(d, get(x, x_narrow, columns, row, column) * reciprocals[row], sum) : sum + d;
    }
    parts[(u64)blockIdx.y * columns + column] = sum;
}

// Adds the chunks to what is there: warp w of a block those whose number is w modulo 32, then warp after warp.
extern "C" __global__ void __launch_bounds__(1024) add_chunks(const float *parts, float *sums, u32 columns, u32 chunks) {
    __shared__ float near[1024];
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, column = blockIdx.x * 32 + lane;
    float sum = 0.0f;
#pragma unroll 16
    for (u32 number = warp; number < chunks; number += 32)
        if (column < columns) sum += parts[(u64)number * columns + column];
    near[threadIdx.x] = sum;
    __syncthreads();
    if (warp > 0 || column >= columns) return;
    sum = sums[column];
#pragma unroll
    for (u32 i = 0; i < 32; i++) sum += near[i * 32 + lane];
    sums[column] = sum;
}

// Turns each pair of a head back; a thread for each pair.
extern "C" __global__ void rope_gradient(float *dx, const float *turns, u32 rows, u32 columns, u32 head_dim) {
    u64 pair = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    u32 half = head_dim / 2, pairs = columns / 2;
    if (pair >= (u64)rows * pairs) return;
    u64 row = pair / pairs;
    u32 head = (u32)(pair % pairs) / half, i = (u32)(pair % pairs) % half;
    float *d1 = dx + row * columns + head * head_dim + i, *d2 = d1 + half;
    float cosine = turns[row * head_dim + i], sine = turns[row * head_dim + half + i];
    float a = *d1, b = *d2;
    *d1 = __fmaf_rn(a, cosine, b * sine);
    *d2 = __fmaf_rn(b, cosine, -(a * sine));
}

// Row words[blockIdx.x] of the table gets its tokens' rows, which stand together in `order`, one after the other.
extern "C" __global__ void embed_gradient(const u32 *words, const u32 *starts, const u32 *order, const float *dy,
                                          float *table, u32 columns) {
    u32 column = blockIdx.y * blockDim.x + threadIdx.x;
    if (column >= columns) return;
    float *place = table + (u64)words[blockIdx.x] * columns + column, sum = *place;
    for (u32 at = starts[blockIdx.x]; at < starts[blockIdx.x + 1]; at++)
        sum += dy[(u64)order[at] * columns + column];
    *place = sum;
}
