// y[t,c] = table[token[t], c] * s: a block for each token and each of its pieces.
#include "common.cuh"

extern "C" __global__ void embed(const u32 *tokens, const u8 *table, int format, float *out, u32 columns) {
    u32 row = tokens[blockIdx.x];
    float scale = tensor_scale(table, format);
    u32 c = blockIdx.y * blockDim.x + threadIdx.x;
    if (c < columns) out[(u64)blockIdx.x * columns + c] = weight_value(table, format, columns, row, c) * scale;
}
