// Instructions that C++ has no word for: products of bf16 tiles, loads of their parts, copies that run beside.
#pragma once
#include "common.cuh"

#ifdef __CUDACC__ // emulator/device.h has its own

// d[16 x 8] += a[16 x 16] b[16 x 8], bf16 with f32 sums; each thread holds its part.
__device__ __forceinline__ void multiply_tile(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
                 "{%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Four 8 x 8 tiles of bf16 from shared memory; thread i gives the address of row i % 8 of tile i / 8.
__device__ __forceinline__ void load_tiles(u32 (&r)[4], const void *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"((u32)__cvta_generic_to_shared(row))
                 : "memory");
}

// The same, each tile transposed.
__device__ __forceinline__ void load_tiles_transposed(u32 (&r)[4], const void *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"((u32)__cvta_generic_to_shared(row))
                 : "memory");
}

// Starts a copy of 16 bytes to shared memory; zeros where nothing is there.
__device__ __forceinline__ void start_copy(void *to, const void *from, bool there) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"((u32)__cvta_generic_to_shared(to)), "l"(from),
                 "r"(there ? 16 : 0)
                 : "memory");
}

// Starts a copy of 4 bytes, likewise.
__device__ __forceinline__ void start_small_copy(void *to, const void *from, bool there) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"((u32)__cvta_generic_to_shared(to)), "l"(from),
                 "r"(there ? 4 : 0)
                 : "memory");
}

// Asks for 128 bytes, which then lie in the second-level cache.
__device__ __forceinline__ void bring_line_near(const void *line) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(line));
}

// The copies that this thread started since the last time are a group.
__device__ __forceinline__ void end_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits for this thread's groups of copies, but for the last COUNT.
template <int COUNT> __device__ __forceinline__ void wait_for_copies_but() {
    asm volatile("cp.async.wait_group %0;" ::"n"(COUNT) : "memory");
}

// Waits for all copies that this thread started.
__device__ __forceinline__ void wait_for_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// Products of two pairs of bf16, rounded.
__device__ __forceinline__ u32 multiply_pairs(u32 a, u32 b) {
    u32 d;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(0x80008000u));
    return d;
}

// Sums of two pairs of bf16, rounded.
__device__ __forceinline__ u32 add_pairs(u32 a, u32 b) {
    u32 d;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(0x3f803f80u), "r"(b));
    return d;
}

// 2^x within a few units in the last place; 2^-infinity is zero.
__device__ __forceinline__ float quick_exp2(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// 1 / x within a unit in the last place; of infinity it is zero.
__device__ __forceinline__ float quick_reciprocal(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

#endif

// Rows of 64 bf16 in shared memory, 8 chunks of 16 bytes; chunks are exchanged so that the same chunk
// of 8 rows lies in different banks.
__device__ __forceinline__ u8 *chunk_at(u8 *tile, u32 row, u32 chunk) {
    return tile + row * 128 + ((chunk ^ (row & 7u)) << 4);
}
