// Blocks that tell each other what is done, and wait for each other in a launch whose blocks are all there at once.
#pragma once
#include "common.cuh"

#ifdef __CUDACC__ // emulator/device.h has its own

// One more, once everything that this thread knows of is written.
__device__ __forceinline__ void count_up(u32 *at) {
    asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(at) : "memory");
}

__device__ __forceinline__ u32 look(const u32 *at) {
    u32 x;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(x) : "l"(at) : "memory");
    return x;
}

#endif

// Everything that this block wrote is there for those who wait.
__device__ __forceinline__ void arrive(u32 *arrived) {
    __syncthreads();
    if (threadIdx.x == 0) count_up(arrived);
}

// Until so many blocks have arrived.
__device__ __forceinline__ void wait_until(const u32 *arrived, u32 count) {
    if (threadIdx.x == 0)
        while (look(arrived) < count) {}
    __syncthreads();
}
