// Cross-entropy over chunks of the vocabulary, with the bits of `ops::loss`. State of a token: the largest
// logit, the sum of e^(logit - largest), the target's logit.
#include "common.cuh"

constexpr u32 TILE = 4096;

// A block of 256 threads for each token. Exponentials are made by all, and added by sixteen in order.
extern "C" __global__ void loss(const float *logits, u32 columns, u64 first, const u32 *targets, float *states) {
    __shared__ float near[TILE];
    __shared__ float tops[8];
    const float *row = logits + (u64)blockIdx.x * columns;
    float *state = states + blockIdx.x * 3;
    float top = state[0];
    // NaN is passed over, so that it shows in the sum.
    for (u32 c = threadIdx.x; c < columns; c += blockDim.x) top = row[c] > top ? row[c] : top;
    for (int width = 16; width > 0; width /= 2) {
        float other = __shfl_xor_sync(0xffffffffu, top, width);
        top = other > top ? other : top;
    }
    if (threadIdx.x % 32 == 0) tops[threadIdx.x / 32] = top;
    __syncthreads();
    for (u32 warp = 0; warp < blockDim.x / 32; warp++) top = tops[warp] > top ? tops[warp] : top;
    float lane = 0.0f;
    for (u32 start = 0; start < columns; start += TILE) {
        u32 count = columns - start < TILE ? columns - start : TILE;
        for (u32 c = threadIdx.x; c < count; c += blockDim.x) near[c] = exp_of(row[start + c] - top);
        __syncthreads();
        if (threadIdx.x < 16) {
#pragma unroll 8
            for (u32 c = threadIdx.x; c < count; c += 16) lane += near[c];
        }
        __syncthreads();
    }
    if (threadIdx.x >= 32) return;
    float sum = fold(lane);
    if (threadIdx.x > 0) return;
    state[1] = __fmaf_rn(state[1], exp_of(state[0] - top), sum);
    state[0] = top;
    u64 at = (u64)targets[blockIdx.x] - first;
    if (targets[blockIdx.x] >= first && at < columns) state[2] = row[at];
}

// Gradients in place of the logits; a token without a target (all ones) has none.
extern "C" __global__ void loss_gradient(float *logits, u32 columns, u64 first, const u32 *targets,
                                         const float *states, float weight) {
    u32 column = blockIdx.y * blockDim.x + threadIdx.x, target = targets[blockIdx.x];
    if (column >= columns) return;
    float *logit = logits + (u64)blockIdx.x * columns + column;
    if (target == 0xffffffffu) {
        *logit = 0.0f;
        return;
    }
    const float *state = states + blockIdx.x * 3;
    float value = exp_of(*logit - state[0]) * (weight / state[1]);
    *logit = first + column == target ? value - weight : value;
}
