// A GPU for machines without one: what kernels take from CUDA, as C++ that any compiler has. `cargo run -p xtask --
// emulate` compiles every kernel with it into a library that stands in for the driver's, and runs the
// contracts on that. One thread after the other runs until it must wait (threads.cpp), so it is slow; but bits
// are those of the device, except where `multiply_tile` adds more exactly.
#pragma once
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <utility>
#include <vector>

#define __global__
#define __device__
#define __forceinline__ inline
#define __noinline__
#define __shared__ static // blocks run one after the other, but for those that wait for each other
#define __launch_bounds__(...)
#define __grid_constant__
#define dynamic_shared emulated_shared
#define aligned_shared emulated_shared

struct Index {
    unsigned x, y, z;
};
struct alignas(8) uint2 {
    unsigned x, y;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
struct alignas(8) float2 {
    float x, y;
};
struct alignas(16) float4 {
    float x, y, z, w;
};

extern Index threadIdx, blockIdx, blockDim, gridDim;
extern unsigned char *emulated_shared; // of the block that runs

// ---- waiting (threads.cpp) ----

// What all threads of a warp do at the same time.
enum class Together { Wait, Exchange, Multiply, Load, LoadTransposed };

// Bytes of a thread that the others of its warp see.
constexpr int SLOT = 32;

void wait_for_block();
// Lets others run, of other blocks too.
void wait_for_others();
// Who has waited for them found what he looked for.
void go_on_after_others();
// Shared memory of a block, of those that are there at the same time.
unsigned char *shared_of(unsigned block);
// Gives the slots of all 32, once all have come.
const unsigned char *wait_for_warp(Together what, const void *mine, int bytes);
void copy_later(void *to, const void *from, int bytes, bool there);
void end_group();
// All but the last groups.
void copy_now(unsigned but_groups);

// ---- kernels by name ----

// What runs with its arguments, and how many bytes each of them has.
struct Kernel {
    std::function<void(void **)> run;
    std::vector<size_t> sizes;
};
int add_kernel(const char *name, Kernel kernel);

template <class... T, size_t... I> Kernel kernel_of(void (*kernel)(T...), std::index_sequence<I...>) {
    return {[kernel](void **arguments) { kernel(*(T *)arguments[I]...); }, {sizeof(T)...}};
}

template <class... T> Kernel kernel_of(void (*kernel)(T...)) {
    return kernel_of(kernel, std::index_sequence_for<T...>());
}

#define KERNEL(name) static int name##_added = add_kernel(#name, kernel_of(&name));

// ---- CUDA's functions ----

static inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
static inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
static inline float2 make_float2(float x, float y) { return {x, y}; }
static inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

template <class T> T max(T a, T b) { return a > b ? a : b; }
template <class T> T min(T a, T b) { return a < b ? a : b; }

template <class To, class From> To bits_as(From from) {
    static_assert(sizeof(To) == sizeof(From), "as many bits");
    To to;
    memcpy(&to, &from, sizeof to);
    return to;
}
static inline unsigned __float_as_uint(float x) { return bits_as<unsigned>(x); }
static inline float __uint_as_float(unsigned x) { return bits_as<float>(x); }
static inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
static inline int __popc(unsigned x) { return __builtin_popcount(x); }
// Bytes 0 to 7 of two words, chosen by a nibble each.
static inline unsigned __byte_perm(unsigned low, unsigned high, unsigned choice) {
    unsigned long long all = (unsigned long long)high << 32 | low;
    unsigned chosen = 0;
    for (int i = 0; i < 4; i++) chosen |= (unsigned)(all >> 8 * (choice >> 4 * i & 7) & 255) << 8 * i;
    return chosen;
}
// The same; from 8 on a choice is the sign of byte 0 to 7, in all bits.
static inline unsigned permuted(unsigned low, unsigned high, unsigned choice) {
    unsigned chosen = __byte_perm(low, high, choice);
    for (int i = 0; i < 4; i++) {
        unsigned byte = 255u << 8 * i;
        if (choice >> 4 * i & 8) chosen = chosen & 128u << 8 * i ? chosen | byte : chosen & ~byte;
    }
    return chosen;
}
static inline float about_one_over(float x) { return 1.0f / x; }
static inline float about_one_over_root(float x) { return 1.0f / sqrtf(x); }
static inline void again(unsigned &) {}
static inline int dot_bytes(unsigned a, unsigned b, int c) {
    for (int i = 0; i < 32; i += 8) c += (int)(signed char)(a >> i) * (signed char)(b >> i);
    return c;
}
static inline float f16(unsigned short half) {
    float magnitude = __uint_as_float((half & 0x7fff) << 13) * __uint_as_float(239u << 23); // 2^112
    return half & 0x8000 ? -magnitude : magnitude;
}
static inline float held(float x) { return x > 0.0f ? x < 1.0f ? x : 1.0f : 0.0f; }
static inline float held_fma(float a, float b, float c) { return held(fmaf(a, b, c)); }
static inline float held_sum(float a, float b) { return held(a + b); }
// Rounded down: what the sum lacks is exact.
static inline float __fadd_rd(float a, float b) {
    float sum = a + b;
    return (double)sum > (double)a + (double)b ? nextafterf(sum, -INFINITY) : sum;
}
// The upper word of two, shifted.
static inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned by) {
    return (unsigned)(((unsigned long long)high << 32 | low) << by >> 32);
}
static inline unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)((unsigned long long)a * b >> 32); }

