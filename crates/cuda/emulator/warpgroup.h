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
    for (int i = 0; i < EIGHTS * 4; i++) {
        int row = lane / 4 + i % 4 / 2 * 8, column = i / 4 * 8 + lane % 4 * 2 + i % 2;
        double sum = adds ? d[i / 4][i % 4] : 0.0;
        for (int k = 0; k < 16; k++) sum += (double)a(row, k) * b(column, k);
        d[i / 4][i % 4] = (float)sum;
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

static inline void begin_products() {}
static inline void end_products() {}
template <int COUNT, int EIGHTS> void wait_for_products_but(float (&)[EIGHTS][4]) {}
template <int EIGHTS> void settle(float (&)[EIGHTS][4]) {}
static inline void show_to_products() {}
