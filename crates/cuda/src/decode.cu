// Part of a weight as bf16 rows: what the products of cuBLASLt take. Without the tensor's own scale, so exact.
#include "weight_tile.cuh"

const u32 EACH = 4; // eights of values that a thread decodes

// Rows from `first_row` on; of each the `width` columns from `first_column` on, both multiples of 8 within blocks.
template <int FORMAT>
__device__ __forceinline__ void decode_part(const u8 *weight, u32 columns, u32 first_row, u32 rows, u32 first_column,
                                            u32 width, uint4 *out) {
    u32 eights = width / 8, count = rows * eights, first = blockIdx.x * (256 * EACH) + threadIdx.x;
    u32 codes[EACH][FORMAT == INT8 ? 2 : 1], scales[EACH];
#pragma unroll
    for (u32 i = 0; i < EACH; i++) {
        u32 at = first + i * 256;
        if (at >= count) break;
        u32 row = first_row + at / eights, column = first_column + at % eights * 8;
        const u8 *panel = panel_of(weight, FORMAT, columns, row);
        const u8 *from = codes_of(panel, FORMAT, columns, row);
        scales[i] = scales_of(panel, FORMAT, columns, row)[column / 16];
        if (FORMAT == INT8) {
            uint2 two = *(const uint2 *)(from + column);
            codes[i][0] = two.x, codes[i][FORMAT == INT8 ? 1 : 0] = two.y;
        } else {
            codes[i][0] = *(const u32 *)(from + column / 2);
        }
    }
#pragma unroll
    for (u32 i = 0; i < EACH; i++) {
        u32 at = first + i * 256, pairs[4];
        if (at >= count) break;
        if (FORMAT == INT8) {
            decode_int8(codes[i][0], e8m0(scales[i]), pairs);
            decode_int8(codes[i][FORMAT == INT8 ? 1 : 0], e8m0(scales[i]), pairs + 2);
        } else {
            u32 scale = __float_as_uint(e4m3(scales[i])) >> 16;
            decode_e2m1(codes[i][0], scale | scale << 16, pairs);
        }
        out[at] = make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
    }
}

#define PART const u8 *weight, u32 columns, u32 first_row, u32 rows, u32 first_column, u32 width, uint4 *out

extern "C" __global__ void __launch_bounds__(256) decode_int8_part(PART) {
    decode_part<INT8>(weight, columns, first_row, rows, first_column, width, out);
}

extern "C" __global__ void __launch_bounds__(256) decode_nvfp4_part(PART) {
    decode_part<NVFP4>(weight, columns, first_row, rows, first_column, width, out);
}
