// What kernels share: number formats, the weight's layout, sums in the order of `ops::math`.
//
// Nothing is contracted (--fmad=false): where Rust writes mul_add, this writes __fmaf_rn.
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef signed char i8;

#ifdef __CUDACC__ // the emulator has its own
// What a launch asks for beside its fixed arrays.
extern __shared__ __align__(16) u8 dynamic_shared[];
#endif

// As in ops::WeightFormat, in that order.
enum Format { F32 = 0, BF16 = 1, INT8 = 2, NVFP4 = 3 };

__device__ __forceinline__ u32 padded(u32 columns) { return (columns + 63u) & ~63u; }

// ---- numbers ----

#define MINUS_INFINITY __uint_as_float(0xff800000u)

__device__ __forceinline__ u16 bf16_of(float x) {
    u32 bits = __float_as_uint(x);
    u32 rounded = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
    u32 quiet = bits >> 16 | 0x40u;
    return (u16)((bits & 0x7fffffffu) > 0x7f800000u ? quiet : rounded);
}

__device__ __forceinline__ float float_of(u16 bf16) { return __uint_as_float((u32)bf16 << 16); }

__device__ __forceinline__ float rounded(float x) { return float_of(bf16_of(x)); }

// E2M1 by its bits: below the exponents of a float, so one exact product brings it up.
__device__ __forceinline__ float e2m1(u32 code) {
    return __uint_as_float((code & 8u) << 28 | (code & 7u) << 22) * __uint_as_float(253u << 23);
}

__device__ __forceinline__ float e4m3(u32 byte) {
    u32 magnitude = byte & 0x7fu;
    float value = __uint_as_float(magnitude << 20) * __uint_as_float(247u << 23);
    value = magnitude == 0x7fu ? __uint_as_float(0x7fc00000u) : value;
    return byte & 0x80u ? -value : value;
}

// 2^(byte - 127); 0 stands for nothing at all.
__device__ __forceinline__ float e8m0(u32 byte) { return __uint_as_float(byte << 23); }

// ---- a weight: 64 bytes of header, then panels of 16 rows (see weight.rs) ----

__device__ __forceinline__ u64 panel_bytes(int format, u32 columns) {
    u64 values = 16ull * padded(columns);
    switch (format) {
        case F32: return values * 4;
        case BF16: return values * 2;
        case INT8: return values + values / 16;
        default: return values / 2 + values / 16;
    }
}

// The tensor's own scale.
__device__ __forceinline__ float tensor_scale(const u8 *weight, int format) {
    return format == NVFP4 ? *(const float *)weight : 1.0f;
}

__device__ __forceinline__ const u8 *panel_of(const u8 *weight, int format, u32 columns, u32 row) {
    return weight + 64 + row / 16 * panel_bytes(format, columns);
}

// The codes (values) of a row, and its scales.
__device__ __forceinline__ const u8 *codes_of(const u8 *panel, int format, u32 columns, u32 row) {
    u32 width = padded(columns);
    u32 bytes = format == F32 ? width * 4 : format == BF16 ? width * 2 : format == INT8 ? width : width / 2;
    return panel + (row & 15u) * bytes;
}

__device__ __forceinline__ const u8 *scales_of(const u8 *panel, int format, u32 columns, u32 row) {
    u32 width = padded(columns);
    return panel + (format == INT8 ? 16 * width : 8 * width) + (row & 15u) * (width / 16);
}

// One value, without the tensor's own scale.
__device__ __forceinline__ float weight_value(const u8 *weight, int format, u32 columns, u32 row, u32 column) {
    const u8 *panel = panel_of(weight, format, columns, row);
    const u8 *codes = codes_of(panel, format, columns, row);
    if (format == F32) return ((const float *)codes)[column];
    if (format == BF16) return float_of(((const u16 *)codes)[column]);
    u32 scale = scales_of(panel, format, columns, row)[column / 16];
    if (format == INT8) return (float)((const i8 *)codes)[column] * e8m0(scale);
    return e2m1(codes[column / 2] >> (column & 1u) * 4 & 15u) * e4m3(scale);
}

// ---- rows: f32, or narrow (bf16, columns padded to 64 with zeros) ----

__device__ __forceinline__ float get(const void *rows, u32 narrow, u32 columns, u64 row, u32 column) {
    if (narrow) return float_of(((const u16 *)rows)[row * padded(columns) + column]);
    return ((const float *)rows)[row * columns + column];
}

__device__ __forceinline__ void put(void *rows, u32 narrow, u32 columns, u64 row, u32 column, float x) {
    if (narrow) ((u16 *)rows)[row * padded(columns) + column] = bf16_of(x);
    else ((float *)rows)[row * columns + column] = x;
}

