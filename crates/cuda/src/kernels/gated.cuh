// The gradients of a gated pair: dg = dy u silu'(g), du = dy silu(g),
// silu'(g) = e (1 + g (1 - e)) with e = 1 / (1 + e^-g)
#pragma once
#include "common.cuh"
#include "tensor_core.cuh"

struct GatedGradient {
    float dgate, dup;
};

__device__ __forceinline__ float sigmoid(float x) { return 1.0f / (1.0f + exp_of(-x)); }

// Within a few units in the last place, for what is rounded to bf16 before and after.
__device__ __forceinline__ float quick_sigmoid(float x) {
    return quick_reciprocal(1.0f + quick_exp2(x * -1.44269504088896340736f));
}

// `e` is the sigmoid of g.
__device__ __forceinline__ GatedGradient gated_gradient_of(float g, float u, float dy, float e) {
    return {dy * u * (e * __fmaf_rn(g, 1.0f - e, 1.0f)), dy * (g * e)};
}
