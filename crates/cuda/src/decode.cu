// Rows of weights as bf16 rows: what products of many tokens take. Without the tensor's own scale, so exact.
#include "weight_tile.cuh"

// A block takes the 16 rows of a panel and 512 columns: a warp two of the rows, a thread eight columns and the eight that
// lie 256 further.
const u32 ROWS = 2, PARTS = 2;

// Rows of a weight, and where they go.
struct Piece {
    const u8 *weight;
    u32 rows;
    uint4 *out;
};

// A panel of the first piece or, behind its last, of the second, or the third.
__device__ __forceinline__ Piece piece_of(Piece a, Piece b, Piece c, u32 *panel) {
    u32 of_a = (a.rows + 15) / 16, of_b = (b.rows + 15) / 16;
    if (*panel < of_a) return a;
    *panel -= of_a;
    if (*panel < of_b) return b;
    *panel -= of_b;
    return c;
}

// Rows from `first_row` on, which begins a panel; of each the `width` columns from `first_column` on, both multiples of 64.
template <int FORMAT>
__device__ __forceinline__ void decode_pieces(u32 columns, u32 first_row, u32 first_column, u32 width, Piece a, Piece b,
                                              Piece c) {
    const u32 WORDS = FORMAT == INT8 ? 2 : 1;
    u32 number = blockIdx.y;
    Piece piece = piece_of(a, b, c, &number);
    u32 rows = piece.rows, row = threadIdx.x / 32, first = number * 16 + row;
    u32 eight = blockIdx.x * (32 * PARTS) + threadIdx.x % 32;
    // Where this thread's first eight lies, and how far the next ones are.
    const u8 *panel = panel_of(piece.weight, FORMAT, columns, first_row + first);
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
    uint4 *out = piece.out + (u64)first * (width / 8) + eight;
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

#define PIECES                                                                                                              \
    u32 columns, u32 first_row, u32 first_column, u32 width, const u8 *weight_a, u32 rows_a, uint4 *out_a,                  \
        const u8 *weight_b, u32 rows_b, uint4 *out_b, const u8 *weight_c, u32 rows_c, uint4 *out_c

#define DECODE(format)                                                                                                      \
    decode_pieces<format>(columns, first_row, first_column, width, Piece{weight_a, rows_a, out_a},                          \
                          Piece{weight_b, rows_b, out_b}, Piece{weight_c, rows_c, out_c})

extern "C" __global__ void __launch_bounds__(256) decoded_int8(PIECES) { DECODE(INT8); }

extern "C" __global__ void __launch_bounds__(256) decoded_nvfp4(PIECES) { DECODE(NVFP4); }
