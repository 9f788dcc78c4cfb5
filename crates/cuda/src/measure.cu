// Reads memory and nothing else.
#include "common.cuh"

extern "C" __global__ void read_all(uint4 *from, u64 count) {
    u32 seen = 0;
    u64 stride = (u64)gridDim.x * blockDim.x;
    u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    for (; i + 3 * stride < count; i += 4 * stride) {
        uint4 a = from[i], b = from[i + stride], c = from[i + 2 * stride], d = from[i + 3 * stride];
        seen |= a.x ^ a.y ^ a.z ^ a.w ^ b.x ^ b.y ^ b.z ^ b.w;
        seen |= c.x ^ c.y ^ c.z ^ c.w ^ d.x ^ d.y ^ d.z ^ d.w;
    }
    for (; i < count; i += stride) seen |= from[i].x;
    // Never so, which only we know.
    if (seen == 0x5EE17E57u) from[0].x = seen;
}
