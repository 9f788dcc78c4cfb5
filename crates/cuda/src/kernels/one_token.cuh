// Products of one token. Memory is the limit, so its loads may never pause: a block for each multiprocessor, in which
// every warp has the next bytes of the weight under way to its own part of shared memory, before the token is there.
//
// A tile is 256 bytes of the rows of 4 outputs: 32, 16 or 8 values for each thread in each half of it. Its four quarters
// are four of the 16 rows of a product on tensor cores each, whose columns are the four quarters of the token: of the 16
// by 8 results, those whose quarters meet are a part of the sum. A unit is 4 outputs, or twice 4 (SIDES) where that
// leaves no multiprocessor idle, or 4 of each of a gated pair. A block's units, tile after tile, are dealt out to its
// warps in equal shares. Where a share ends inside a unit, the warp that began the unit adds what the next ones found,
// in order.
#pragma once
#include "chain.cuh"
#include "few_tokens.cuh"
#include "token.cuh"

const u32 TILE = 1024 + 128; // bytes of codes and scales
// Of a warp, under way at once.
const u32 TILES = 6;

// Where the shared memory's parts lie; one_token.rs asks for as much. First are the tiles of every warp.
template <int FORMAT, u32 SIDES> struct Shared {
    u8 *sums, *token, *row;

    __device__ __forceinline__ Shared(const Token &t) {
        sums = dynamic_shared + blockDim.x / 32 * TILES * TILE;
        token = sums + blockDim.x * SIDES * 16;
        row = token + Tiling<FORMAT>::tiles(t.inputs) * Tiling<FORMAT>::INNER * 2;
    }
};

// ---- the weight ----

// Four int8 codes to pairs of bf16, of 0 and 2, 1 and 3. Seven bits below 128's exponent are 128 and their number; what
// is too much is 128, or 256 where the eighth bit is set.
__device__ __forceinline__ void decode_int8_apart(u32 codes, u32 scale, u32 *out) {
#pragma unroll
    for (u32 i = 0; i < 2; i++, codes >>= 8) {
        u32 above = codes & 0x007f007fu | 0x43004300u, excess = codes & 0x00800080u | 0xc300c300u;
        out[i] = multiply_pairs(add_pairs(above, excess), scale);
    }
}

// Two E4M3 scales to a pair of bf16 each, times 2^118. Their bits are those of a bf16 that is 2^120 too small; all
// of them set stand for NaN, and would be 480.
__device__ __forceinline__ void decode_scales(u32 two, u32 (&out)[2]) {
    const u32 RAISE = 0x7b007b00u; // 2^119
    u32 apart = __byte_perm(two, 0, 0x1404), magnitudes = apart >> 4 & 0x07f007f0u;
    u32 nan = (magnitudes + 0x00100010u & 0x08000800u) >> 3;
    u32 raised = multiply_pairs(multiply_pairs(magnitudes | (apart & 0x80008000u), RAISE), RAISE) | nan;
    out[0] = __byte_perm(raised, 0, 0x1010), out[1] = __byte_perm(raised, 0, 0x3232);
}

// A thread's 16 bytes of one row and their scales, decoded eight values at a time.
template <int FORMAT> struct Piece {
    uint4 codes;
    u32 scales[2];

    // `index` among the 16 pieces of a row's tile.
    __device__ __forceinline__ void load(const u8 *codes_at, const u8 *scales_at, u32 index) {
        codes = *(const uint4 *)codes_at;
        if (FORMAT == NVFP4) scales[0] = ((const u16 *)scales_at)[index];
        else if (FORMAT == INT8) scales[0] = scales_at[index];
    }

    __device__ __forceinline__ void decode_scale() {
        if (FORMAT == NVFP4) decode_scales(scales[0], scales);
        else if (FORMAT == INT8) scales[0] *= 0x00800080u;
    }

    __device__ __forceinline__ void decode(u32 eight, u32 (&out)[4]) const {
        const u32 *words = (const u32 *)&codes;
        if (FORMAT == NVFP4) {
            decode_apart(words[eight], scales[eight / 2], out);
        } else if (FORMAT == INT8) {
            decode_int8_apart(words[eight * 2], scales[0], out);
            decode_int8_apart(words[eight * 2 + 1], scales[0], out + 2);
        } else {
#pragma unroll
            for (u32 i = 0; i < 4; i++) out[i] = words[i];
        }
    }
};

// A place in a block's units, and the way to the next tile.
struct Place {
    u32 tiles, unit, left; // tiles of this unit that are left

    __device__ __forceinline__ Place(u32 tiles, u32 first_unit, u32 item) : tiles(tiles) {
        unit = first_unit + item / tiles, left = tiles - item % tiles;
    }

