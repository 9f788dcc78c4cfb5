// Both sides of a product in fewer bits than bf16, as cuBLASLt takes them. Rows end at a multiple of 64 values, with zeros.
//
// E4M3: every row is divided by a power of two, so that only the rounding to four significant bits loses anything.
// E2M1: a weight keeps its codes and scales; tokens are quantised as `nvfp4::encode_row` does it, all of them as one tensor.
// On the way back gradients are rounded at random, and so is a weight that takes part across its own blocks.
#include "common.cuh"
#include "state/draw.cuh"
#include "state/quantize.cuh"

// ---- rows of tokens ----

// Eight values as a product takes them, zeros after the last column.
__device__ __forceinline__ void eight_of(const void *x, u32 narrow, u32 columns, u64 row, u32 column, float (&out)[8]) {
    if (narrow) {
        uint4 pairs = *(const uint4 *)((const u16 *)x + row * padded(columns) + column);
        u32 of[4] = {pairs.x, pairs.y, pairs.z, pairs.w};
#pragma unroll
        for (u32 i = 0; i < 4; i++) out[2 * i] = float_of((u16)of[i]), out[2 * i + 1] = float_of((u16)(of[i] >> 16));
        return;
    }
    const float *from = (const float *)x + row * columns;
#pragma unroll
    for (u32 i = 0; i < 8; i++) out[i] = column + i < columns ? rounded(from[column + i]) : 0.0f;
}

// The bits of the largest magnitude of a row, for every thread of a block of 128.
__device__ __forceinline__ u32 largest_of_row(const void *x, u32 narrow, u32 columns, u64 row) {
    __shared__ u32 of_warps[4];
    u32 largest = 0;
    for (u32 c = threadIdx.x * 8; c < padded(columns); c += 128 * 8) {
        float eight[8];
        eight_of(x, narrow, columns, row, c, eight);
#pragma unroll
        for (u32 i = 0; i < 8; i++) largest = max(largest, __float_as_uint(eight[i]) & 0x7fffffffu);
    }
    for (int width = 16; width > 0; width /= 2) largest = max(largest, __shfl_xor_sync(0xffffffffu, largest, width));
    if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = largest;
    __syncthreads();
    return max(max(of_warps[0], of_warps[1]), max(of_warps[2], of_warps[3]));
}

// ---- E4M3 ----

struct Power {
    float power, inverse;
};

// The power of two by which magnitudes up to this one are 448 at most, which is 1.75 * 2^8.
__device__ __forceinline__ Power power_for(u32 largest_bits) {
    int exponent = state::clamped((int)((largest_bits + 0x1fffffu) >> 23) - 8, 1, 245);
    return {__uint_as_float((u32)exponent << 23), __uint_as_float((254u - exponent) << 23)};
}

// `state::to_e4m3` of what is neither NaN nor above 448, without branches.
__device__ __forceinline__ u32 magnitude_of(float a) {
    u32 bits = __float_as_uint(a), small = __float_as_uint(a + 16384.0f) - 0x46800000u;
    u32 large = ((bits + 0x7ffffu + (bits >> 20 & 1u)) >> 20) - (120u << 3);
    return a < 0.015625f ? small : large;
}

// What is not finite becomes NaN, for there is no infinity.
__device__ __forceinline__ u32 e4m3_of(float x, float inverse) {
    u32 bits = __float_as_uint(x), magnitude = bits & 0x7fffffffu;
    u32 byte = magnitude_of(__uint_as_float(magnitude) * inverse);
    return (magnitude >= 0x7f800000u ? 0x7fu : byte) | (bits >> 24 & 0x80u);
}

// A block for each token.
extern "C" __global__ void __launch_bounds__(128) tokens_e4m3(const void *x, u32 narrow, u32 columns, u8 *out, float *scales) {
    u64 t = blockIdx.x;
    u32 width = padded(columns);
    Power by = power_for(largest_of_row(x, narrow, columns, t));
    if (threadIdx.x == 0) scales[t] = by.power;
    for (u32 c = threadIdx.x * 8; c < width; c += 128 * 8) {
        float eight[8];
        eight_of(x, narrow, columns, t, c, eight);
        u32 low = 0, high = 0;
#pragma unroll
        for (u32 i = 0; i < 4; i++)
            low |= e4m3_of(eight[i], by.inverse) << 8 * i, high |= e4m3_of(eight[i + 4], by.inverse) << 8 * i;
        *(uint2 *)(out + t * width + c) = make_uint2(low, high);
    }
}

