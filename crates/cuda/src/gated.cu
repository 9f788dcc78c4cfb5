// y[t,c] = silu(g[t,c]) * u[t,c] of products that are there already, and the way back. A block for each row;
// y and gradients may be narrow. Products may be those of some columns only: `count` from `first` on.
#include "gated.cuh"

__device__ __forceinline__ float with_bias(const float *products, u64 at, const float *bias, u32 c) {
    return bias ? products[at] + bias[c] : products[at];
}

extern "C" __global__ void gated(const float *gate, const float *up, const float *gate_bias, const float *up_bias, void *out,
                                 u32 narrow, u32 columns, u32 first, u32 count) {
    u64 t = blockIdx.x;
    for (u32 c = threadIdx.x; c < count; c += blockDim.x) {
        float g = with_bias(gate, t * count + c, gate_bias, first + c);
        float u = with_bias(up, t * count + c, up_bias, first + c);
        put(out, narrow, columns, t, first + c, silu(g) * u);
    }
    if (first + count == columns) pad(out, narrow, columns, t, threadIdx.x, blockDim.x);
}

// dy is that of the same columns.
extern "C" __global__ void gated_gradient(const float *dy, const float *gate, const float *up, void *dgate, void *dup,
                                          u32 gate_narrow, u32 up_narrow, u32 columns, u32 first, u32 count) {
    u64 t = blockIdx.x;
    for (u32 c = threadIdx.x; c < count; c += blockDim.x) {
        u64 at = t * columns + first + c;
        GatedGradient of = gated_gradient_of(gate[at], up[at], dy[t * count + c]);
        put(dgate, gate_narrow, columns, t, first + c, of.dgate);
        put(dup, up_narrow, columns, t, first + c, of.dup);
    }
    if (first + count < columns) return;
    pad(dgate, gate_narrow, columns, t, threadIdx.x, blockDim.x);
    pad(dup, up_narrow, columns, t, threadIdx.x, blockDim.x);
}

// y[t,c] += b[c]
extern "C" __global__ void add_bias(float *y, const float *bias, u32 columns) {
    u64 t = blockIdx.x;
    for (u32 c = threadIdx.x; c < columns; c += blockDim.x) y[t * columns + c] += bias[c];
}