    // Gives whether the unit ends here.
    __device__ __forceinline__ bool step() {
        if (--left > 0) return false;
        left = tiles, unit++;
        return true;
    }
};

// Where the copies of a warp are.
template <int FORMAT, class Outputs> struct Ahead {
    static const u32 SIDES = Outputs::SIDES, SCALES = Tiling<FORMAT>::SCALES, WORDS = SCALES ? SCALES / 4 : 1;
    const Outputs &outputs;
    u32 inputs;
    Place place;
    // Of this thread: its next bytes, and how many the row has from there on.
    const u8 *codes[SIDES], *scales[SIDES];
    int codes_left, scales_left;

    __device__ __forceinline__ Ahead(const Outputs &outputs, u32 inputs, const Place &place)
        : outputs(outputs), inputs(inputs), place(place) {
        seek();
    }

    __device__ __forceinline__ void seek() {
        u32 lane = threadIdx.x % 32, done = place.tiles - place.left;
        u32 code = done * 256 + (lane / 16 * 4 + lane % 4) * 16, scale = done * SCALES + lane % WORDS * 4;
        codes_left = (int)(padded(inputs) / Tiling<FORMAT>::VALUES * 16 - code);
        scales_left = (int)(padded(inputs) / 16 - scale);
#pragma unroll
        for (u32 s = 0; s < SIDES; s++) {
            u32 row = outputs.row(place.unit, s);
            const u8 *panel = panel_of(outputs.weight(place.unit, s), FORMAT, inputs, row);
            codes[s] = codes_of(panel, FORMAT, inputs, row + lane / 4 % 4) + code;
            scales[s] = scales_of(panel, FORMAT, inputs, row + lane / WORDS % 4) + scale;
        }
    }

    // Starts the copy of a tile of each side, with zeros after the rows' end, and goes on to the next.
    __device__ __forceinline__ void fetch(u8 *stage) {
        u32 lane = threadIdx.x % 32;
#pragma unroll
        for (u32 s = 0; s < SIDES; s++, stage += TILE) {
            start_copy(stage + lane * 16, codes[s], codes_left > 0);
            start_copy(stage + lane * 16 + 512, codes[s] + 128, codes_left > 128);
            if (lane < SCALES) start_small_copy(stage + lane * 4 + 1024, scales[s], scales_left > 0);
            codes[s] += 256, scales[s] += SCALES;
        }
        codes_left -= 256, scales_left -= (int)SCALES;
        if (place.step()) seek();
    }
};

// A tile of each side that has come, times the token.
template <int FORMAT, u32 SIDES>
__device__ __forceinline__ void multiply(Piece<FORMAT> (&pieces)[SIDES][2], const u8 *token, float (&sums)[SIDES][4]) {
    const u32 EIGHTS = Tiling<FORMAT>::VALUES / 8;
    u32 exchanged = EIGHTS > 1 ? threadIdx.x / 4 & 1u : 0;
#pragma unroll
    for (u32 s = 0; s < SIDES; s++) pieces[s][0].decode_scale(), pieces[s][1].decode_scale();
#pragma unroll
    for (u32 i = 0; i < EIGHTS; i++) {
        uint4 x = *(const uint4 *)(token + (i ^ exchanged) * 64);
#pragma unroll
        for (u32 s = 0; s < SIDES; s++) {
            u32 w[2][4];
            pieces[s][0].decode(i, w[0]), pieces[s][1].decode(i, w[1]);
            multiply_tile(sums[s], {w[0][0], w[1][0], w[0][1], w[1][1]}, x.x, x.y);
            multiply_tile(sums[s], {w[0][2], w[1][2], w[0][3], w[1][3]}, x.z, x.w);
        }
    }
}

// The sum of a row, in the threads 0, 4, 8 and 12: of the results where a quarter of the weight met that of
// the token.
__device__ __forceinline__ float total(const float (&sums)[4]) {
    u32 lane = threadIdx.x % 32;
    float low = lane < 16 ? sums[0] : sums[1], high = lane < 16 ? sums[2] : sums[3];
    float mine = lane & 1u ? high : low;
    mine += __shfl_xor_sync(0xffffffffu, mine, 1);
    return mine + __shfl_xor_sync(0xffffffffu, mine, 16);
}

// ---- all of it ----

