// `state::draw`: Philox4x32. The key is made on the host, by (seed, step, tensor, purpose).
#pragma once
#include "device.cuh"

namespace state {

struct Draws {
    u32 key[2];
};

template <int COUNT> DEVICE void rounds(Draws draws, u32 (&words)[4]) {
    u32 c0 = words[0], c1 = words[1], c2 = words[2], c3 = words[3];
    u32 k0 = draws.key[0], k1 = draws.key[1];
    UNROLL for (int round = 0; round < COUNT; round++) {
        u32 high0 = __umulhi(0xD2511F53u, c0), low0 = 0xD2511F53u * c0;
        u32 high1 = __umulhi(0xCD9E8D57u, c2), low1 = 0xCD9E8D57u * c2;
        c0 = high1 ^ c1 ^ k0;
        c1 = low1;
        c2 = high0 ^ c3 ^ k1;
        c3 = low0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    words[0] = c0, words[1] = c1, words[2] = c2, words[3] = c3;
}

DEVICE void philox(u64 counter, Draws draws, u32 (&words)[4]) {
    words[0] = (u32)counter, words[1] = (u32)(counter >> 32), words[2] = words[3] = 0;
    rounds<7>(draws, words);
}

// The words of a block's sixteen elements, from number `first` on.
DEVICE void draw_block(Draws draws, u64 first, u32 (&words)[BLOCK]) {
    UNROLL for (int quad = 0; quad < 4; quad++) {
        u32 four[4];
        philox(first / 4 + quad, draws, four);
        UNROLL for (int i = 0; i < 4; i++) words[4 * quad + i] = four[i];
    }
}

// Two decisions for each of sixteen elements, four of which share a word, turned so that other bits are on top for each.
struct Pairs {
    u32 words[4];

    DEVICE u32 turned(int i, int by) const { return __funnelshift_l(words[i / 4], words[i / 4], by); }
};

// What rounds the weights, and what rounds the moments.
struct Own : Pairs {
    // Three quarters. From the host, so that the compiler does not know it and keeps it in a register: an instruction that chooses
    // bytes has room for one constant, which is the choice.
    u32 base;

    DEVICE u32 operator[](int i) const { return turned(i, 16 + 24 * (i % 4)); }

    // `units::luck` over 256: three quarters and two bytes of a word far below.
    DEVICE float luck(int i) const {
        return __uint_as_float(__byte_perm(words[i / 4], base, i % 4 | (i + 1) % 4 << 4 | 0x7600));
    }
};
struct Other : Pairs {
    DEVICE u32 operator[](int i) const { return turned(i, (i % 4 == 1 || i % 4 == 2 ? 16 : 0) + (i % 2 ? 10 : 0)); }
};

// The upper 28 bits of what rounds element i, of which 22 count: of pairs those of a word or of its halves exchanged, the
// upper ones or the lower.
DEVICE u32 upper28(const Other& luck, int i) {
    u32 word = luck.words[i / 4], turned = i % 4 == 1 || i % 4 == 2 ? __byte_perm(word, word, 0x1032) : word;
    return i % 2 ? turned << 6 & 0x0FFFFFFF : turned >> 4;
}

DEVICE u32 upper28(const u32 (&luck)[BLOCK], int i) {
    return luck[i] >> 4;
}

DEVICE Pairs draw_pairs(Draws draws, u64 first) {
    Pairs pairs;
    philox(first / BLOCK, draws, pairs.words);
    return pairs;
}

// Those of a block of a row, before which there are so many blocks in all rows: `draw::Row`.
DEVICE Pairs draw_pairs(Draws draws, u64 before, u32 block) {
    Pairs pairs;
    philox(before, draws, pairs.words);
    pairs.words[0] += block * 0x9E3779B9u, pairs.words[2] += block * 0xBB67AE85u;
    rounds<3>(draws, pairs.words);
    return pairs;
}

} // namespace state
