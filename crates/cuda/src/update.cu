// Tensors learn whose moments have four bits, whose second moments are factored and whose rows are whole: the usual
// ones. Others: `update_any.cu`, `update_masters.cu`.
#include "state/kinds.cuh"
#include "state/usual.cuh"

USUAL(update_nvfp4_byte, Nvfp4Weight<8>)
USUAL_NARROW(update_nvfp4_byte_narrow, Nvfp4Weight<8>)
USUAL(update_nvfp4_nibble, Nvfp4Weight<4>)
USUAL_NARROW(update_nvfp4_nibble_narrow, Nvfp4Weight<4>)
USUAL(update_int8_nibble, Int8Weight<4>)
USUAL(update_int8_none, Int8Weight<0>)

// A vector of f32 learns, a thread for each number; warps have whole blocks. A block that would not be finite stays as it
// is.
extern "C" __global__ void update_vector(float* weight, float* moments, float* seconds, const float* gradient,
                                         u32 length, u64* counts, NUMBERS) {
    Step step = STEP;
    u32 at = blockIdx.x * blockDim.x + threadIdx.x;
    bool there = at < length;
    float w = there ? weight[at] : 0.0f, g = there ? gradient[at] : 0.0f;
    float m = followed(step, there ? moments[at] : 0.0f, g);
    float v = average_of(SECOND_AVERAGE, there ? seconds[at] : 0.0f, g * g);
    float along = clamped(m * (1.0f / (root(v) * step.per_root + step.eps)), -step.limit, step.limit);
    float delta = -step.size * along - step.decay * w, moved = w + delta;
    u32 largest = __float_as_uint(moved) & 0x7FFFFFFF;
    for (int apart = BLOCK / 2; apart > 0; apart /= 2)
        largest = max(largest, __shfl_xor_sync(0xffffffffu, largest, apart));
    if (largest >= 0x7F800000) {
        if (there && threadIdx.x % BLOCK == 0) atomicAdd(counts + REFUSED, 1ull);
    } else if (there) {
        weight[at] = delta == 0.0f ? w : moved;
        moments[at] = m, seconds[at] = v;
    }
}