template <int FORMAT, class Outputs> __device__ __forceinline__ void one_token(const Token &t, const Outputs &outputs) {
    const u32 SIDES = Outputs::SIDES, STAGES = TILES / SIDES, STAGE = SIDES * TILE, INNER = Tiling<FORMAT>::INNER;
    Shared<FORMAT, SIDES> shared(t);
    u32 warp = threadIdx.x / 32, warps = blockDim.x / 32, lane = threadIdx.x % 32, units = outputs.units();
    u32 first_unit = units * blockIdx.x / gridDim.x, own_units = units * (blockIdx.x + 1) / gridDim.x - first_unit;
    u32 tiles = Tiling<FORMAT>::tiles(t.inputs), items = own_units * tiles;
    auto begin = [&](u32 warp) { return items * warp / warps; };
    u32 first = begin(warp), count = begin(warp + 1) - first;

    u32 stages = warp * STAGES * STAGE;
    Place here(tiles, first_unit, first);
    Ahead<FORMAT, Outputs> ahead(outputs, t.inputs, here);
    let_next_begin();
#pragma unroll 1
    for (u32 i = 0; i < STAGES; i++) {
        if (i < count) ahead.fetch(dynamic_shared + stages + i * STAGE);
        end_copies();
    }
    float gains[8] = {};
    if (t.gain) load_eight(t.gain, threadIdx.x * 8, t.inputs, gains);
    wait_for_previous();
    if (t.gain) bring_norm<FORMAT>(t, shared.token, shared.row, gains);
    else bring<FORMAT>(t, shared.token);
    __syncthreads();

    // What the unit needs that is finished last, at the end of this share.
    float sums[SIDES][4] = {}, before[SIDES] = {};
    if (count > 0) outputs.before(first_unit + (first + count - 1) / tiles, before);
    float4(*slots)[SIDES][32] = (float4(*)[SIDES][32])shared.sums;
    auto hand_on = [&] {
#pragma unroll
        for (u32 s = 0; s < SIDES; s++) slots[warp][s][lane] = make_float4(sums[s][0], sums[s][1], sums[s][2], sums[s][3]);
    };
    bool began = here.left == tiles;
    const u8 *own_token = shared.token + (lane / 4 % 4 * (INNER / 32) + lane % 4) * 16;
    const u8 *token = own_token + (tiles - here.left) * INNER * 2;
    u32 stage = 0;
#pragma unroll 1
    for (u32 i = STAGES; i < count + STAGES; i++) {
        wait_for_copies_but<STAGES - 1>();
        __syncwarp();
        u8 *now = dynamic_shared + stages + stage;
        Piece<FORMAT> pieces[SIDES][2];
#pragma unroll
        for (u32 s = 0; s < SIDES; s++) {
#pragma unroll
            for (u32 half = 0; half < 2; half++)
                pieces[s][half].load(now + s * TILE + half * 512 + lane * 16,
                                     now + s * TILE + 1024 + lane / 4 % 4 * Tiling<FORMAT>::SCALES,
                                     half * 8 + lane / 16 * 4 + lane % 4);
        }
        __syncwarp();
        if (i < count) ahead.fetch(now);
        end_copies();
        stage = stage == (STAGES - 1) * STAGE ? 0 : stage + STAGE;
        multiply<FORMAT, SIDES>(pieces, token, sums);
        token += INNER * 2;
        u32 unit = here.unit;
        if (!here.step()) continue;
        float added[SIDES] = {};
        if (began) outputs.before(unit, added), outputs.finish(unit, sums, added);
        else hand_on();
        began = true, token = own_token;
#pragma unroll
        for (u32 s = 0; s < SIDES; s++) sums[s][0] = sums[s][1] = sums[s][2] = sums[s][3] = 0.0f;
    }
    bool open = count > 0 && here.left < tiles;
    if (open && !began) hand_on();
    __syncthreads();
    if (!open || !began) return;
    u32 end = (here.unit - first_unit + 1) * tiles;
#pragma unroll 1
    for (u32 other = warp + 1; begin(other) < end; other++) {
        if (begin(other) == begin(other + 1)) continue;
#pragma unroll
        for (u32 s = 0; s < SIDES; s++) {
            float4 found = slots[other][s][lane];
            sums[s][0] += found.x, sums[s][1] += found.y, sums[s][2] += found.z, sums[s][3] += found.w;
        }
    }
    outputs.finish(here.unit, sums, before);
}

// ---- outputs ----

// Whether this thread has an output of a tile; it is the row of this number.
__device__ __forceinline__ bool has_output() { return threadIdx.x % 32 < 16 && threadIdx.x % 4 == 0; }
__device__ __forceinline__ u32 own_output() { return threadIdx.x % 32 / 4; }

struct Target {
    const u8 *weight;
    const float *bias;
    float *out;
    u32 outputs, added;
};

