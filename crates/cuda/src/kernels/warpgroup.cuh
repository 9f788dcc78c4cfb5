// Products of a warpgroup (four warps, 64 rows) that run beside what its threads do: sm_90a has them. Sums lie as those
// of `multiply_tile`, 16 rows for each warp.
//
// Tiles in shared memory are parts of 64 columns, each `[rows][64]` with chunks as `chunk_at` has them, from a multiple
// of 1024 bytes on.
#pragma once
#include "head_tile.cuh"

#ifdef __CUDACC__ // emulator/device.h has its own

// What a launch asks for, from where tiles may begin.
extern __shared__ __align__(1024) u8 aligned_shared[];

// A tile as these products take it; `part` is the bytes of 64 columns of all its rows.
struct Place {
    u64 bits;
};

__device__ __forceinline__ Place place_at(u64 at, u32 part) {
    // 8 rows are 1024 bytes, and exchanged in 128.
    return Place{at >> 4 | (u64)(part >> 4) << 16 | (u64)(1024 >> 4) << 32 | 1ull << 62};
}
__device__ __forceinline__ Place place_of(const u8 *tile, u32 part) {
    return place_at(__cvta_generic_to_shared(tile), part);
}
// The same in a block of a pair (boxes.cuh), whose number stands above its addresses.
__device__ __forceinline__ Place place_in_pair(const u8 *tile, u32 part) {
    return place_at(__cvta_generic_to_shared(tile) & 0x3ffff, part);
}

__device__ __forceinline__ Place further(Place place, u32 bytes) { return Place{place.bits + (bytes >> 4)}; }

#define OF_8(d, n) "+f"(d[n][0]), "+f"(d[n][1]), "+f"(d[n][2]), "+f"(d[n][3])
#define OF_64(d) OF_8(d, 0), OF_8(d, 1), OF_8(d, 2), OF_8(d, 3), OF_8(d, 4), OF_8(d, 5), OF_8(d, 6), OF_8(d, 7)
#define OF_128(d)                                                                                                      \
    OF_64(d), OF_8(d, 8), OF_8(d, 9), OF_8(d, 10), OF_8(d, 11), OF_8(d, 12), OF_8(d, 13), OF_8(d, 14), OF_8(d, 15)
#define NAMES_64                                                                                                       \
    "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,"   \
    "%30,%31"
#define NAMES_128                                                                                                      \
    NAMES_64 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,"   \
             "%57,%58,%59,%60,%61,%62,%63"

#define OF_256(d)                                                                                                      \
    OF_128(d), OF_8(d, 16), OF_8(d, 17), OF_8(d, 18), OF_8(d, 19), OF_8(d, 20), OF_8(d, 21), OF_8(d, 22), OF_8(d, 23), \
        OF_8(d, 24), OF_8(d, 25), OF_8(d, 26), OF_8(d, 27), OF_8(d, 28), OF_8(d, 29), OF_8(d, 30), OF_8(d, 31)
#define NAMES_256                                                                                                      \
    NAMES_128 ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,%80,%81,%82,%83,%84,%85,%86,%87,%88,"  \
              "%89,%90,%91,%92,%93,%94,%95,%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,"    \
              "%111,%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"

// d[64 x 64] = a[64 x 16] b[64 x 16]^T, added to d or not.
__device__ __forceinline__ void start_product(float (&d)[8][4], Place a, Place b, bool adds) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" NAMES_64 "}, %32, %33, p, 1, 1, 0, 0;\n}"
                 : OF_64(d)
                 : "l"(a.bits), "l"(b.bits), "r"((u32)adds));
}

// d[64 x 128] += a[64 x 16] b[16 x 128].
__device__ __forceinline__ void start_mix(float (&d)[16][4], const u32 (&a)[4], Place b) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, 1, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" NAMES_128
                 "}, {%64,%65,%66,%67}, %68, p, 1, 1, 1;\n}"
                 : OF_128(d)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b.bits));
}

// d = a b of 16 products each, added to d or not; a side that is turned lies as `[16][64]` in each part, another as
// `[rows][16]`.
template <bool A_TURNED, bool B_TURNED>
__device__ __forceinline__ void start_multiplying(float (&d)[16][4], Place a, Place b, bool adds) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" NAMES_128 "}, %64, %65, p, 1, 1, %67, %68;\n}"
                 : OF_128(d)
                 : "l"(a.bits), "l"(b.bits), "r"((u32)adds), "n"((int)A_TURNED), "n"((int)B_TURNED));
}
template <bool A_TURNED, bool B_TURNED>
__device__ __forceinline__ void start_multiplying(float (&d)[32][4], Place a, Place b, bool adds) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %130, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {" NAMES_256
                 "}, %128, %129, p, 1, 1, %131, %132;\n}"
                 : OF_256(d)
                 : "l"(a.bits), "l"(b.bits), "r"((u32)adds), "n"((int)A_TURNED), "n"((int)B_TURNED));
}