template <class T> T atomicAdd(T *to, T value) {
    T old = *to;
    *to += value;
    return old;
}

template <class T> T atomicMax(T *to, T value) {
    T old = *to;
    *to = max(old, value);
    return old;
}

static inline void __syncthreads() { wait_for_block(); }
static inline void __threadfence() {} // what is written is there at once
static inline void count_up(unsigned *at) { ++*at; }
static inline unsigned look(const unsigned *at) { return wait_for_others(), *at; }

static inline void __syncwarp() {
    char nothing = 0;
    wait_for_warp(Together::Wait, &nothing, 1);
}

template <class T> T __shfl_sync(unsigned, T value, int lane) {
    T other;
    memcpy(&other, wait_for_warp(Together::Exchange, &value, sizeof value) + (lane & 31) * SLOT, sizeof other);
    return other;
}

template <class T> T __shfl_xor_sync(unsigned all, T value, int mask) {
    return __shfl_sync(all, value, (int)(threadIdx.x % 32) ^ mask);
}

template <class T> T __shfl_down_sync(unsigned all, T value, int by) {
    int lane = threadIdx.x % 32;
    return __shfl_sync(all, value, lane + by < 32 ? lane + by : lane);
}

static inline unsigned __ballot_sync(unsigned, int mine) {
    const unsigned char *slots = wait_for_warp(Together::Exchange, &mine, sizeof mine);
    unsigned all = 0;
    for (int lane = 0; lane < 32; lane++) {
        int other;
        memcpy(&other, slots + lane * SLOT, sizeof other);
        all |= (other != 0 ? 1u : 0u) << lane;
    }
    return all;
}

static inline int __any_sync(unsigned all, int mine) { return __ballot_sync(all, mine) != 0; }

// ---- instructions of kernels/tensor_core.cuh ----

static inline float of_bf16(unsigned half) { return __uint_as_float(half << 16); }

static inline unsigned to_bf16(float x) {
    unsigned bits = __float_as_uint(x);
    return x != x ? 0x7fff : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

static inline unsigned pair_of(float low, float high) { return to_bf16(low) | to_bf16(high) << 16; }

static inline unsigned multiply_pairs(unsigned a, unsigned b) {
    return pair_of(of_bf16(a & 0xffff) * of_bf16(b & 0xffff), of_bf16(a >> 16) * of_bf16(b >> 16));
}

static inline unsigned add_pairs(unsigned a, unsigned b) {
    return pair_of(of_bf16(a & 0xffff) + of_bf16(b & 0xffff), of_bf16(a >> 16) + of_bf16(b >> 16));
}

static inline float quick_exp2(float x) { return exp2f(x); }
static inline float quick_reciprocal(float x) { return 1.0f / x; }

// Which thread has a value of a tile, and where: rows 8 apart and columns 8 apart are other words.
static inline float of_tile(const unsigned char *slots, int word, int row, int column) {
    unsigned pair;
    memcpy(&pair, slots + (row % 8 * 4 + column % 8 / 2) * SLOT + word * 4, 4);
    return of_bf16(column % 2 ? pair >> 16 : pair & 0xffff);
}

static inline void multiply_tile(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    unsigned mine[6] = {a[0], a[1], a[2], a[3], b0, b1};
    const unsigned char *slots = wait_for_warp(Together::Multiply, mine, sizeof mine);
    int lane = threadIdx.x % 32;
    for (int i = 0; i < 4; i++) {
        int row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
        double sum = d[i];
        for (int k = 0; k < 16; k++)
            sum += (double)of_tile(slots, row / 8 + k / 8 * 2, row, k) * of_tile(slots, 4 + k / 8, column, k);
        d[i] = (float)sum;
    }
}

static inline void load_four(Together what, unsigned (&r)[4], const void *row) {
    if ((size_t)row % 16 != 0) fprintf(stderr, "a tile's row begins at no multiple of 16\n"), abort();
    const unsigned char *slots = wait_for_warp(what, &row, sizeof row);
    int lane = threadIdx.x % 32;
    auto value = [&](int tile, int row, int column) {
        const unsigned short *place;
        memcpy(&place, slots + (tile * 8 + row) * SLOT, sizeof place);
        return (unsigned)place[column];
    };
    for (int tile = 0; tile < 4; tile++) {
        int row = lane / 4, column = lane % 4 * 2;
        r[tile] = what == Together::Load ? value(tile, row, column) | value(tile, row, column + 1) << 16
                                         : value(tile, column, row) | value(tile, column + 1, row) << 16;
    }
    __syncwarp();
}

static inline void load_tiles(unsigned (&r)[4], const void *row) { load_four(Together::Load, r, row); }
static inline void load_tiles_transposed(unsigned (&r)[4], const void *row) {
    load_four(Together::LoadTransposed, r, row);
}
static inline void start_copy(void *to, const void *from, bool there) { copy_later(to, from, 16, there); }
static inline void start_small_copy(void *to, const void *from, bool there) { copy_later(to, from, 4, there); }
static inline void bring_line_near(const void *) {}
static inline void end_copies() { end_group(); }
template <int COUNT> void wait_for_copies_but() { copy_now(COUNT); }
static inline void wait_for_copies() { end_group(), copy_now(0); }

#include "boxes.h"
#include "warpgroup.h"