// Up to three products.
template <int FORMAT, u32 COUNT> struct Products {
    static const u32 SIDES = COUNT, UNIT = 4 * COUNT;
    Target a, b, c;
    u32 second, third;  // the first units of those
    float scales[3];    // asked for when the kernel begins

    __device__ __forceinline__ Products(Target a, Target b, Target c) : a(a), b(b), c(c) {
        scales[0] = tensor_scale(a.weight, FORMAT);
        scales[1] = b.weight ? tensor_scale(b.weight, FORMAT) : 0.0f;
        scales[2] = c.weight ? tensor_scale(c.weight, FORMAT) : 0.0f;
        second = (a.outputs + UNIT - 1) / UNIT, third = second + (b.outputs + UNIT - 1) / UNIT;
    }

    __device__ __forceinline__ u32 units() const { return third + (c.outputs + UNIT - 1) / UNIT; }

    __device__ __forceinline__ Target target(u32 unit) const { return unit < second ? a : unit < third ? b : c; }

    __device__ __forceinline__ const u8 *weight(u32 unit, u32) const { return target(unit).weight; }

    __device__ __forceinline__ u32 row(u32 unit, u32 side) const {
        return (unit - (unit < second ? 0 : unit < third ? second : third)) * UNIT + side * 4;
    }

    // What a unit is added to.
    __device__ __forceinline__ void before(u32 unit, float (&out)[COUNT]) const {
        Target to = target(unit);
#pragma unroll
        for (u32 s = 0; s < COUNT; s++) {
            u32 n = row(unit, s) + own_output();
            out[s] = to.added && has_output() && n < to.outputs ? to.out[n] : 0.0f;
        }
    }

    __device__ __forceinline__ void finish(u32 unit, const float (&sums)[COUNT][4], const float (&before)[COUNT]) const {
        Target to = target(unit);
        float scale = unit < second ? scales[0] : unit < third ? scales[1] : scales[2];
        if (FORMAT == NVFP4) scale *= SHRUNK;
#pragma unroll
        for (u32 s = 0; s < COUNT; s++) {
            float y = total(sums[s]) * scale;
            u32 n = row(unit, s) + own_output();
            if (!has_output() || n >= to.outputs) continue;
            if (to.bias) y += to.bias[n];
            to.out[n] = to.added ? before[s] + y : y;
        }
    }
};

// A gated pair.
template <int FORMAT> struct Pair {
    static const u32 SIDES = 2;
    Operands o;
    float scale, up_scale;

    __device__ __forceinline__ Pair(const Operands &o) : o(o) {
        const float own = FORMAT == NVFP4 ? SHRUNK : 1.0f;
        scale = tensor_scale(o.weight, FORMAT) * own, up_scale = tensor_scale(o.up, FORMAT) * own;
    }

    __device__ __forceinline__ u32 units() const { return (o.outputs + 3) / 4; }
    __device__ __forceinline__ u32 row(u32 unit, u32) const { return unit * 4; }
    __device__ __forceinline__ const u8 *weight(u32, u32 side) const { return side ? o.up : o.weight; }

    __device__ __forceinline__ void before(u32, float (&)[2]) const {}

    __device__ __forceinline__ void finish(u32 unit, const float (&sums)[2][4], const float (&)[2]) const {
        float gate = total(sums[0]), up = total(sums[1]);
        u32 n = unit * 4 + own_output();
        if (has_output() && n < o.outputs) finish_gated(o, 0, n, gate, up, scale, up_scale);
    }
};

// Two blocks fit on a multiprocessor: the next kernel's begin beside those of this one.
#define ONE_TOKEN_BOUNDS __launch_bounds__(384, 2)

#define ONE_LINEAR(FORMAT, name, SIDES)                                                                                    extern "C" __global__ void ONE_TOKEN_BOUNDS name(TOKEN, TARGET(0), TARGET(1), TARGET(2)) {                                 Target a = {weight0, bias0, out0, outputs0, added0}, b = {weight1, bias1, out1, outputs1, added1};                     Target c = {weight2, bias2, out2, outputs2, added2};                                                                   one_token<FORMAT>(GIVEN_TOKEN, Products<FORMAT, SIDES>(a, b, c));                                                  }

#define ONE_TOKEN(FORMAT, name)                                                                                            ONE_LINEAR(FORMAT, linear_##name##_1x4, 1)                                                                             ONE_LINEAR(FORMAT, linear_##name##_1x8, 2)                                                                             extern "C" __global__ void ONE_TOKEN_BOUNDS                                                                                gated_##name##_1(TOKEN, const u8 *gate, const u8 *up, const float *gate_bias, const float *up_bias, void *out,                          u32 out_narrow, u32 outputs) {                                                                        Operands o = {x, x_narrow, gate, up, gate_bias, up_bias, out, out_narrow, 0, 1, outputs, inputs};                      one_token<FORMAT>(GIVEN_TOKEN, Pair<FORMAT>(o));                                                                       if (blockIdx.x == 0) pad(out, out_narrow, outputs, 0, threadIdx.x, blockDim.x);                                    }
