// Gradients of products on tensor cores, what is multiplied rounded to bf16:
// dx[t,k] = s * sum_n dy[t,n] w[n,k],  dw[n,k] = sum_t dy[t,n] x[t,k],
// and those of a gated pair from the dx of the product behind it.
//
// Both are c[m,n] = sum_k a[m,k] b[k,n], with b as it lies in memory, row k after row k, and a either way. A block
// of 8 warps makes 128 by 128, two warps along m, four along n. Tiles of 64 inner positions stand in shared
// memory twice, so that one is filled while the other is multiplied.
#include "gated.cuh"
#include "weight_tile.cuh"

struct Matrix {
    const void *rows;
    u32 narrow, count, columns;
    u32 first; // column that counts as the first
};

// Where results go: `out`, or dgate and dup of what `gate` and `up` were.
struct Results {
    void *out, *dup;
    const void *gate, *up;
    u32 kept_narrow, out_narrow, dup_narrow, added, rows, columns;
};

__device__ __forceinline__ void finish(const Results &r, u32 row, u32 column, float sum) {
    if (row >= r.rows || column >= r.columns) return;
    float *to = (float *)r.out + (u64)row * r.columns + column;
    *to = r.added ? *to + sum : sum;
}

__device__ __forceinline__ void finish_gated(const Results &r, u32 row, u32 column, float dy) {
    if (row >= r.rows || column >= padded(r.columns)) return;
    bool there = column < r.columns;
    float g = there ? get(r.gate, r.kept_narrow, r.columns, row, column) : 0.0f;
    float u = there ? get(r.up, r.kept_narrow, r.columns, row, column) : 0.0f;
    GatedGradient of = gated_gradient_of(g, u, dy, sigmoid(g));
    // Beyond the last column come the zeros that pad narrow rows.
    if (there || r.out_narrow) put(r.out, r.out_narrow, r.columns, row, column, there ? of.dgate : 0.0f);
    if (there || r.dup_narrow) put(r.dup, r.dup_narrow, r.columns, row, column, there ? of.dup : 0.0f);
}

// ROWS rows of 64 columns, rounded to bf16, into shared memory; zeros where nothing is.
template <int ROWS>
__device__ __forceinline__ void fetch(const Matrix &from, u8 *tile, u32 first_row, u32 first_column) {
    first_column += from.first;
    if (from.narrow) {
        u32 width = padded(from.columns);
        for (u32 i = threadIdx.x; i < ROWS * 8; i += 256) {
            u32 row = first_row + i / 8, column = first_column + i % 8 * 8;
            bool there = row < from.count && column < width;
            const u16 *place = (const u16 *)from.rows + (there ? (u64)row * width + column : 0);
            start_copy(chunk_at(tile, i / 8, i % 8), place, there);
        }
        return;
    }
    for (u32 i = threadIdx.x; i < ROWS * 32; i += 256) {
        u32 row = first_row + i / 32, column = first_column + i % 32 * 2;
        const float *place = (const float *)from.rows + (u64)row * from.columns + column;
        float low = row < from.count && column < from.columns ? place[0] : 0.0f;
        float high = row < from.count && column + 1 < from.columns ? place[1] : 0.0f;
        *(u32 *)(chunk_at(tile, i / 32, i % 32 / 4) + i % 4 * 4) = pair_of(low, high);
    }
}

const u32 TILE = 64 * 128;              // bytes: 64 rows of 64 bf16
const u32 STAGE = 4 * TILE;             // two tiles of a, two of b
const u32 RESULTS = 136;                // floats from one row of results to the next in shared memory

// An operand comes in two steps, before a tile is multiplied and after: `start` asks memory for the next one,
// `keep` puts what has come meanwhile into its place.

// a as it lies, 128 rows of 64 inner positions; or turned, 64 inner positions of 128 rows, as b.
template <bool TURNED> struct Rows {
    Matrix of;
    struct Raw {};

    __device__ __forceinline__ Raw start(u8 *tiles, u32 first, u32 k) const {
        if (TURNED) {
            fetch<64>(of, tiles, k, first);
            fetch<64>(of, tiles + TILE, k, first + 64);
        } else {
            fetch<128>(of, tiles, first, k);
        }
        return Raw();
    }

    __device__ __forceinline__ void keep(u8 *, const Raw &) const { wait_for_copies(); }
};

// b of a weight, 64 of its rows, decoded; four threads for each row, 32 values each.
template <int FORMAT> struct Decoded {
    const u8 *weight;
    u32 rows, columns;
    typedef RawValues<FORMAT> Raw;

    __device__ __forceinline__ Raw start(u8 *, u32 first, u32 k) const {
        u32 part = threadIdx.x % 4;
        WeightRow<FORMAT> source(weight, rows, columns, k + threadIdx.x / 4);
        source.there = source.there && first + part * 32 < padded(columns);
        return source.load(first / 32 + part);
    }

    __device__ __forceinline__ void keep(u8 *tiles, const Raw &raw) const {
        u32 row = threadIdx.x / 4, part = threadIdx.x % 4, pairs[16];
        decode<FORMAT>(raw, pairs);
        u8 *tile = tiles + part / 2 * TILE;
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            uint4 *to = (uint4 *)chunk_at(tile, row, part % 2 * 4 + i);
            *to = make_uint4(pairs[4 * i], pairs[4 * i + 1], pairs[4 * i + 2], pairs[4 * i + 3]);
        }
    }
};

