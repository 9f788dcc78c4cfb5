// A token's way through a model is a list of stages, and one kernel walks along it: a block on every multiprocessor, all
// at the same stage. No block begins one before all have ended the one in front of it; but what nobody writes
// meanwhile, weights above all, is under way by then.
#pragma once
#include "common.cuh"

// As chain.rs numbers them.
enum StageKind { LINEAR = 0, GATED = 1, ATTEND = 2 };

// Up to three products of a token, or a gated pair: with the token as it lies there, or by way of its norm.
struct ProductStage {
    u32 kind, format, inputs;
    float eps;
    // Units are of four outputs: those of the second and of the third product begin there. Of a pair, units are in turn.
    u32 outputs[3], second, third, units;
    u32 x_narrow, out_narrow, added; // a bit for each product
    // Tiles of a unit and 2^32 through them, rounded up; units, or pairs of them, that every block has at least.
    u32 tiles, tiles_inverse, share;
    const void *x;
    const float *gain; // none: no norm
    u16 *normed;
    const u8 *weight[3];
    const float *bias[3];
    void *out[3];
};

// Attention of one query that comes straight from its product, as do the key and the value that are kept beside it.
struct AttendStage {
    u32 kind, format, heads;
    float eps;
    u32 kv_heads, head_dim, capacity, window, narrow;
    // What the position decides; a share is what every block has at least.
    u32 start, first_split, splits, tasks, share;
    u32 unused[2];
    const float *q, *q_gain, *keys, *k_gain, *values, *turns;
    u8 *cache;
    float *sums;
    u32 *tickets;
    void *out;
    u64 unused_too[2];
};

union Stage {
    ProductStage product;
    AttendStage attend;
    uint4 words[10];
};

// Stages whose description is in shared memory: this one, and the next.
const u32 KNOWN = 8;