// The codes in the low half of a word as bytes: one of eight magnitudes, and a sign.
__device__ __forceinline__ u32 four_of(u32 codes, u32 low, u32 high) {
    return __byte_perm(low, high, codes & 0x7777u) | __byte_perm(0x8000u, 0u, codes >> 3 & 0x1111u);
}

// A warp for each row of an NVFP4 weight; without the tensor's own scale.
extern "C" __global__ void __launch_bounds__(256)
    weight_e4m3(const u8 *weight, u32 columns, u32 first_row, u32 rows, uint4 *out, float *scales) {
    u32 row = blockIdx.x * 8 + threadIdx.x / 32, lane = threadIdx.x % 32, blocks = padded(columns) / 16;
    if (row >= rows) return;
    const u8 *panel = panel_of(weight, NVFP4, columns, first_row + row);
    const u8 *given = scales_of(panel, NVFP4, columns, first_row + row);
    const uint2 *codes = (const uint2 *)codes_of(panel, NVFP4, columns, first_row + row);
    u32 largest = 0;
    for (u32 i = lane; i < blocks; i += 32) largest = max(largest, given[i] & 0x7fu);
    for (int width = 16; width > 0; width /= 2) largest = max(largest, __shfl_xor_sync(0xffffffffu, largest, width));
    Power by = power_for(__float_as_uint(6.0f * e4m3(min(largest, 0x7eu))));
    if (lane == 0) scales[row] = by.power;
#pragma unroll 4
    for (u32 i = lane; i < blocks; i += 32) {
        // A scale that is NaN spoils its block.
        u32 scale = given[i], low = (scale & 0x7fu) == 0x7fu ? 0x7f7f7f7fu : 0u, high = low;
        float unit = e4m3(min(scale & 0x7fu, 0x7eu)) * by.inverse;
#pragma unroll
        for (u32 code = 0; code < 4; code++)
            low |= magnitude_of(e2m1(code) * unit) << 8 * code, high |= magnitude_of(e2m1(code + 4) * unit) << 8 * code;
        u32 turn = scale & 0x80u ? 0x80808080u : 0u;
        uint2 of = codes[i];
        out[(u64)row * blocks + i] = make_uint4(four_of(of.x, low, high) ^ turn, four_of(of.x >> 16, low, high) ^ turn,
                                                four_of(of.y, low, high) ^ turn, four_of(of.y >> 16, low, high) ^ turn);
    }
}

// ---- E2M1, a scale for each 16: in tiles of 128 rows and four scales (`formats::blocked`) ----

// Which word of the scales belongs to 64 values of a row.
__device__ __forceinline__ u64 word_of(u32 row, u32 unit, u32 units) {
    return ((u64)(row / 128) * units + unit) * 128 + row % 32 * 4 + row % 128 / 32;
}

// The bits of the largest finite magnitude of all rows; a block of 128 for each.
extern "C" __global__ void __launch_bounds__(128) largest_magnitude(const void *x, u32 narrow, u32 columns, u32 *out) {
    u32 largest = largest_of_row(x, narrow, columns, blockIdx.x);
    if (threadIdx.x == 0 && largest < 0x7f800000u) atomicMax(out, largest);
}

// `nvfp4::tensor_scale`
__device__ __forceinline__ float scale_for(u32 largest_bits) {
    float scale = __uint_as_float(largest_bits) / 2688.0f;
    return scale >= __uint_as_float(11u << 23) ? scale : 1.0f;
}

// To nearest, or at random with the words of a key.
struct Rounding {
    u32 random;
    state::Draws draws;
};

// `rounding::stochastic_e2m1` of what is finite: whole steps of the grid, and one more as the bits decide. Only some chips
// have an instruction for this (cvt.rs: sm_100a and sm_103a, not sm_120 and sm_121), and it weighs its bits otherwise than the
// CPU; so all do it so.
__device__ __forceinline__ u32 random_e2m1(float x, u32 bits) {
    float a = fminf(fabsf(x), 6.0f), steps = a * (a < 2.0f ? 2.0f : a < 4.0f ? 1.0f : 0.5f);
    u32 below = (u32)steps;
    bool up = (float)(bits >> 8) * __uint_as_float(103u << 23) < steps - (float)below;
    return (below + (a < 2.0f ? 0u : a < 4.0f ? 2u : 4u) + up) | (__float_as_uint(x) >> 28 & 8u);
}