// One tile of 64 inner positions: each warp its 64 by 32.
template <bool TURNED>
__device__ __forceinline__ void multiply(u8 *a, u8 *b, float (&sums)[4][4][4], u32 warp_m, u32 warp_n) {
    u32 lane = threadIdx.x % 32, low = lane & 7u, eight = lane >> 3 & 1u, sixteen = lane >> 4;
#pragma unroll
    for (u32 k = 0; k < 64; k += 16) {
        u32 of_b[2][4];
#pragma unroll
        for (u32 j = 0; j < 2; j++) {
            u32 column = warp_n * 32 + j * 16;
            u8 *tile = b + column / 64 * TILE;
            load_tiles_transposed(of_b[j], chunk_at(tile, k + low + eight * 8, column % 64 / 8 + sixteen));
        }
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            u32 of_a[4];
            if (TURNED) {
                u8 *place = chunk_at(a + warp_m * TILE, k + low + sixteen * 8, i * 2 + eight);
                load_tiles_transposed(of_a, place);
            } else {
                load_tiles(of_a, chunk_at(a, warp_m * 64 + i * 16 + (lane & 15u), k / 8 + sixteen));
            }
#pragma unroll
            for (u32 j = 0; j < 4; j++)
                multiply_tile(sums[i][j], of_a, of_b[j / 2][j % 2 * 2], of_b[j / 2][j % 2 * 2 + 1]);
        }
    }
}

template <bool TURNED, bool GATED, class B>
__device__ __forceinline__ void product(const Matrix &rows, const B &b, u32 inner, float scale, const Results &r) {
    Rows<TURNED> a = {rows};
    u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, warp_m = warp / 4, warp_n = warp % 4;
    u32 first_m = blockIdx.x * 128, first_n = blockIdx.y * 128;
    float sums[4][4][4] = {};
    // The first turn has nothing to multiply, the last one nothing to bring.
    for (u32 k = 0, stage = 0; k < inner + 64; k += 64, stage ^= 1) {
        u8 *next = dynamic_shared + stage * STAGE, *now = dynamic_shared + (stage ^ 1) * STAGE;
        typename Rows<TURNED>::Raw raw_a;
        typename B::Raw raw_b;
        if (k < inner) raw_a = a.start(next, first_m, k), raw_b = b.start(next + 2 * TILE, first_n, k);
        if (k > 0) multiply<TURNED>(now, now + 2 * TILE, sums, warp_m, warp_n);
        if (k < inner) b.keep(next + 2 * TILE, raw_b), a.keep(next, raw_a);
        __syncthreads();
    }
    // The sums go through shared memory, so that neighbours write neighbours.
    float *results = (float *)dynamic_shared;
#pragma unroll
    for (u32 i = 0; i < 4; i++) {
#pragma unroll
        for (u32 j = 0; j < 4; j++) {
            float *to = results + (warp_m * 64 + i * 16 + lane / 4) * RESULTS + warp_n * 32 + j * 8 + lane % 4 * 2;
            to[0] = sums[i][j][0], to[1] = sums[i][j][1];
            to[8 * RESULTS] = sums[i][j][2], to[8 * RESULTS + 1] = sums[i][j][3];
        }
    }
    __syncthreads();
    for (u32 i = threadIdx.x; i < 128 * 128; i += 256) {
        u32 row = i / 128, column = i % 128;
        float sum = results[row * RESULTS + column] * scale;
        if (GATED) finish_gated(r, first_m + row, first_n + column, sum);
        else finish(r, first_m + row, first_n + column, sum);
    }
}

// ---- nothing rounded, in the order of ops::dot: the bits of the CPU ----

const u32 SIDE = 32, GROUP = 32;

