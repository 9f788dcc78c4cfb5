// The best of a row, see ops::best. A value and its column are one number, a key: the higher, the better. Each block finds
// the best of its part, one after the other, and who is last finds the best among those.
#include "common.cuh"

// As best.rs has them.
const u32 THREADS = 512, EACH = 8;

__device__ __forceinline__ u64 key_of(float x, u32 column) {
    u32 bits = __float_as_uint(x + 0.0f); // the two zeros are equal
    if ((bits & 0x7f800000u) == 0x7f800000u) return ~0ull;
    u32 high = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
    return (u64)high << 32 | (u32)~column;
}

// The highest of all threads' keys.
__device__ __forceinline__ u64 highest(u64 key, u64 *of_warps) {
    for (int apart = 16; apart > 0; apart /= 2) {
        u64 other = __shfl_xor_sync(0xffffffffu, key, apart);
        key = other > key ? other : key;
    }
    __syncthreads();
    if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = key;
    __syncthreads();
    for (u32 warp = 0; warp < THREADS / 32; warp++) key = of_warps[warp] > key ? of_warps[warp] : key;
    return key;
}

// `keys`: those that are asked for, then those of every block; `lists`, in shared memory, the latter.
extern "C" __global__ void __launch_bounds__(THREADS)
    best(const float *x, u32 columns, u32 count, u64 *keys, u32 *tickets) {
    __shared__ u64 of_warps[THREADS / 32];
    __shared__ u32 is_last;
    u64 *lists = (u64 *)dynamic_shared, *others = keys + count, *own = others + (u64)blockIdx.x * count;
    u64 mine[EACH];
#pragma unroll
    for (u32 i = 0; i < EACH; i++) {
        u32 column = (blockIdx.x * EACH + i) * THREADS + threadIdx.x;
        mine[i] = column < columns ? key_of(x[column], column) : 0;
    }
    for (u32 found = 0; found < count; found++) {
        u64 top = 0;
#pragma unroll
        for (u32 i = 0; i < EACH; i++) top = mine[i] > top ? mine[i] : top;
        top = highest(top, of_warps);
#pragma unroll
        for (u32 i = 0; i < EACH; i++) mine[i] = mine[i] == top ? 0 : mine[i];
        if (threadIdx.x == 0) own[found] = top;
    }
    if (threadIdx.x == 0) {
        __threadfence();
        is_last = atomicAdd(tickets, 1u) == gridDim.x - 1;
        if (is_last) *tickets = 0;
        __threadfence();
    }
    __syncthreads();
    if (!is_last) return;
    for (u32 i = threadIdx.x; i < gridDim.x * count; i += THREADS) lists[i] = others[i];
    __syncthreads();
    // A thread for each block's list, which goes down.
    u32 next = 0;
    for (u32 found = 0; found < count; found++) {
        u64 head = threadIdx.x < gridDim.x && next < count ? lists[threadIdx.x * count + next] : 0;
        u64 top = highest(head, of_warps);
        next += head == top;
        if (threadIdx.x == 0) keys[found] = top;
    }
}
