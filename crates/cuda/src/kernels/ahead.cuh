// What a warp brings before it is wanted: the tiles of its share of every product, stage after stage, into a ring of its
// own in shared memory; and the first keys and values of attention, into the second-level cache.
//
// A tile is 256 bytes of the rows of 4 outputs and their scales.
#pragma once
#include "cache.cuh"
#include "stage.cuh"
#include "tensor_core.cuh"

const u32 TILE = 1024 + 128; // bytes of codes and scales
// Of a warp, under way at once: four of each of 16 warps are more than memory needs to be busy, and do not keep loads
// that someone waits for in a queue.
const u32 TILES = 4;

// Which part of a product's tiles is whose. A block has neighbouring units, and its warps have equal shares of their tiles.
template <u32 WARPS> struct Share {
    u32 first_unit, units, tiles, tiles_inverse, items;

    __device__ __forceinline__ Share(const ProductStage &s) : tiles(s.tiles), tiles_inverse(s.tiles_inverse) {
        u32 pair = s.kind == GATED, more = (s.units >> pair) - s.share * gridDim.x;
        first_unit = s.share * blockIdx.x + min(blockIdx.x, more) << pair;
        units = s.share + (blockIdx.x < more) << pair, items = units * tiles;
    }

    // The first tile of a warp, and the unit of a tile.
    __device__ __forceinline__ u32 begin(u32 warp) const { return items * warp / WARPS; }
    __device__ __forceinline__ u32 unit(u32 tile) const { return tiles == 1 ? tile : __umulhi(tile, tiles_inverse); }
};

// Which of the keys that a block sees first are this thread's to bring near: a line of 128 bytes of each side.
__device__ __forceinline__ void bring_near(const AttendStage &s) {
    Cache c = {s.cache, (int)s.format, s.kv_heads, s.head_dim, s.capacity};
    u32 task = s.share * blockIdx.x + min(blockIdx.x, s.tasks - s.share * gridDim.x);
    u32 group = s.heads / s.kv_heads, kv = task / s.splits / ((group + HEADS - 1) / HEADS);
    u32 value = s.format == CACHE_F32 ? 4 : s.format == CACHE_BF16 ? 2 : 1;
    u32 first = (s.first_split + task % s.splits) * SPLIT, last = min(first + SPLIT, s.start);
    if (task >= s.tasks || first >= last) return;
    u32 bytes = (last - first) * c.width() * value;
    for (u32 at = threadIdx.x * 128; at < bytes; at += blockDim.x * 128)
        for (u32 side = 0; side < 2; side++) bring_line_near(c.side(side) + c.row(kv, first) * value + at);
}

template <u32 WARPS> struct Ahead {
    const Stage *known; // KNOWN of them
    u8 *ring;           // of this warp
    u32 next, todo;     // the stage behind the one whose tiles are brought, and how many of those are left
    u32 unit, left;     // whose row the copies are in, and how many of its tiles are left
    u32 run;            // tiles until either is none
    u32 at, under_way;  // where in the ring the next tile is taken, and how many are there or on their way
    // Of this thread: its next bytes, and how many the row has from there on, where rows end inside a tile.
    const u8 *codes, *scales;
    int codes_left, scales_left;
    u32 row_scales; // bytes of a row's scales in a tile
    bool whole;

    __device__ __forceinline__ Ahead(const Stage *known, u8 *ring)
        : known(known), ring(ring), next(0), todo(0), left(0), run(0), at(0), under_way(0) {}

    __device__ __forceinline__ const ProductStage &now() const { return known[(next - 1) % KNOWN].product; }

    // Goes on to the next tiles of this warp, in stages before `end`; none may be left.
    __device__ __forceinline__ void seek(u32 end) {
        if (todo > 0) unit++, left = now().tiles;
#pragma unroll 1
        while (todo == 0) {
            if (next >= end) return;
            const Stage &stage = known[next++ % KNOWN];
            if (stage.product.kind == ATTEND) {
                bring_near(stage.attend);
                continue;
            }
            Share<WARPS> share(stage.product);
            u32 warp = threadIdx.x / 32, first = share.begin(warp), done = share.unit(first);
            todo = share.begin(warp + 1) - first, unit = share.first_unit + done;
            left = (done + 1) * share.tiles - first;
        }
        const ProductStage &s = now();
        u32 which = s.kind == GATED ? unit & 1u : (unit >= s.second) + (unit >= s.third);
        u32 own = s.kind == GATED ? unit / 2 : unit - (which == 0 ? 0 : which == 1 ? s.second : s.third);
        u32 lane = threadIdx.x % 32, done = s.tiles - left, width = padded(s.inputs);
        u32 row = s.format == NVFP4 ? width / 2 : s.format == INT8 ? width : width * 2, in_panel = own % 4 * 4;
        u64 panel = row * 16 + (s.format == BF16 ? 0 : width);
        u32 code = done * 256 + (lane / 16 * 4 + lane % 4) * 16, of_row = s.format == NVFP4 ? 8 : 4;
        row_scales = s.format == BF16 ? 0 : of_row * 4, whole = row % 256 == 0;
        u32 scale = done * row_scales + (lane & of_row - 1) * 4;
        const u8 *at = s.weight[which] + 64 + own / 4 * panel;
        codes = at + (in_panel + lane / 4 % 4) * row + code, codes_left = (int)(row - code);
        scales = at + row * 16 + (in_panel + (s.format == NVFP4 ? lane / 8 : lane / 4 % 4)) * (width / 16) + scale;
        scales_left = (int)(width / 16 - scale);
        run = min(left, todo), left -= run, todo -= run;
    }

    // Starts the copy of the next tile, if there is one; zeros come after the rows' end.
    __device__ __forceinline__ bool bring(u8 *tile, u32 end) {
        if (run == 0) seek(end);
        if (run == 0) return false;
        u32 lane = threadIdx.x % 32;
        if (whole) {
            start_copy(tile + lane * 16, codes, true);
            start_copy(tile + lane * 16 + 512, codes + 128, true);
            if (lane < row_scales) start_small_copy(tile + lane * 4 + 1024, scales, true);
        } else {
            start_copy(tile + lane * 16, codes, codes_left > 0);
            start_copy(tile + lane * 16 + 512, codes + 128, codes_left > 128);
            if (lane < row_scales) start_small_copy(tile + lane * 4 + 1024, scales, scales_left > 0);
            codes_left -= 256, scales_left -= (int)row_scales;
        }
        codes += 256, scales += row_scales, run--;
        return true;
    }

    // Brings what there is room for, and ends a group of copies for every place that was free.
    __device__ __forceinline__ void fill(u32 end) {
#pragma unroll 1
        for (u32 i = under_way; i < TILES; i++) {
            under_way += bring(ring + (at + under_way) % TILES * TILE, end);
            end_copies();
        }
    }

    // The next tile, once it is there: as many groups as places but one were ended behind its own.
    __device__ __forceinline__ u8 *take() {
        wait_for_copies_but<TILES - 1>();
        __syncwarp();
        return ring + at * TILE;
    }

    // Its place is free: another tile goes there. Where there is none, there will be none before the next `fill`.
    __device__ __forceinline__ void give_back(u8 *tile, u32 end) {
        __syncwarp();
        if (!bring(tile, end)) under_way--;
        end_copies();
        at = (at + 1) % TILES;
    }
};
