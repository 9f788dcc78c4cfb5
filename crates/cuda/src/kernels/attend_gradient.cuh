// What the kernels of attention's gradients on tensor cores share, whichever products they are made of.
#pragma once
#include "head_tile.cuh"

// How far (in powers of two) scores may pass their reference before sums are scaled to a new one.
#define SLACK 8.0f

// Rounded rows `[token][head][WIDTH]`. `tiles` has for each block its sample's first row, its own, and the row after
// the sample's last.
#define HEADS                                                                                                          \
    const u16 *q, const u16 *dy, const u16 *k, const u16 *v, const u32 *tiles, u32 heads, u32 kv_heads, u32 head_dim,  \
        u32 window, float scale

// Of two queries of a thread, relative to 2^reference: its part of the sum of p, and of the sum of p (dp - centre).
struct Running {
    float reference[2], centre[2], sum[2], turned[2];
};

// The mean of dp of two queries of a thread, `row` and 8 further, but for the rounding of what attention gave: dy times
// that. So what is left of dp sums up to nearly nothing.
template <int WIDTH>
__device__ __forceinline__ void find_centres(Running &at, const u16 *dy, const void *out, u32 narrow, u32 heads,
                                             u32 head, u32 head_dim, u32 row, u32 end) {
    u64 columns = narrow ? padded(heads * head_dim) : heads * head_dim;
#pragma unroll
    for (u32 r = 0; r < 2; r++, row += 8) {
        float sum = 0.0f;
#pragma unroll
        for (u32 i = 0; i < WIDTH / 8; i++) {
            u32 channel = i * 8 + threadIdx.x % 4 * 2;
            if (row >= end || channel >= head_dim) continue;
            u32 pair = *(const u32 *)(dy + ((u64)row * heads + head) * WIDTH + channel);
            u64 from = row * columns + head * head_dim + channel;
            float2 y;
            if (narrow) {
                u32 two = *(const u32 *)((const u16 *)out + from);
                y = make_float2(float_of((u16)two), float_of((u16)(two >> 16)));
            } else {
                y = *(const float2 *)((const float *)out + from);
            }
            sum = __fmaf_rn(float_of((u16)pair), y.x, sum);
            sum = __fmaf_rn(float_of((u16)(pair >> 16)), y.y, sum);
        }
        at.centre[r] = sum_of_row(sum);
    }
}

// Whether a query sees nothing but itself: its weight is one whatever its score is, so its gradient is zero.
__device__ __forceinline__ bool sees_one(u32 row, u32 start, u32 window) { return row == start || window == 1; }

// 16 rows of this warp, from `first` on, of a head; those before `end` are there. Narrow rows have whole heads.
template <int WIDTH>
__device__ __forceinline__ void write(const float (&sums)[WIDTH / 8][4], const float (&factor)[2], void *to, u32 narrow,
                                      u32 heads, u32 head, u32 head_dim, u32 first, u32 end) {
    u32 lane = threadIdx.x % 32;
#pragma unroll
    for (u32 i = 0; i < WIDTH / 8 * 2; i++) {
        u32 r = i % 2, row = first + lane / 4 + r * 8, channel = i / 2 * 8 + lane % 4 * 2;
        if (row >= end || channel >= head_dim) continue;
        float x = sums[i / 2][2 * r] * factor[r], y = sums[i / 2][2 * r + 1] * factor[r];
        u64 at = ((u64)row * heads + head) * head_dim + channel;
        if (narrow) *(u32 *)((u16 *)to + at) = pair_of(x, y);
        else *(float2 *)((float *)to + at) = make_float2(x, y);
    }
}
