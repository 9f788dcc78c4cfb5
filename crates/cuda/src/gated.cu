// y[t,c] = silu(g[t,c]) * u[t,c] of products that are there already, and the way back. A block for each row, a thread
// for four columns; y, gradients and what is kept may be narrow. Products may be those of some columns only: `count`
// from `first` on.
#include "gated.cuh"

// Four numbers; zeros where there are fewer.
struct Four {
    float of[4];
};

// Whether rows that begin at multiples of these may be read and written in fours.
__device__ __forceinline__ bool in_fours(u32 a, u32 b, u32 c) { return ((a | b | c) & 3u) == 0; }

__device__ __forceinline__ Four load(const float *from, u32 there, bool whole) {
    if (whole && there == 4) {
        float4 x = *(const float4 *)from;
        return {{x.x, x.y, x.z, x.w}};
    }
    Four x = {};
#pragma unroll
    for (u32 i = 0; i < 4; i++)
        if (i < there) x.of[i] = from[i];
    return x;
}

__device__ __forceinline__ Four load_kept(const void *rows, u32 narrow, u32 columns, u64 row, u32 column, u32 there,
                                          bool whole) {
    if (!narrow) return load((const float *)rows + row * columns + column, there, whole);
    const u16 *from = (const u16 *)rows + row * padded(columns) + column;
    if (whole && there == 4) {
        uint2 x = *(const uint2 *)from;
        return {{float_of((u16)x.x), float_of(x.x >> 16), float_of((u16)x.y), float_of(x.y >> 16)}};
    }
    Four x = {};
#pragma unroll
    for (u32 i = 0; i < 4; i++)
        if (i < there) x.of[i] = float_of(from[i]);
    return x;
}

__device__ __forceinline__ void keep(void *rows, u32 narrow, u32 columns, u64 row, u32 column, u32 there, bool whole,
                                     const Four &x) {
    if (whole && there == 4) {
        put_four(rows, narrow, columns, row, column, make_float4(x.of[0], x.of[1], x.of[2], x.of[3]));
        return;
    }
#pragma unroll
    for (u32 i = 0; i < 4; i++)
        if (i < there) put(rows, narrow, columns, row, column + i, x.of[i]);
}

// Rows of both products are `stride` apart. Scales, biases and places of what is kept (narrow) may be null.
extern "C" __global__ void gated(const float *gate, const float *up, u32 stride, const float *gate_scale,
                                 const float *up_scale, const float *gate_bias, const float *up_bias, void *kept,
                                 void *kept_up, void *out, u32 narrow, u32 columns, u32 first, u32 count) {
    u64 t = blockIdx.x;
    bool whole = in_fours(stride, columns, first);
    float by = gate_scale ? *gate_scale : 1.0f, up_by = up_scale ? *up_scale : 1.0f;
    for (u32 c = threadIdx.x * 4; c < count; c += blockDim.x * 4) {
        u32 there = min(4u, count - c), column = first + c;
        Four g = load(gate + t * stride + c, there, whole), u = load(up + t * stride + c, there, whole), y;
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            g.of[i] *= by, u.of[i] *= up_by;
            if (gate_bias && i < there) g.of[i] += gate_bias[column + i];
            if (up_bias && i < there) u.of[i] += up_bias[column + i];
            y.of[i] = silu(g.of[i]) * u.of[i];
        }
        keep(out, narrow, columns, t, column, there, whole, y);
        if (!kept) continue;
        keep(kept, true, columns, t, column, there, whole, g);
        keep(kept_up, true, columns, t, column, there, whole, u);
    }
    if (first + count < columns) return;
    pad(out, narrow, columns, t, threadIdx.x, blockDim.x);
    if (!kept) return;
    pad(kept, true, columns, t, threadIdx.x, blockDim.x);
    pad(kept_up, true, columns, t, threadIdx.x, blockDim.x);
}

// dy is that of the same columns. Gradients may take the places of what was kept.
extern "C" __global__ void gated_gradient(const float *dy, const void *gate, const void *up, u32 kept_narrow, void *dgate,
                                          void *dup, u32 gate_narrow, u32 up_narrow, u32 columns, u32 first, u32 count) {
    u64 t = blockIdx.x;
    bool whole = in_fours(count, columns, first);
    for (u32 c = threadIdx.x * 4; c < count; c += blockDim.x * 4) {
        u32 there = min(4u, count - c), column = first + c;
        Four d = load(dy + t * count + c, there, whole), both[2];
        Four g = load_kept(gate, kept_narrow, columns, t, column, there, whole);
        Four u = load_kept(up, kept_narrow, columns, t, column, there, whole);
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            GatedGradient of = gated_gradient_of(g.of[i], u.of[i], d.of[i]);
            both[0].of[i] = of.dgate, both[1].of[i] = of.dup;
        }
        keep(dgate, gate_narrow, columns, t, column, there, whole, both[0]);
        keep(dup, up_narrow, columns, t, column, there, whole, both[1]);
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
