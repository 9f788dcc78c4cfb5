// Tensors learn with any moments, any second moments and rows of any width.
#include "state/kinds.cuh"

ANY(update_nvfp4_byte_any, Nvfp4Weight<8>)
ANY(update_nvfp4_nibble_any, Nvfp4Weight<4>)
ANY(update_int8_byte_any, Int8Weight<8>)
ANY(update_int8_nibble_any, Int8Weight<4>)
ANY(update_int8_none_any, Int8Weight<0>)
ANY(update_f32_any, FloatWeight)
