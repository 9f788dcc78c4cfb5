// Instructions of kernels/warpgroup.cuh, the end of device.h: products are made when they are started, each warp's rows
// by itself.
#pragma once

// A tile in shared memory, and the bytes of 64 columns of its rows.
struct Place {
    const unsigned char *start;
    unsigned part;
};

static inline Place place_of(const unsigned char *tile, unsigned part) {
    if ((tile - emulated_shared) % 1024 != 0) fprintf(stderr, "a tile begins at no multiple of 1024\n"), abort();
    return {tile, part};
}
static inline Place place_in_pair(const unsigned char *tile, unsigned part) { return place_of(tile, part); }
static inline Place further(Place place, unsigned bytes) { return {place.start + bytes, place.part}; }

// Chunks of 16 bytes are exchanged by the number of their 128.
static inline float exchanged(const unsigned char *at) {
    size_t place = at - emulated_shared;
    unsigned short half;
    memcpy(&half, emulated_shared + (place ^ (place >> 7 & 7) << 4), sizeof half);
    return of_bf16(half);
}

// A value by its row and its column, of 16 columns or of 16 rows.
static inline float of_rows(Place tile, int row, int column) {
    return exchanged(tile.start + row * 128 + column * 2);
}
static inline float of_columns(Place tile, int row, int column) {
    return exchanged(tile.start + column / 64 * tile.part + row * 128 + column % 64 * 2);
}

// d[row][column] (+)= sum over k of a(row, k) b(column, k), the part of this thread; rows are those of its warp.
template <int EIGHTS, class A, class B> void multiply_rows(float (&d)[EIGHTS][4], bool adds, A a, B b) {
    int lane = threadIdx.x % 32;
    float left[2][16], right[16];
    bool nothing = true;
    for (int k = 0; k < 32; k++) {
        float x = left[k / 16][k % 16] = a(lane / 4 + k / 16 * 8, k % 16);
        nothing = nothing && x == 0.0f;
    }
    // Most rows of a tile that hangs over the edge of a small matrix.
    if (nothing && adds) return;
    for (int i = 0; i < EIGHTS * 2; i++) {
        for (int k = 0; k < 16; k++) right[k] = b(i / 2 * 8 + lane % 4 * 2 + i % 2, k);
        for (int r = 0; r < 2; r++) {
            float &to = d[i / 2][r * 2 + i % 2];
            double sum = adds ? to : 0.0;
            for (int k = 0; k < 16; k++) sum += (double)left[r][k] * right[k];
            to = (float)sum;
        }
    }
}

template <int EIGHTS> void start_product(float (&d)[EIGHTS][4], Place a, Place b, bool adds) {
    __syncwarp();
    int first = threadIdx.x / 32 % 4 * 16;
    multiply_rows(
        d, adds, [&](int row, int k) { return of_rows(a, first + row, k); },
        [&](int column, int k) { return of_rows(b, column, k); });
}

template <int EIGHTS> void start_product(float (&d)[EIGHTS][4], const unsigned (&a)[4], Place b, bool adds) {
    const unsigned char *slots = wait_for_warp(Together::Multiply, a, sizeof a);
    multiply_rows(
        d, adds, [&](int row, int k) { return of_tile(slots, row / 8 + k / 8 * 2, row, k); },
        [&](int column, int k) { return of_rows(b, column, k); });
}

static inline void start_mix(float (&d)[16][4], const unsigned (&a)[4], Place b) {
    const unsigned char *slots = wait_for_warp(Together::Multiply, a, sizeof a);
    multiply_rows(
        d, true, [&](int row, int k) { return of_tile(slots, row / 8 + k / 8 * 2, row, k); },
        [&](int column, int k) { return of_columns(b, k, column); });
}

// Made by all four warps before one goes on, so that tiles are not given back too early.
template <bool A_TURNED, bool B_TURNED, int EIGHTS>
void start_multiplying(float (&d)[EIGHTS][4], Place a, Place b, bool adds) {
    __syncwarp();
    int first = threadIdx.x / 32 % 4 * 16;
    multiply_rows(
        d, adds, [&](int row, int k) { return A_TURNED ? of_columns(a, k, first + row) : of_rows(a, first + row, k); },
        [&](int column, int k) { return B_TURNED ? of_columns(b, k, column) : of_rows(b, column, k); });
    gather_warpgroup();
}

static inline void begin_products() {}
static inline void end_products() {}
template <int COUNT, int EIGHTS> void wait_for_products_but(float (&)[EIGHTS][4]) {}
template <int COUNT> void wait_for_tiles_but() {}
template <int EIGHTS> void settle(float (&)[EIGHTS][4]) {}
static inline void show_to_products() {}
template <int COUNT> void have_more_registers() {}
template <int COUNT> void have_fewer_registers() {}
