// Gradients of what goes row by row. Rows have the bits of their references; sums over rows are taken in
// chunks, which are added in order.
#include "norm.cuh"

// dx += r g dy - x r^3 mean(g dy x), and r for the gain. Sixteen threads for each row that is short.
extern "C" __global__ void rms_norm_gradient_heads(const float *x, const float *gain, float eps, const float *dy,
                                                   float *dx, float *reciprocals, u32 rows, u32 columns) {
    u64 t = (blockIdx.x * (u64)blockDim.x + threadIdx.x) / 16;
    u32 first = threadIdx.x & 15u;
    bool there = t < rows;
    float squares = 0.0f, products = 0.0f;
    for (u32 c = first; there && c < columns; c += 16) {
        float value = x[t * columns + c];
        squares = __fmaf_rn(value, value, squares);
        products = __fmaf_rn(gain[c] * dy[t * columns + c], value, products);
    }
    float r = reciprocal(fold(squares), columns, eps);
    float mean = fold(products) / (float)columns * r * r * r;
    if (!there) return;
    for (u32 c = first; c < columns; c += 16) {
        u64 at = t * columns + c;
        dx[at] += __fmaf_rn(gain[c] * dy[at], r, -(x[at] * mean));
    }
    if (first == 0) reciprocals[t] = r;
}

// The same with a block for each row, which is brought into shared memory first.
extern "C" __global__ void rms_norm_gradient(const float *x, const float *gain, float eps, const float *dy, float *dx,
                                             float *reciprocals, u32 rows, u32 columns) {
    float *both = (float *)dynamic_shared, *near_x = both + 4, *near_dy = near_x + columns;
    u64 start = (u64)blockIdx.x * columns;
    for (u32 c = threadIdx.x; c < columns; c += blockDim.x) {
        near_x[c] = x[start + c];
        near_dy[c] = gain[c] * dy[start + c];
    }
    __syncthreads();
    if (threadIdx.x < 32) {
        float squares = 0.0f, products = 0.0f;
#pragma unroll 8
        for (u32 c = threadIdx.x & 15u; c < columns; c += 16) {
            squares = __fmaf_rn(near_x[c], near_x[c], squares);
            products = __fmaf_rn(near_dy[c], near_x[c], products);
        }
        float r = reciprocal(fold(squares), columns, eps), sum = fold(products);
        if (threadIdx.x == 0) both[0] = reciprocals[blockIdx.x] = r, both[1] = sum / (float)columns * r * r * r;
    }
    __syncthreads();
    for (u32 c = threadIdx.x; c < columns; c += blockDim.x)
        dx[start + c] += __fmaf_rn(near_dy[c], both[0], -(near_x[c] * both[1]));
}

// Sums over the rows of chunk blockIdx.y: of dy, or of dy x r where there is an x.
extern "C" __global__ void column_chunks(const float *dy, const float *x, const float *reciprocals, float *parts,
                                         u32 rows, u32 columns, u32 chunk) {
    u32 column = blockIdx.x * blockDim.x + threadIdx.x, first = blockIdx.y * chunk;
    if (column >= columns) return;
    u32 last = first + chunk < rows ? first + chunk : rows;
    float sum = 0.0f;
#pragma unroll 4
    for (u32 row = first; row < last; row++) {
        u64 at = (u64)row * columns + column;
        sum = x ? __fmaf_rn(dy[at], x[at] * reciprocals[row], sum) : sum + dy[at];
    }
    parts[(u64)blockIdx.y * columns + column] = sum;
}

// Adds the chunks to what is there, in their order.
extern "C" __global__ void add_chunks(const float *parts, float *sums, u32 columns, u32 chunks) {
    u32 column = blockIdx.x * blockDim.x + threadIdx.x;
    if (column >= columns) return;
    float sum = sums[column];
    for (u32 number = 0; number < chunks; number++) sum += parts[(u64)number * columns + column];
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