// Around products: before those that take what threads wrote into registers, and behind those that are a group.
__device__ __forceinline__ void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void end_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// Waits for this warpgroup's groups of products, but for the last COUNT; `d` is theirs.
template <int COUNT> __device__ __forceinline__ void wait_for_products_but(float (&d)[8][4]) {
    asm volatile("wgmma.wait_group.sync.aligned %32;" : OF_64(d) : "n"(COUNT) : "memory");
}
template <int COUNT> __device__ __forceinline__ void wait_for_products_but(float (&d)[16][4]) {
    asm volatile("wgmma.wait_group.sync.aligned %64;" : OF_128(d) : "n"(COUNT) : "memory");
}

template <int COUNT> __device__ __forceinline__ void wait_for_products_but(float (&d)[32][4]) {
    asm volatile("wgmma.wait_group.sync.aligned %128;" : OF_256(d) : "n"(COUNT) : "memory");
}

// The same while `d` is still being summed: the tiles of those groups are free.
template <int COUNT> __device__ __forceinline__ void wait_for_tiles_but() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(COUNT) : "memory");
}

// Keeps what comes before these values in front of the next wait.
__device__ __forceinline__ void settle(float (&d)[8][4]) { asm volatile("" : OF_64(d)::"memory"); }
__device__ __forceinline__ void settle(float (&d)[16][4]) { asm volatile("" : OF_128(d)::"memory"); }

// A warpgroup's registers from here on, of each thread. Who wants more waits for others to give some.
template <int COUNT> __device__ __forceinline__ void have_more_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
}
template <int COUNT> __device__ __forceinline__ void have_fewer_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
}

// What this thread wrote into shared memory is there for products, once all threads that wrote have said so.
__device__ __forceinline__ void show_to_products() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

#endif

// ---- heads of 128 channels: tiles of 64 rows ----

// Products of own rows and those of a tile, along the channels; a group.
__device__ __forceinline__ void start_dots(float (&x)[TILE / 8][4], u8 *own, u8 *tile) {
    Place a = place_of(own, TILE * 128), b = place_of(tile, TILE * 128);
#pragma unroll
    for (u32 step = 0; step < 8; step++) {
        u32 at = step / 4 * (TILE * 128) + step % 4 * 32;
        start_product(x, further(a, at), further(b, at), step > 0);
    }
    end_products();
}

// sums[64 x 128] += a[64 x 64] times a tile.
__device__ __forceinline__ void start_mixing(float (&sums)[16][4], const u32 (&a)[TILE / 16][4], u8 *tile) {
    Place b = place_of(tile, TILE * 128);
#pragma unroll
    for (u32 step = 0; step < TILE / 16; step++) start_mix(sums, a[step], further(b, step * 16 * 128));
}

// A product's result as the left side of the next one.
__device__ __forceinline__ void as_left(u32 (&a)[TILE / 16][4], const float (&x)[TILE / 8][4]) {
#pragma unroll
    for (u32 i = 0; i < TILE / 4; i++) a[i / 4][i % 4] = pair_of(x[i / 2][i % 2 * 2], x[i / 2][i % 2 * 2 + 1]);
}

// The highest of each of two rows that this thread has a part of, of that part.
__device__ __forceinline__ void tops_of(float (&top)[2], const float (&scores)[TILE / 8][4]) {
    top[0] = top[1] = MINUS_INFINITY;
#pragma unroll
    for (u32 i = 0; i < TILE / 2; i++) top[i % 4 / 2] = fmaxf(top[i % 4 / 2], scores[i / 4][i % 4]);
}

// Scores of a warp's 16 queries, from `query` on, and 64 keys, from `key` on, lose those that are not seen.
__device__ __forceinline__ void hide_unseen(float (&scores)[TILE / 8][4], u32 query, u32 key, u32 window) {
    if (all_seen(query, 16, key, TILE, window)) return;
    u32 lane = threadIdx.x % 32;
#pragma unroll
    for (u32 i = 0; i < TILE / 2; i++) {
        bool seen = sees(query + lane / 4 + i % 4 / 2 * 8, key + i / 4 * 8 + lane % 4 * 2 + i % 2, window);
        if (!seen) scores[i / 4][i % 4] = MINUS_INFINITY;
    }
}