// 32 by 32, each thread 2 by 2. a[m,k] stands at a[m * a_row + k * a_inner], b[k,n] at b[k * b_row + n].
template <bool GATED>
__device__ __forceinline__ void exact(const float *a, u64 a_row, u64 a_inner, const float *b, u64 b_row, u32 inner,
                                      const Results &r) {
    __shared__ float near_a[SIDE][GROUP + 1], near_b[SIDE][GROUP + 1];
    u32 first_m = blockIdx.x * SIDE, first_n = blockIdx.y * SIDE, row = threadIdx.x / 16, column = threadIdx.x % 16;
    float totals[2][2] = {};
    for (u32 start = 0; start < inner; start += GROUP) {
        for (u32 i = threadIdx.x; i < SIDE * GROUP; i += 256) {
            // Neighbours in memory are brought by neighbours.
            u32 m = a_inner == 1 ? i / GROUP : i % SIDE, k = a_inner == 1 ? i % GROUP : i / SIDE;
            bool there = first_m + m < r.rows && start + k < inner;
            near_a[m][k] = there ? a[(first_m + m) * a_row + (start + k) * a_inner] : 0.0f;
            u32 n = i % SIDE, of_b = i / SIDE;
            there = first_n + n < r.columns && start + of_b < inner;
            near_b[n][of_b] = there ? b[(start + of_b) * b_row + first_n + n] : 0.0f;
        }
        __syncthreads();
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            float even = 0.0f, odd = 0.0f;
#pragma unroll
            for (u32 k = 0; k < GROUP; k += 2) {
                even = __fmaf_rn(near_a[row + i / 2 * 16][k], near_b[column + i % 2 * 16][k], even);
                odd = __fmaf_rn(near_a[row + i / 2 * 16][k + 1], near_b[column + i % 2 * 16][k + 1], odd);
            }
            totals[i / 2][i % 2] += even + odd;
        }
        __syncthreads();
    }
#pragma unroll
    for (u32 i = 0; i < 4; i++) {
        u32 m = first_m + row + i / 2 * 16, n = first_n + column + i % 2 * 16;
        if (GATED) finish_gated(r, m, n, totals[i / 2][i % 2]);
        else finish(r, m, n, totals[i / 2][i % 2]);
    }
}

// ---- kernels ----

#define WEIGHT_OPERANDS const void *dy, u32 dy_narrow, const u8 *weight, u32 tokens, u32 outputs, u32 inputs
#define GATED_RESULTS                                                                                                  \
    void *dgate, void *dup, const void *gate, const void *up, u32 kept_narrow, u32 gate_narrow, u32 up_narrow

#define INPUT_GRADIENT(FORMAT, name)                                                                                   \
    extern "C" __global__ void __launch_bounds__(256, 2) input_gradient_##name(WEIGHT_OPERANDS, float *dx, u32 added) {   \
        Results results = {dx, nullptr, nullptr, nullptr, 0, 0, 0, added, tokens, inputs};                                \
        product<false, false>(Matrix{dy, dy_narrow, tokens, outputs, 0}, Decoded<FORMAT>{weight, outputs, inputs},        \
                              outputs, tensor_scale(weight, FORMAT), results);                                         \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(256, 2) gated_gradient_##name(WEIGHT_OPERANDS, GATED_RESULTS) {          \
        Results results = {dgate, dup, gate, up, kept_narrow, gate_narrow, up_narrow, 0, tokens, inputs};                           \
        product<false, true>(Matrix{dy, dy_narrow, tokens, outputs, 0}, Decoded<FORMAT>{weight, outputs, inputs},         \
                             outputs, tensor_scale(weight, FORMAT), results);                                          \
    }

INPUT_GRADIENT(BF16, bf16)
INPUT_GRADIENT(INT8, int8)
INPUT_GRADIENT(NVFP4, nvfp4)

extern "C" __global__ void __launch_bounds__(256) input_gradient_f32(WEIGHT_OPERANDS, float *dx, u32 added) {
    Results results = {dx, nullptr, nullptr, nullptr, 0, 0, 0, added, tokens, inputs};
    // Panels of 16 rows are rows one after the other, padded.
    exact<false>((const float *)dy, outputs, 1, (const float *)(weight + 64), padded(inputs), outputs, results);
}

extern "C" __global__ void __launch_bounds__(256) gated_gradient_f32(WEIGHT_OPERANDS, GATED_RESULTS) {
    Results results = {dgate, dup, gate, up, kept_narrow, gate_narrow, up_narrow, 0, tokens, inputs};
    exact<true>((const float *)dy, outputs, 1, (const float *)(weight + 64), padded(inputs), outputs, results);
}

#define ROWS_OPERANDS const void *dy, u32 dy_narrow, const void *x, u32 x_narrow, u32 tokens, u32 outputs, u32 inputs

#define ROWS_RESULTS u32 first, float *dw, u32 rows

extern "C" __global__ void __launch_bounds__(256, 2) weight_gradient_bf16(ROWS_OPERANDS, ROWS_RESULTS) {
    Results results = {dw, nullptr, nullptr, nullptr, 0, 0, 0, 0, rows, inputs};
    Rows<true> b = {{x, x_narrow, tokens, inputs, 0}};
    product<true, false>(Matrix{dy, dy_narrow, tokens, outputs, first}, b, tokens, 1.0f, results);
}

extern "C" __global__ void __launch_bounds__(256) weight_gradient_f32(ROWS_OPERANDS, ROWS_RESULTS) {
    Results results = {dw, nullptr, nullptr, nullptr, 0, 0, 0, 0, rows, inputs};
    exact<false>((const float *)dy + first, 1, outputs, (const float *)x, inputs, tokens, results);
}
