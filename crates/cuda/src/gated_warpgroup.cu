// y[t,c] = silu(g[t,c]) * u[t,c] and the way back, by warpgroups, as the products in front of the mix and behind it are
// made (see product_warpgroup.rs, kernels/pairs.cuh). Products are rounded first, as they are where they are kept. All
// rows are narrow; their columns are counted to the end of the padding, where every side is zero.
#include "gated.cuh"
#include "pairs.cuh"

__device__ __forceinline__ float low_of(u32 pair) { return __uint_as_float(pair << 16); }
__device__ __forceinline__ float high_of(u32 pair) { return __uint_as_float(pair & 0xffff0000u); }

// The last tile's sums, rounded: of two rows, pairs of every eight columns. Four pairs make, exchanged, eight values side
// by side: a piece.
struct Held {
    static const u32 COLUMNS = 256, FACTORS = 1;
    static const int PIECES = COLUMNS / 16;
    const Work &work;
    // None yet, or the thread's first eight values.
    u32 row, column;
    u32 words[PIECES][4];

    __device__ __forceinline__ Held(const Work &work) : work(work), row(work.rows), column(0), words{} {}

    __device__ __forceinline__ void hold(Tile tile) {
        row = row_of_thread(tile), column = tile.column + threadIdx.x % 4 * 8;
    }

    // Where eight values of one of both rows lie, `n` eights further.
    __device__ __forceinline__ u64 at(u32 n, u32 half) const {
        return (u64)(row + half * 8) * work.stride + column + n * 8;
    }
    __device__ __forceinline__ bool there(u32 n, u32 half) const {
        return row + half * 8 < work.rows && column + n * 8 < work.columns;
    }
};

// Sums of a gate and of an up, of the same columns, are mixed. The pieces of one follow those of the other.
struct Mixed : Held {
    static const int PIECES = Held::PIECES / 2;
    static const bool LEFT_TURNED = false, RIGHT_TURNED = false, GATED = true;
    float scales[2];

    __device__ __forceinline__ Mixed(const Work &work)
        : Held(work), scales{scale_of(work.factors[0]), scale_of(work.factors[1])} {}

    __device__ __forceinline__ void take(Tile tile, const float (&sums)[COLUMNS / 8][4]) {
        hold(tile);
#pragma unroll
        for (int i = 0; i < Held::PIECES; i++) pairs_of(words[i], sums, i / 2 * 4, i % 2, scales[i / PIECES]);
    }

    static __device__ __forceinline__ float mix(float g, float u) { return g * quick_sigmoid(g) * u; }

    __device__ __forceinline__ void finish(int i) {
        const u32(&gate)[4] = words[i], (&up)[4] = words[PIECES + i];
        u32 mixed[4], n = i / 2 * 4, half = i % 2;
#pragma unroll
        for (u32 j = 0; j < 4; j++)
            mixed[j] = pair_of(mix(low_of(gate[j]), low_of(up[j])), mix(high_of(gate[j]), high_of(up[j])));
        u64 to = at(n, half);
        bool there = Held::there(n, half);
        uint4 eight = turned(mixed);
        if (there) *(uint4 *)((u16 *)work.out + to) = eight;
        if (!work.gate) return;
        uint4 gates = turned(gate), ups = turned(up);
        if (there) *(uint4 *)(work.gate + to) = gates, *(uint4 *)(work.up + to) = ups;
    }
};

// Sums are gradients of what was mixed; those of gate and up may take the places of the kept ones.
struct Back : Held {
    static const bool LEFT_TURNED = false, RIGHT_TURNED = true, GATED = false;
    float scale;
    // Of the next piece.
    uint4 gate, up;

    __device__ __forceinline__ Back(const Work &work)
        : Held(work), scale(scale_of(work.factors[0])), gate(make_uint4(0, 0, 0, 0)), up(gate) {}

    __device__ __forceinline__ void load(int i) {
        u32 n = i / 2 * 4, half = i % 2;
        if (!there(n, half)) return;
        gate = *(const uint4 *)(work.gate + at(n, half)), up = *(const uint4 *)(work.up + at(n, half));
    }

    __device__ __forceinline__ void take(Tile tile, const float (&sums)[COLUMNS / 8][4]) {
        hold(tile);
        load(0);
#pragma unroll
        for (int i = 0; i < PIECES; i++) pairs_of(words[i], sums, i / 2 * 4, i % 2, scale);
    }

    // Of two values each; gradients take their places.
    static __device__ __forceinline__ void differentiate(u32 &gate, u32 &up, u32 d) {
        float low = low_of(gate), high = high_of(gate);
        GatedGradient a = gated_gradient_of(low, low_of(up), low_of(d), quick_sigmoid(low));
        GatedGradient b = gated_gradient_of(high, high_of(up), high_of(d), quick_sigmoid(high));
        gate = pair_of(a.dgate, b.dgate), up = pair_of(a.dup, b.dup);
    }

    __device__ __forceinline__ void finish(int i) {
        uint4 d = turned(words[i]), dgate = gate, dup = up;
        if (i + 1 < PIECES) load(i + 1);
        differentiate(dgate.x, dup.x, d.x), differentiate(dgate.y, dup.y, d.y);
        differentiate(dgate.z, dup.z, d.z), differentiate(dgate.w, dup.w, d.w);
        u32 n = i / 2 * 4, half = i % 2;
        if (there(n, half)) *(uint4 *)((u16 *)work.out + at(n, half)) = dgate, *(uint4 *)(work.dup + at(n, half)) = dup;
    }
};

PRODUCT(gated_rows, Mixed)
PRODUCT(gated_gradient_rows, Back)
