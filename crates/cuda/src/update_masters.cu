// Weights that are kept wide learn, and their codes follow: for comparison.
#include "state/learn.cuh"
#include "state/master.cuh"

// Wide weights of f32 or bf16; codes follow from them.
template <int OF, int BYTES> struct MasterWeight {
    static constexpr int FORMAT = OF, REST_BYTES = BYTES * BLOCK;
    typedef NoTables Tables;

    DEVICE void load_from(const Place&, u32) {}

    DEVICE void move(const Place& at, u32 index, const NoTables&, const Move& by, Tally& tally) {
        float w[BLOCK], delta[BLOCK];
        float* floats = (float*)at.rest + index * BLOCK;
        u16* narrow = (u16*)at.rest + index * BLOCK;
        UNROLL for (int i = 0; i < BLOCK; i++) w[i] = BYTES == 4 ? floats[i] : float_of(narrow[i]);
        by.push.values(w, delta);
        if (!any(delta)) return;
        if (!(BYTES == 4 ? advance_f32(w, delta) : advance_bf16(w, delta, by.luck))) {
            tally.refused += 1;
            return;
        }
        UNROLL for (int i = 0; i < BLOCK; i++) {
            if (BYTES == 4) floats[i] = w[i];
            else narrow[i] = (u16)(__float_as_uint(w[i]) >> 16);
        }
        constexpr int BYTES_OF_CODES = OF == NVFP4 ? 8 : 16;
        u32 codes[BYTES_OF_CODES / 4];
        load<BYTES_OF_CODES>(at.codes + index * BYTES_OF_CODES, codes);
        if constexpr (OF == NVFP4) follow_nvfp4(w, at.global, at.scales_by, codes, at.scales[index], tally);
        else follow_int8(w, codes, at.scales[index], tally);
        store<BYTES_OF_CODES>(at.codes + index * BYTES_OF_CODES, codes);
    }
};

ANY(update_nvfp4_bf16_any, MasterWeight<NVFP4, 2>)
ANY(update_nvfp4_float_any, MasterWeight<NVFP4, 4>)
ANY(update_int8_bf16_any, MasterWeight<INT8, 2>)
ANY(update_int8_float_any, MasterWeight<INT8, 4>)
