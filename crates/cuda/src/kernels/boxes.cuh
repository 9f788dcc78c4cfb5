// Boxes of matrices that the copy engine of sm_90 brings into shared memory, arrivals that count what came, and pairs
// of blocks that share what comes.
#pragma once
#include "common.cuh"

// A matrix as the copy engine knows it (`CUtensorMap`): boxes of it are 64 rows of 64 bf16 values, with chunks as
// `chunk_at` has them and zeros where it has ended.
struct alignas(64) Map {
    u64 words[16];
};

const u32 BOX_SIDE = 64, BOX_BYTES = BOX_SIDE * BOX_SIDE * 2;

#ifdef __CUDACC__ // emulator/device.h has its own

__device__ __forceinline__ u32 shared_address(const void *at) { return (u32)__cvta_generic_to_shared(at); }

// Which of its pair this block is.
__device__ __forceinline__ u32 block_of_pair() {
    u32 rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

// All threads of both blocks come here before one goes on.
__device__ __forceinline__ void wait_for_pair() {
    asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
}

// A round of arrivals is over when so many have come, and all bytes that they expect.
__device__ __forceinline__ void begin_rounds(u64 *arrivals, u32 count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(arrivals)), "r"(count) : "memory");
}

// What was begun is there for the copy engine and the other block, once all have met.
__device__ __forceinline__ void show_rounds() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

__device__ __forceinline__ void arrive_and_expect(u64 *arrivals, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(arrivals)), "r"(bytes)
                 : "memory");
}

// In a block of the pair. What products have read needs no fence, which would cost more than the products.
__device__ __forceinline__ void arrive_at(u64 *arrivals, u32 block) {
    asm volatile("{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %0, %1;\n"
                 "mbarrier.arrive.shared::cluster.b64 _, [there];\n}" ::"r"(shared_address(arrivals)),
                 "r"(block)
                 : "memory");
}

// Waits for the end of a round; `odd` tells it from its neighbours.
__device__ __forceinline__ void wait_for_round(u64 *arrivals, u32 odd) {
    asm volatile("{\n.reg .pred over;\nagain:\nmbarrier.try_wait.parity.shared::cta.b64 over, [%0], %1;\n"
                 "@!over bra again;\n}" ::"r"(shared_address(arrivals)),
                 "r"(odd)
                 : "memory");
}

// Starts a copy; `x` counts along the matrix's rows.
__device__ __forceinline__ void fetch_box(const Map &map, u32 x, u32 y, u8 *to, u64 *arrivals) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];"
                 ::"r"(shared_address(to)), "l"(&map), "r"(x), "r"(y), "r"(shared_address(arrivals))
                 : "memory");
}

// The same into both blocks of the pair.
__device__ __forceinline__ void fetch_box_for_both(const Map &map, u32 x, u32 y, u8 *to, u64 *arrivals) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], "
                 "[%1, {%2, %3}], [%4], %5;" ::"r"(shared_address(to)),
                 "l"(&map), "r"(x), "r"(y), "r"(shared_address(arrivals)), "h"((u16)3)
                 : "memory");
}

// Adds to what is there, behind the thread's back. Nobody else adds to it at the same time.
__device__ __forceinline__ void add_four_to(float *at, float4 x) {
    asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(at), "f"(x.x), "f"(x.y), "f"(x.z),
                 "f"(x.w)
                 : "memory");
}

#endif
