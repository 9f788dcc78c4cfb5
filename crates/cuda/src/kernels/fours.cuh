// Four neighbouring columns at a time: a head of 16 n columns is held by four threads, each with four of every sixteen.
#pragma once
#include "common.cuh"

// a b + c of each
__device__ __forceinline__ float4 multiply_add(float4 a, float4 b, float4 c) {
    return make_float4(__fmaf_rn(a.x, b.x, c.x), __fmaf_rn(a.y, b.y, c.y), __fmaf_rn(a.z, b.z, c.z),
                       __fmaf_rn(a.w, b.w, c.w));
}

__device__ __forceinline__ float4 multiply(float4 a, float4 b) {
    return make_float4(a.x * b.x, a.y * b.y, a.z * b.z, a.w * b.w);
}

__device__ __forceinline__ float4 all_of(float x) { return make_float4(x, x, x, x); }

__device__ __forceinline__ float4 minus(float4 a) { return make_float4(-a.x, -a.y, -a.z, -a.w); }

// A thread's fours of a head, all on their way at once.
template <u32 EACH>
__device__ __forceinline__ void get_fours(const void *heads, u32 narrow, u64 head, u32 lane, float4 (&x)[EACH]) {
    u64 at = head * (EACH * 16) + lane * 4;
    if (narrow) {
        uint2 four[EACH];
#pragma unroll
        for (u32 i = 0; i < EACH; i++) four[i] = *(const uint2 *)((const u16 *)heads + at + i * 16);
#pragma unroll
        for (u32 i = 0; i < EACH; i++) x[i] = four_of(four[i]);
    } else {
#pragma unroll
        for (u32 i = 0; i < EACH; i++) x[i] = *(const float4 *)((const float *)heads + at + i * 16);
    }
}

// `fold` of lanes that four neighbouring threads hold four each.
__device__ __forceinline__ float fold_fours(float4 lanes) {
    float sums[4] = {lanes.x, lanes.y, lanes.z, lanes.w};
#pragma unroll
    for (u32 i = 0; i < 4; i++) {
        sums[i] += __shfl_xor_sync(0xffffffffu, sums[i], 2);
        sums[i] += __shfl_xor_sync(0xffffffffu, sums[i], 1);
    }
    return (sums[0] + sums[2]) + (sums[1] + sums[3]);
}
