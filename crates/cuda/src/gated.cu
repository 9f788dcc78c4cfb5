// y[t,c] = silu(g[t,c]) * u[t,c]: a block for each row; `out` may be narrow.
#include "common.cuh"

extern "C" __global__ void gated(const float *gate, const float *up, void *out, u32 narrow, u32 columns) {
    u64 t = blockIdx.x;
    for (u32 c = threadIdx.x; c < columns; c += blockDim.x) {
        u64 at = t * columns + c;
        put(out, narrow, columns, t, c, silu(gate[at]) * up[at]);
    }
    pad(out, narrow, columns, t, threadIdx.x, blockDim.x);
}
