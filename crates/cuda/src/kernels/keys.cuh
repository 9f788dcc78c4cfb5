// Keys and values as attention of many queries takes them: those of a cache (`cache.cuh`), or narrow rows.
#pragma once
#include "cache.cuh"

struct Keys {
    const u8 *keys, *values;
    u32 kv_heads, head_dim;
    // Values from one head to the next, and from one position to the next.
    u64 of_head, of_position;

    // Channels that are there, zeros included.
    __device__ __forceinline__ u32 width() const { return (head_dim + 31u) & ~31u; }

    __device__ __forceinline__ u64 row(u32 head, u32 position) const { return head * of_head + position * of_position; }

    // What scales of a cache lie behind.
    __device__ __forceinline__ u64 values_of_side() const { return kv_heads * of_head; }
};

#define KEYS const u8 *keys, const u8 *values, u32 kv_heads, u32 head_dim, u64 of_head, u64 of_position
#define GIVEN_KEYS Keys{keys, values, kv_heads, head_dim, of_head, of_position}
