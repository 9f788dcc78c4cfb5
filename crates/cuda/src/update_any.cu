// Tensors learn with any moments, any second moments and rows of any width. What their columns' second moments need, those
// with masters too, is made by a launch before.
#include "state/kinds.cuh"

// Sums of the squares of columns, a warp each; the first thread blocks make the profile.
extern "C" __global__ void __launch_bounds__(PROFILING)
    column_sums(const u8* gradient, u32 narrow, float* sums, const float* averages, float* profile, u32 first, u32 panels,
                u32 rows, u32 columns) {
    u32 tiles = tiles_of(columns), tile = blockIdx.x;
    if (tile < tiles) return Averages(averages, tile, columns).profile(profile + tile * TILE, tile, columns);
    ColumnSums of = {sums, nullptr, nullptr, first, panels, 0, 0, 0};
    u32 number = ((blockIdx.x - tiles) * blockDim.x + threadIdx.x) / 32;
    if (number >= sums_of(of, columns)) return;
    if (narrow) sum_columns<true, true>(of, gradient, rows, columns, number);
    else sum_columns<false, false>(of, gradient, rows, columns, number);
}

ANY(update_nvfp4_byte_any, Nvfp4Weight<8>)
ANY(update_nvfp4_nibble_any, Nvfp4Weight<4>)
ANY(update_int8_byte_any, Int8Weight<8>)
ANY(update_int8_nibble_any, Int8Weight<4>)
ANY(update_int8_none_any, Int8Weight<0>)
ANY(update_f32_any, FloatWeight)