// Eight values that begin at a multiple of 16 bytes.
__device__ __forceinline__ void get_eight(const float *from, float (&x)[8]) {
    float4 low = ((const float4 *)from)[0], high = ((const float4 *)from)[1];
    x[0] = low.x, x[1] = low.y, x[2] = low.z, x[3] = low.w, x[4] = high.x, x[5] = high.y, x[6] = high.z, x[7] = high.w;
}

__device__ __forceinline__ void put_eight(float *to, const float (&x)[8]) {
    ((float4 *)to)[0] = make_float4(x[0], x[1], x[2], x[3]), ((float4 *)to)[1] = make_float4(x[4], x[5], x[6], x[7]);
}

#ifdef __CUDACC__
// Two values as a pair of bf16, to nearest, the first in the low half. A NaN is one, if not the same.
__device__ __forceinline__ u32 pair_of(float low, float high) {
    u32 d;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(high), "f"(low));
    return d;
}
#endif

__device__ __forceinline__ uint4 eight_bf16(const float (&x)[8]) {
    return make_uint4(pair_of(x[0], x[1]), pair_of(x[2], x[3]), pair_of(x[4], x[5]), pair_of(x[6], x[7]));
}

__device__ __forceinline__ uint2 four_bf16(float4 x) { return make_uint2(pair_of(x.x, x.y), pair_of(x.z, x.w)); }

__device__ __forceinline__ float4 four_of(uint2 x) {
    return make_float4(__uint_as_float(x.x << 16), __uint_as_float(x.x & 0xffff0000u), __uint_as_float(x.y << 16),
                       __uint_as_float(x.y & 0xffff0000u));
}

// Four columns; rows have a multiple of four of them.
__device__ __forceinline__ void put_four(void *rows, u32 narrow, u32 columns, u64 row, u32 column, float4 x) {
    if (narrow) *(uint2 *)((u16 *)rows + row * padded(columns) + column) = four_bf16(x);
    else *(float4 *)((float *)rows + row * columns + column) = x;
}

__device__ __forceinline__ float4 get_four(const void *rows, u32 narrow, u32 columns, u64 row, u32 column) {
    if (narrow) return four_of(*(const uint2 *)((const u16 *)rows + row * padded(columns) + column));
    return *(const float4 *)((const float *)rows + row * columns + column);
}

// Zeros after the last column of a narrow row; thread `lane` of `lanes`.
__device__ __forceinline__ void pad(void *rows, u32 narrow, u32 columns, u64 row, u32 lane, u32 lanes) {
    u32 width = padded(columns);
    if (!narrow) return;
    for (u32 c = columns + lane; c < width; c += lanes) ((u16 *)rows)[row * width + c] = 0;
}

// ---- maths of ops::math ----

// e^r for |r| <= ln 2 / 2
__device__ __forceinline__ float exp_polynomial(float r) {
    float p = 1.3888889e-3f;
    p = __fmaf_rn(p, r, 8.333334e-3f);
    p = __fmaf_rn(p, r, 4.1666668e-2f);
    p = __fmaf_rn(p, r, 0.16666667f);
    p = __fmaf_rn(p, r, 0.5f);
    p = __fmaf_rn(p, r, 1.0f);
    return __fmaf_rn(p, r, 1.0f);
}

__device__ __forceinline__ float exp_of(float x) {
    const float shift = 12582912.0f;
    float clamped = x > 88.7f ? 88.7f : x;
    clamped = clamped < -87.0f ? -87.0f : clamped;
    float shifted = __fmaf_rn(clamped, 1.44269504088896340736f, shift);
    float n = shifted - shift;
    float r = __fmaf_rn(n, -0.69314575f, clamped);
    r = __fmaf_rn(n, -1.4286068e-6f, r);
    int whole = (int)(__float_as_uint(shifted) - __float_as_uint(shift));
    int half = whole >> 1;
    float low = __uint_as_float((u32)(127 + half) << 23);
    float high = __uint_as_float((u32)(127 + whole - half) << 23);
    float value = exp_polynomial(r) * low * high;
    return x < -87.0f ? 0.0f : value;
}

__device__ __forceinline__ float silu(float x) { return x / (1.0f + exp_of(-x)); }

// Calls `take` with the columns of this thread's lane of 16, in order; sixteen of them without a look at the end, so that
// their loads go ahead of the sum.
template <class Take> __device__ __forceinline__ void for_lane(u64 columns, Take take) {
    u64 c = threadIdx.x & 15u;
#pragma unroll 1
    for (; c + 240 < columns; c += 256) {
#pragma unroll
        for (u32 i = 0; i < 16; i++) take(c + i * 16);
    }
#pragma unroll 1
    for (; c < columns; c += 16) take(c);
}

// The 16 lanes of ops::math::fold, held by 16 neighbouring threads; all get the sum.
// (i + 8, + 4, + 2, + 1: a sum of two is the same from either side.)
__device__ __forceinline__ float fold(float lane) {
    for (int width = 8; width > 0; width /= 2) lane += __shfl_xor_sync(0xffffffffu, lane, width);
    return lane;
}
