// Part of a weight as bf16 rows: what the products of cuBLASLt take. Without the tensor's own scale, so exact.
#include "weight_tile.cuh"

// A block takes the 16 rows of a panel and 512 columns: a warp two of the rows, a thread eight columns and the eight that
// lie 256 further.
const u32 ROWS = 2, PARTS = 2;

// Rows from `first_row` on, which begins a panel; of each the `width` columns from `first_column` on, both multiples of 64.
template <int FORMAT>
__device__ __forceinline__ void decode_part(const u8 *weight, u32 columns, u32 first_row, u32 rows, u32 first_column,
                                            u32 width, uint4 *out) {
    const u32 WORDS = FORMAT == INT8 ? 2 : 1;
    u32 row = threadIdx.x / 32, first = blockIdx.y * 16 + row, eight = blockIdx.x * (32 * PARTS) + threadIdx.x % 32;
    // Where this thread's first eight lies, and how far the next ones are.
    const u8 *panel = panel_of(weight, FORMAT, columns, first_row + first);
    u64 bytes = FORMAT == INT8 ? padded(columns) : padded(columns) / 2, column = first_column + eight * 8;
    const u8 *from = panel + row * bytes + (FORMAT == INT8 ? column : column / 2);
    const u8 *scale = panel + 16 * bytes + (row * padded(columns) + column) / 16;
    u64 next_codes = 8 * bytes, next_scales = padded(columns) / 2, next_out = width;
    u32 codes[ROWS][PARTS][WORDS], scales[ROWS][PARTS];
#pragma unroll
    for (u32 i = 0; i < ROWS; i++) {
#pragma unroll
        for (u32 j = 0; j < PARTS; j++) {
            if (first + i * 8 >= rows || (eight + j * 32) * 8 >= width) continue;
            scales[i][j] = scale[i * next_scales + j * 16];
            const u32 *words = (const u32 *)(from + i * next_codes + j * (128 * WORDS));
            if (FORMAT == INT8) {
                uint2 two = *(const uint2 *)words;
                codes[i][j][0] = two.x, codes[i][j][WORDS - 1] = two.y;
            } else {
                codes[i][j][0] = *words;
            }
        }
    }
    out += (u64)first * (width / 8) + eight;
#pragma unroll
    for (u32 i = 0; i < ROWS; i++) {
#pragma unroll
        for (u32 j = 0; j < PARTS; j++) {
            if (first + i * 8 >= rows || (eight + j * 32) * 8 >= width) continue;
            u32 pairs[4];
            if (FORMAT == INT8) {
                decode_int8(codes[i][j][0], e8m0(scales[i][j]), pairs);
                decode_int8(codes[i][j][WORDS - 1], e8m0(scales[i][j]), pairs + 2);
            } else {
                u32 factor = __float_as_uint(e4m3(scales[i][j])) >> 16;
                decode_e2m1(codes[i][j][0], factor | factor << 16, pairs);
            }
            out[i * next_out + j * 32] = make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
        }
    }
}

#define PART const u8 *weight, u32 columns, u32 first_row, u32 rows, u32 first_column, u32 width, uint4 *out

extern "C" __global__ void __launch_bounds__(256) decode_int8_part(PART) {
    decode_part<INT8>(weight, columns, first_row, rows, first_column, width, out);
}

extern "C" __global__ void __launch_bounds__(256) decode_nvfp4_part(PART) {
    decode_part<NVFP4>(weight, columns, first_row, rows, first_column, width, out);
}
