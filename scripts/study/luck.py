#!/usr/bin/env python3
"""How alike are random words of a row's neighbouring blocks, after so many rounds of Philox?

  python3 scripts/study/luck.py

The optimizer draws a row's state with seven rounds and tells its blocks apart by three
(`crates/formats/src/state/draw.rs`). For each number of rounds this prints the largest deviation from
chance, in standard deviations: of the bits that two words have in common, and of the differences and pairs
of their bytes. Of thousands of numbers that are chance the largest is between 3 and 5.

Needs numpy.
"""

import numpy as np

LOW, UPPER = np.uint64(0xFFFFFFFF), np.uint64(32)
MULTIPLIERS = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
KEY_STEPS = 0x9E3779B9, 0xBB67AE85
KEY = 0x12345678, 0x9ABCDEF1
ROWS, BLOCKS, WIDTH = 20000, 96, 96 * 16


def rounds(words, count):
    a, b, c, d = words
    k0, k1 = KEY
    for _ in range(count):
        p0, p1 = MULTIPLIERS[0] * a, MULTIPLIERS[1] * c
        a, b, c, d = (p1 >> UPPER) ^ b ^ np.uint64(k0), p1 & LOW, (p0 >> UPPER) ^ d ^ np.uint64(k1), p0 & LOW
        k0, k1 = (k0 + KEY_STEPS[0]) & 0xFFFFFFFF, (k1 + KEY_STEPS[1]) & 0xFFFFFFFF
    return a, b, c, d


def blocks(count):
    """Four words of every block of every row."""
    first = np.arange(ROWS, dtype=np.uint64) * np.uint64(WIDTH // 16)
    zero = np.zeros(ROWS, np.uint64)
    a, b, c, d = (word[:, None] for word in rounds((first, zero, zero, zero), 7))
    number = np.arange(BLOCKS, dtype=np.uint64)[None]
    on = [(word + number * np.uint64(step)) & LOW for word, step in ((a, KEY_STEPS[0]), (c, KEY_STEPS[1]))]
    return rounds((on[0], b + 0 * number, on[1], d + 0 * number), count)


def in_common(words):
    """Deviations of the bits that two words share: of blocks so far apart, and of one block."""
    for apart in (0, 1, 2, 3, 4, 8, 16, 32):
        for i in range(4):
            for j in range(4):
                if apart == 0 and i >= j:
                    continue
                both = words[i][:, : BLOCKS - apart] ^ words[j][:, apart:]
                for bit in range(32):
                    share = ((both >> np.uint64(bit)) & np.uint64(1)).mean()
                    yield abs(share - 0.5) * 2 * np.sqrt(both.size)


def of_bytes(words):
    """Deviations of chi-squares: differences of bytes, and pairs of their upper halves."""
    for apart in (1, 2, 4, 8):
        for word in words:
            for shift in (0, 8, 16, 24):
                byte = (word >> np.uint64(shift)).astype(np.int64) & 255
                one, other = byte[:, apart:], byte[:, : BLOCKS - apart]
                for cell in ((one - other) & 255, one >> 4 << 4 | other >> 4):
                    counts, expected = np.bincount(cell.ravel(), minlength=256), cell.size / 256
                    yield abs(((counts - expected) ** 2 / expected).sum() - 255) / np.sqrt(510)


if __name__ == "__main__":
    print(f"{ROWS} rows of {BLOCKS} blocks")
    for count in (2, 3, 4):
        words = blocks(count)
        print(f"{count} rounds: bits {max(in_common(words)):.1f}, bytes {max(of_bytes(words)):.1f}")
