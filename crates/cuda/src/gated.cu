// y[t,c] = silu(g[t,c]) * u[t,c] of products that are there already, and the way back. A block for each row.
//
// Narrow products are those of the library: of `count` columns from `first` on, a multiple of 64; their rows lie `stride`
// apart, a multiple of 8. A thread takes eight columns at a time, and goes on with zeros to the end of the padding.
#include "gated.cuh"

__device__ __forceinline__ void get_eight(const u16 *from, float (&x)[8]) {
    uint4 pairs = *(const uint4 *)from;
    u32 of[4] = {pairs.x, pairs.y, pairs.z, pairs.w};
#pragma unroll
    for (u32 i = 0; i < 4; i++) x[2 * i] = float_of((u16)of[i]), x[2 * i + 1] = float_of((u16)(of[i] >> 16));
}

__device__ __forceinline__ void put_eight(u16 *to, const float (&x)[8]) {
    *(uint4 *)to = make_uint4(pair_of(x[0], x[1]), pair_of(x[2], x[3]), pair_of(x[4], x[5]), pair_of(x[6], x[7]));
}

// y = silu(g) u, nothing of it narrow but perhaps y
extern "C" __global__ void gated(const float *gate, const float *up, void *out, u32 narrow, u32 columns) {
    u64 t = blockIdx.x;
    for (u32 c = threadIdx.x; c < columns; c += blockDim.x)
        put(out, narrow, columns, t, c, silu(gate[t * columns + c]) * up[t * columns + c]);
    pad(out, narrow, columns, t, threadIdx.x, blockDim.x);
}

// Scales and biases are those that are not in the products yet, or null; with a bias the products become whole in place.
extern "C" __global__ void gated_narrow(u16 *gate, u16 *up, u32 stride, const float *gate_scale, const float *up_scale,
                                        const float *gate_bias, const float *up_bias, u16 *out, u32 columns, u32 first,
                                        u32 count) {
    u64 t = blockIdx.x;
    float by = gate_scale ? *gate_scale : 1.0f, up_by = up_scale ? *up_scale : 1.0f;
    for (u32 c = threadIdx.x * 8; c < padded(count); c += blockDim.x * 8) {
        u64 at = t * stride + c;
        float g[8], u[8], y[8];
        get_eight(gate + at, g), get_eight(up + at, u);
#pragma unroll
        for (u32 i = 0; i < 8; i++) {
            u32 column = first + c + i;
            bool there = column < columns;
            g[i] = there ? g[i] * by + (gate_bias ? gate_bias[column] : 0.0f) : 0.0f;
            u[i] = there ? u[i] * up_by + (up_bias ? up_bias[column] : 0.0f) : 0.0f;
            y[i] = g[i] * quick_sigmoid(g[i]) * u[i];
        }
        put_eight(out + t * padded(columns) + first + c, y);
        if (gate_bias || up_bias || first + c + 8 > columns) put_eight(gate + at, g), put_eight(up + at, u);
    }
}

// Gradients may take the places of what was kept.
extern "C" __global__ void gated_gradient_narrow(const u16 *dy, u32 stride, const u16 *gate, const u16 *up, u16 *dgate,
                                                 u16 *dup, u32 columns, u32 first, u32 count) {
    u64 t = blockIdx.x;
    for (u32 c = threadIdx.x * 8; c < padded(count); c += blockDim.x * 8) {
        u64 at = t * padded(columns) + first + c;
        float d[8], g[8], u[8];
        get_eight(dy + t * stride + c, d), get_eight(gate + at, g), get_eight(up + at, u);
#pragma unroll
        for (u32 i = 0; i < 8; i++) {
            bool there = first + c + i < columns;
            GatedGradient of = gated_gradient_of(g[i], u[i], d[i], quick_sigmoid(g[i]));
            g[i] = there ? of.dgate : 0.0f, u[i] = there ? of.dup : 0.0f;
        }
        put_eight(dgate + at, g), put_eight(dup + at, u);
    }
}

// y[t,c] += b[c]
extern "C" __global__ void add_bias(float *y, const float *bias, u32 columns) {
    u64 t = blockIdx.x;
    for (u32 c = threadIdx.x; c < columns; c += blockDim.x) y[t * columns + c] += bias[c];
}