// `nvfp4::encode_row_stochastic` of one block of finite numbers.
__device__ __forceinline__ void quantize_at_random(const float (&x)[16], float global, state::Draws draws, u64 element,
                                                   u32 (&codes)[2], u8 &scale) {
    float amax = __uint_as_float(state::largest_bits(x)), y = state::clamped(amax / 6.0f / global, 0.015625f, 448.0f);
    scale = state::to_e4m3(y);
    scale += state::e4m3(scale) < y;
    float inverse = (1.0f / global) / state::e4m3(scale);
    state::Own luck = {state::draw_pairs(draws, element)};
#pragma unroll
    for (int i = 0; i < 16; i++) state::put_nibble(codes, i, random_e2m1(x[i] * inverse, luck[i]));
}

// Sixteen values, of which the first has this number; gives their scale.
__device__ __forceinline__ u32 quantize(const float (&x)[16], float global, Rounding by, u64 element, uint2 *out) {
    u32 codes[2] = {0, 0};
    u8 scale = 0x7f;
    if (state::largest_bits(x) < 0x7f800000u) {
        if (by.random) quantize_at_random(x, global, by.draws, element, codes, scale);
        else state::quantize_nvfp4(x, global, state::NEAREST, codes, scale);
    }
    *out = make_uint2(codes[0], codes[1]);
    return scale;
}

// A thread for each 64 values; rows go on to the end of their tile. `factor` becomes what results are multiplied by; the
// first row has this number.
extern "C" __global__ void __launch_bounds__(128)
    rows_e2m1(const void *x, u32 narrow, u32 columns, u32 rows, const u32 *largest, const float *other_scale, uint2 *out,
              u32 *scales, float *factor, u32 first, u32 random, u32 key0, u32 key1) {
    u32 units = padded(columns) / 64, index = blockIdx.x * 128 + threadIdx.x, row = index / units, unit = index % units;
    float global = scale_for(*largest);
    if (index == 0) *factor = other_scale ? global * *other_scale : global;
    u32 bytes = 0;
#pragma unroll 1
    for (u32 i = 0; i < 4 && row < rows; i++) {
        float values[16], low[8], high[8];
        eight_of(x, narrow, columns, row, unit * 64 + i * 16, low), eight_of(x, narrow, columns, row, unit * 64 + i * 16 + 8, high);
#pragma unroll
        for (u32 k = 0; k < 8; k++) values[k] = low[k], values[k + 8] = high[k];
        u64 element = ((u64)(first + row) * units + unit) * 64 + i * 16;
        bytes |= quantize(values, global, {random, {key0, key1}}, element, out + ((u64)row * units + unit) * 4 + i) << 8 * i;
    }
    scales[word_of(row, unit, units)] = bytes;
}

// A thread for each 64 values of an NVFP4 weight, as they are; rows go on to the end of their tile.
extern "C" __global__ void __launch_bounds__(128)
    weight_e2m1(const u8 *weight, u32 columns, u32 first_row, u32 rows, uint4 *out, u32 *scales) {
    u32 units = padded(columns) / 64, index = blockIdx.x * 128 + threadIdx.x, row = index / units, unit = index % units;
    u32 bytes = 0;
    if (row < rows) {
        const u8 *panel = panel_of(weight, NVFP4, columns, first_row + row);
        const uint4 *codes = (const uint4 *)codes_of(panel, NVFP4, columns, first_row + row) + unit * 2;
        bytes = ((const u32 *)scales_of(panel, NVFP4, columns, first_row + row))[unit];
        uint4 *to = out + ((u64)row * units + unit) * 2;
        to[0] = codes[0], to[1] = codes[1];
    }
    scales[word_of(row, unit, units)] = bytes;
}

// ---- E2M1 of what lies across: columns become rows, and sixteen rows share a scale ----

// Narrow or f32 rows, with the values that a product takes.
struct Given {
    const void *x;
    u32 narrow, columns, rows;

    __device__ __forceinline__ float value(u32 row, u32 column) const {
        return row < rows ? rounded(get(x, narrow, columns, row, column)) : 0.0f;
    }
};

struct GivenWeight {
    const u8 *weight;
    u32 columns, rows;

    __device__ __forceinline__ float value(u32 row, u32 column) const {
        return row < rows ? weight_value(weight, NVFP4, columns, row, column) : 0.0f;
    }
};

// Sixteen rows of a column.
template <class Source> __device__ __forceinline__ void sixteen_of(Source x, u32 row, u32 column, float (&out)[16]) {
#pragma unroll
    for (u32 i = 0; i < 16; i++) out[i] = x.value(row + i, column);
}

