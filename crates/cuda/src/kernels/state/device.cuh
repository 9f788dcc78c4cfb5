// What the state's code stands on. All of it follows `halfbyte_formats::state`, whose names and order of
// operations it keeps, block by block and without a word between threads.
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#define DEVICE __device__ __forceinline__
#define UNROLL _Pragma("unroll")

#ifdef __CUDACC__ // emulator/device.h has its own

// Bytes 0 to 7 of two words, chosen by a nibble each; from 8 on, what is chosen is the sign of byte 0 to 7, in all bits.
DEVICE u32 permuted(u32 low, u32 high, u32 choice) {
    u32 d;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(d) : "r"(low), "r"(high), "r"(choice));
    return d;
}

// a b + c, held within zero and one; NaN is zero.
DEVICE float held_fma(float a, float b, float c) {
    float y;
    asm("fma.rn.sat.f32 %0, %1, %2, %3;" : "=f"(y) : "f"(a), "f"(b), "f"(c));
    return y;
}

// a + b, held likewise.
DEVICE float held_sum(float a, float b) {
    float y;
    asm("add.sat.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
    return y;
}

// 1 / x, almost, where that is in the middle of the range.
DEVICE float about_one_over(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// 1 / sqrt(x), almost, likewise.
DEVICE float about_one_over_root(float x) {
    float y;
    asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// The product of bytes, signed, onto c.
DEVICE int dot_bytes(u32 a, u32 b, int c) {
    return __dp4a((int)a, (int)b, c);
}

DEVICE float f16(u16 half) {
    float y;
    asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(half));
    return y;
}

// What is computed from it is computed again from here on.
DEVICE void again(u32& x) {
    asm volatile("" : "+r"(x));
}

#endif

namespace state {

// Values that share one scale.
constexpr int BLOCK = 16;

// Where the counters of a call are, in the order of tallies.rs; then room for what a kernel counts for itself.
enum { CHANGED, RESCALED, SATURATED, REFUSED, SQUARES, MEETING };

// What an update did, as `Tally`, its squares apart.
struct Tally {
    u32 changed, rescaled, saturated, refused;
};

// How much of the old stays in an average, and how much of the new comes in.
struct Average {
    float keep, fresh;
};

DEVICE float average_of(Average average, float old, float fresh) {
    return average.keep * old + average.fresh * fresh;
}

DEVICE int clamped(int x, int low, int high) {
    return x < low ? low : x > high ? high : x;
}

// NaN stays.
DEVICE float clamped(float x, float low, float high) {
    return x < low ? low : x > high ? high : x;
}

DEVICE bool is_nan(float x) {
    return (__float_as_uint(x) & 0x7FFFFFFF) > 0x7F800000;
}

// One NaN for all that is kept, the one that other devices give.
DEVICE float one_nan(float x) {
    return is_nan(x) ? __uint_as_float(0x7FC00000) : x;
}

} // namespace state
