// Blocks of a row in memory. A row begins where the one before ends, so how wide a load may be is seen when it
// is made; it is the same for all threads of a row.
#pragma once
#include "device.cuh"

namespace state {

// So many words in one load or store.
template <int WORDS> struct Wide {};
template <> struct Wide<1> {
    typedef u32 Type;
};
template <> struct Wide<2> {
    typedef uint2 Type;
};
template <> struct Wide<4> {
    typedef uint4 Type;
};

template <int BYTES> DEVICE bool aligned(const void* place) {
    return ((u64)place & (BYTES - 1)) == 0;
}

// SURE is what a place is known to be a multiple of.
template <int SURE = 1, int WORDS> DEVICE void load(const u8* from, u32 (&words)[WORDS]) {
    typedef typename Wide<WORDS>::Type Type;
    if (SURE >= 4 * WORDS || (SURE < 4 && aligned<4 * WORDS>(from))) {
        Type all = *(const Type*)from;
        const u32* each = (const u32*)&all;
        UNROLL for (int i = 0; i < WORDS; i++) words[i] = each[i];
    } else if (SURE >= 4 || aligned<4>(from)) {
        UNROLL for (int i = 0; i < WORDS; i++) words[i] = ((const u32*)from)[i];
    } else {
        UNROLL for (int i = 0; i < WORDS; i++)
            words[i] = from[4 * i] | from[4 * i + 1] << 8 | from[4 * i + 2] << 16 | (u32)from[4 * i + 3] << 24;
    }
}

template <int SURE = 1, int WORDS> DEVICE void store(u8* to, const u32 (&words)[WORDS]) {
    typedef typename Wide<WORDS>::Type Type;
    if (SURE >= 4 * WORDS || (SURE < 4 && aligned<4 * WORDS>(to))) {
        Type all;
        UNROLL for (int i = 0; i < WORDS; i++) ((u32*)&all)[i] = words[i];
        *(Type*)to = all;
    } else if (SURE >= 4 || aligned<4>(to)) {
        UNROLL for (int i = 0; i < WORDS; i++) ((u32*)to)[i] = words[i];
    } else {
        UNROLL for (int i = 0; i < 4 * WORDS; i++) to[i] = (u8)(words[i / 4] >> (8 * (i % 4)));
    }
}

// Sixteen numbers of a row of `columns`, zeros after its end. WHOLE: there are no such, and rows begin at multiples
// of 16 bytes.
template <bool WHOLE = false> DEVICE void load_values(const float* row, u32 columns, u32 index, float (&x)[BLOCK]) {
    const float* from = row + index * BLOCK;
    if (WHOLE || (aligned<16>(from) && index * BLOCK + BLOCK <= columns)) {
        UNROLL for (int i = 0; i < BLOCK; i += 4) {
            float4 four = *(const float4*)(from + i);
            x[i] = four.x, x[i + 1] = four.y, x[i + 2] = four.z, x[i + 3] = four.w;
        }
    } else {
        UNROLL for (int i = 0; i < BLOCK; i++) x[i] = index * BLOCK + i < columns ? from[i] : 0.0f;
    }
}

// The two numbers that a word of a narrow row is.
DEVICE float lower(u32 word) {
    return __uint_as_float(word << 16);
}

DEVICE float upper(u32 word) {
    return __uint_as_float(word & 0xFFFF0000);
}

// A row of a gradient: f32, or narrow, which is whole then.
struct Gradient {
    const u8* row;
    bool narrow;

    template <bool WHOLE> DEVICE void load_block(u32 columns, u32 index, float (&x)[BLOCK]) const {
        if (!narrow) return load_values<WHOLE>((const float*)row, columns, index, x);
        u32 words[BLOCK / 2];
        UNROLL for (int half = 0; half < 2; half++) {
            uint4 four = ((const uint4*)row)[2 * index + half];
            words[4 * half] = four.x, words[4 * half + 1] = four.y;
            words[4 * half + 2] = four.z, words[4 * half + 3] = four.w;
        }
        UNROLL for (int i = 0; i < BLOCK; i++) x[i] = i % 2 ? upper(words[i / 2]) : lower(words[i / 2]);
    }
};

} // namespace state
