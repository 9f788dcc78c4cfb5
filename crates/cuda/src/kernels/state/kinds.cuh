// Kinds of weights: each loads a block, moves it and stores it.
#pragma once
#include "int8.cuh"
#include "learn.cuh"
#include "master.cuh"
#include "weight.cuh"

// Codes and remainders.
template <int OF, int BITS, class Block> struct CodedWeight {
    static constexpr int FORMAT = OF, CODES = OF == NVFP4 ? 8 : 16, REST_BYTES = 2 * BITS;
    typedef typename Block::Tables Tables;
    Block block;

    DEVICE void load_from(const Place& at, u32 index) {
        load<CODES>(at.codes + index * CODES, block.codes);
        if constexpr (BITS > 0) load<REST_BYTES>(at.rest + index * REST_BYTES, block.rest);
        block.scale = at.scales[index];
    }

    // All but the scale.
    DEVICE void keep(const Place& at, u32 index) const {
        store<CODES>(at.codes + index * CODES, block.codes);
        if constexpr (BITS > 0) store<REST_BYTES>(at.rest + index * REST_BYTES, block.rest);
    }

    DEVICE void move(const Place& at, u32 index, const Tables& tables, const Move& by, Tally& tally) {
        update(block, tables, at.global, by, tally);
        keep(at, index);
        at.scales[index] = block.scale;
    }
};

template <int BITS> struct Nvfp4Weight : CodedWeight<NVFP4, BITS, Nvfp4<BITS>> {};
template <int BITS> struct Int8Weight : CodedWeight<INT8, BITS, Int8<BITS>> {};

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
