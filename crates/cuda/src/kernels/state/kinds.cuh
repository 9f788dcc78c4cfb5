// Kinds of weights: each loads a block, moves it and stores it.
#pragma once
#include "int8.cuh"
#include "learn.cuh"
#include "master.cuh"
#include "weight.cuh"

template <int BITS> struct Nvfp4Weight {
    static constexpr int FORMAT = NVFP4, REST_BYTES = 2 * BITS;
    typedef typename Nvfp4<BITS>::Tables Tables;
    Nvfp4<BITS> block;

    DEVICE void load_from(const Place& at, u32 index) {
        load<8>(at.codes + index * 8, block.codes);
        load<REST_BYTES>(at.rest + index * REST_BYTES, block.rest);
        block.scale = at.scales[index];
    }

    DEVICE void move(const Place& at, u32 index, const Tables& tables, const Move& by, Tally& tally) {
        update(block, tables, at.global, by, tally);
        store<8>(at.codes + index * 8, block.codes);
        store<REST_BYTES>(at.rest + index * REST_BYTES, block.rest);
        at.scales[index] = block.scale;
    }
};

template <int BITS> struct Int8Weight {
    static constexpr int FORMAT = INT8, REST_BYTES = 2 * BITS;
    typedef typename Int8<BITS>::Tables Tables;
    Int8<BITS> block;

    DEVICE void load_from(const Place& at, u32 index) {
        load<16>(at.codes + index * 16, block.codes);
        if constexpr (BITS > 0) load<REST_BYTES>(at.rest + index * REST_BYTES, block.rest);
        block.scale = at.scales[index];
    }

    DEVICE void move(const Place& at, u32 index, const Tables& tables, const Move& by, Tally& tally) {
        update(block, tables, 1.0f, by, tally);
        store<16>(at.codes + index * 16, block.codes);
        if constexpr (BITS > 0) store<REST_BYTES>(at.rest + index * REST_BYTES, block.rest);
        at.scales[index] = block.scale;
    }
};

struct FloatWeight {
    static constexpr int FORMAT = F32, REST_BYTES = 0;
    typedef NoTables Tables;

    DEVICE void load_from(const Place&, u32) {}

    DEVICE void move(const Place& at, u32 index, const NoTables&, const Move& by, Tally& tally) {
        float w[BLOCK], old[BLOCK], delta[BLOCK];
        float* place = (float*)at.codes + index * BLOCK;
        UNROLL for (int i = 0; i < BLOCK; i++) old[i] = w[i] = place[i];
        by.push.values(w, delta);
        if (!advance_f32(w, delta)) {
            tally.refused += 1;
            return;
        }
        UNROLL for (int i = 0; i < BLOCK; i++) {
            tally.changed += __float_as_uint(w[i]) != __float_as_uint(old[i]);
            place[i] = w[i];
        }
    }
};