// `hadamard::transform`
__device__ __forceinline__ void transform(float (&x)[16], u32 signs) {
#pragma unroll
    for (u32 i = 0; i < 16; i++) x[i] = __uint_as_float(__float_as_uint(x[i]) ^ (signs >> i & 1u) << 31);
#pragma unroll
    for (u32 h = 1; h < 16; h *= 2) {
#pragma unroll
        for (u32 i = 0; i < 16; i++) {
            if (i & h) continue;
            float a = x[i], b = x[i + h];
            x[i] = a + b, x[i + h] = a - b;
        }
    }
#pragma unroll
    for (u32 i = 0; i < 16; i++) x[i] *= 0.25f;
}

// The bits of the largest finite magnitude that `columns_e2m1` rounds; a thread for each 64 of them.
extern "C" __global__ void __launch_bounds__(128)
    largest_transformed(const void *x, u32 narrow, u32 columns, u32 rows, u32 first_column, u32 count, u32 signs, u32 *out) {
    u32 c = blockIdx.x * 128 + threadIdx.x, largest = 0;
#pragma unroll 1
    for (u32 i = 0; i < 4 && c < count; i++) {
        float values[16];
        sixteen_of(Given{x, narrow, columns, rows}, blockIdx.y * 64 + i * 16, first_column + c, values);
        transform(values, signs);
#pragma unroll
        for (u32 k = 0; k < 16; k++) {
            u32 bits = __float_as_uint(values[k]) & 0x7fffffffu;
            largest = max(largest, bits < 0x7f800000u ? bits : 0u);
        }
    }
    for (int width = 16; width > 0; width /= 2) largest = max(largest, __shfl_xor_sync(0xffffffffu, largest, width));
    if (threadIdx.x % 32 == 0) atomicMax(out, largest);
}

// Rows of a column, 64 of them from this unit on; `element` is the number of the first.
template <bool TRANSFORMED, class Source>
__device__ __forceinline__ void column_e2m1(Source x, u32 column, u32 signs, float global, Rounding by, u64 element, uint2 *out,
                                            u32 *scales) {
    u32 unit = blockIdx.y, units = gridDim.y, row = blockIdx.x * 128 + threadIdx.x, bytes = 0;
#pragma unroll 1
    for (u32 i = 0; i < 4; i++) {
        float values[16];
        sixteen_of(x, unit * 64 + i * 16, column, values);
        if (TRANSFORMED) transform(values, signs);
        bytes |= quantize(values, global, by, element + i * 16, out + ((u64)row * units + unit) * 4 + i) << 8 * i;
    }
    scales[word_of(row, unit, units)] = bytes;
}

// A thread for each 64 rows of a column, to the end of a tile of 128 columns. The rows are those from `first_row` on of
// `of_rows`, by which elements are numbered; `factor` as above.
extern "C" __global__ void __launch_bounds__(128)
    columns_e2m1(const void *x, u32 narrow, u32 columns, u32 rows, u32 first_column, u32 count, u32 signs, const u32 *largest,
                 const float *other_scale, uint2 *out, u32 *scales, float *factor, u32 first_row, u32 of_rows, u32 random,
                 u32 key0, u32 key1) {
    u32 c = blockIdx.x * 128 + threadIdx.x;
    float global = scale_for(*largest);
    if (c == 0 && blockIdx.y == 0) *factor = other_scale ? global * *other_scale : global;
    u64 element = (u64)(first_column + c) * padded(of_rows) + first_row + blockIdx.y * 64;
    Given given = {x, narrow, columns, rows};
    if (c < count) column_e2m1<true>(given, first_column + c, signs, global, {random, {key0, key1}}, element, out, scales);
    else scales[word_of(c, blockIdx.y, gridDim.y)] = 0;
}

// The same for columns of an NVFP4 weight, without the tensor's own scale: what a block of 16 outputs has fits one of E4M3.
extern "C" __global__ void __launch_bounds__(128)
    weight_columns_e2m1(const u8 *weight, u32 columns, u32 rows, u32 first_column, u32 count, uint2 *out, u32 *scales, u32 key0,
                        u32 key1) {
    u32 c = blockIdx.x * 128 + threadIdx.x;
    u64 element = (u64)(first_column + c) * padded(rows) + blockIdx.y * 64;
    GivenWeight given = {weight, columns, rows};
    if (c < count) column_e2m1<false>(given, first_column + c, 0, 1.0f, {1, {key0, key1}}, element, out, scales);
    else scales[word_of(c, blockIdx.y, gridDim.y)] = 0;
}
