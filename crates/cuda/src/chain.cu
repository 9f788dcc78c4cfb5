// One token through a list of stages, see stage.cuh, with caches of one format. Shared memory: rings of the warps, stages,
// what a stage works with.
#include "attend_one.cuh"
#include "chain.cuh"
#include "one_token.cuh"

// As chain.rs has it.
const u32 THREADS = 512;

// Words in front of the stages, a line of the cache: how many blocks have ended a stage, and nothing else.
const u32 FRONT = 32;

template <int CACHE> __device__ __forceinline__ void chain(u32 *arrived, u32 count) {
    const Stage *stages = (const Stage *)(arrived + FRONT);
    const u32 WARPS = THREADS / 32;
    u8 *rings = dynamic_shared;
    Stage *known = (Stage *)(rings + WARPS * TILES * TILE);
    u8 *work = (u8 *)(known + KNOWN);
    const u32 WORDS = sizeof(Stage) / 16;
    if (threadIdx.x < min(count, KNOWN) * WORDS) known->words[threadIdx.x] = stages->words[threadIdx.x];
    __syncthreads();
    Ahead<WARPS> ahead(known, rings + threadIdx.x / 32 * TILES * TILE);
#pragma unroll 1
    for (u32 at = 0; at < count; at++) {
        // The place of the stage in front is free; it is given away when all have come to the end of this one.
        u32 later = at + KNOWN - 1, end = min(count, later);
        bool replaces = at > 0 && later < count && threadIdx.x < WORDS;
        uint4 words = replaces ? stages[later].words[threadIdx.x] : make_uint4(0, 0, 0, 0);
        ahead.fill(end);
        auto wait = [&] {
            if (at > 0) wait_until(arrived, at * gridDim.x);
        };
        const Stage &stage = known[at % KNOWN];
        u32 format = stage.product.format;
        if (stage.product.kind == ATTEND) attend_one<CACHE, THREADS>(stage.attend, work, wait);
        else if (format == NVFP4) one_token<NVFP4>(stage.product, ahead, end, work, wait);
        else if (format == INT8) one_token<INT8>(stage.product, ahead, end, work, wait);
        else one_token<BF16>(stage.product, ahead, end, work, wait);
        if (replaces) known[later % KNOWN].words[threadIdx.x] = words;
        arrive(arrived);
    }
}

#define CHAIN(name, CACHE)                                                                                             \
    extern "C" __global__ void __launch_bounds__(THREADS, 1)                                                           \
        chain_##name(u32 *list, u32 count) {                                                                           \
        chain<CACHE>(list, count);                                                                                     \
    }

CHAIN(f32, CACHE_F32)
CHAIN(bf16, CACHE_BF16)
CHAIN(int8, CACHE_INT8)
