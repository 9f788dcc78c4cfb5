// The gradients of a gated pair: dg = dy u silu'(g), du = dy silu(g),
// silu'(g) = e (1 + g (1 - e)) with e = 1 / (1 + e^-g)
#pragma once
#include "common.cuh"

struct GatedGradient {
    float dgate, dup;
};

__device__ __forceinline__ GatedGradient gated_gradient_of(float g, float u, float dy) {
    float e = 1.0f / (1.0f + exp_of(-g));
    return {dy * u * (e * __fmaf_rn(g, 1.0f - e, 1.0f)), dy * (g * e)};
}
