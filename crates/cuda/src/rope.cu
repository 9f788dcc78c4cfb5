// y1 = x1 cos - x2 sin,  y2 = x2 cos + x1 sin: a thread for each pair.
#include "common.cuh"

extern "C" __global__ void rope(float *x, const float *turns, u32 rows, u32 columns, u32 head_dim) {
    u64 index = blockIdx.x * (u64)blockDim.x + threadIdx.x;
    u32 half = head_dim / 2, pairs = columns / 2;
    u64 t = index / pairs;
    if (t >= rows) return;
    u32 pair = (u32)(index % pairs), head = pair / half, i = pair % half;
    float *first = x + t * columns + head * head_dim + i, *second = first + half;
    float cosine = turns[t * head_dim + i], sine = turns[t * head_dim + half + i];
    float a = *first, b = *second;
    *first = __fmaf_rn(a, cosine, -(b * sine));
    *second = __fmaf_rn(b, cosine, a * sine);
}
