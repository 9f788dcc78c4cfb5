// Instructions of kernels/boxes.cuh: copies are made when they are started, so who still reads what was there sees it.
#pragma once

// What cuTensorMapEncodeTiled notes of a matrix, in the driver's 128 bytes.
struct EmulatedMap {
    const unsigned char *at;
    unsigned long long width, height, apart;
};

// Arrivals that are still to come in this round, and bytes.
struct Rounds {
    unsigned char count, pending, odd, unused;
    int bytes;
};

// Waits for so many threads, which all come here as often as each other.
static inline void gather(unsigned &come, unsigned count) {
    unsigned all = come / count * count + count;
    come++;
    while (come < all) wait_for_others();
    go_on_after_others();
}

static inline unsigned block_of_pair() { return blockIdx.x % 2; }

static inline void wait_for_pair() {
    static unsigned come;
    gather(come, 2 * blockDim.x);
}

static inline void gather_warpgroup() {
    static unsigned come[2][8];
    gather(come[block_of_pair()][threadIdx.x / 128], 128);
}

static inline void begin_rounds(unsigned long long *arrivals, unsigned count) {
    *(Rounds *)arrivals = {(unsigned char)count, (unsigned char)count, 0, 0, 0};
}
static inline void show_rounds() {}

static inline void count_arrivals(Rounds &rounds, int arrived, int bytes) {
    rounds.pending -= arrived, rounds.bytes += bytes;
    if (rounds.pending == 0 && rounds.bytes == 0) rounds.odd ^= 1, rounds.pending = rounds.count;
}

// The same place in shared memory of a block of the pair.
template <class T> T *there(T *here, unsigned block) {
    return (T *)(shared_of(block) + ((unsigned char *)here - emulated_shared));
}

static inline void arrive_and_expect(unsigned long long *arrivals, unsigned bytes) {
    count_arrivals(*(Rounds *)arrivals, 1, bytes);
}
static inline void arrive_at(unsigned long long *arrivals, unsigned block) {
    count_arrivals(*(Rounds *)there(arrivals, block), 1, 0);
}
static inline void wait_for_round(unsigned long long *arrivals, unsigned odd) {
    while (((Rounds *)arrivals)->odd == odd) wait_for_others();
    go_on_after_others();
}

static inline void copy_box(const EmulatedMap &map, unsigned x, unsigned y, unsigned char *to) {
    for (unsigned row = 0; row < 64; row++)
        for (unsigned column = 0; column < 64; column++) {
            unsigned short value = 0;
            if (x + column < map.width && y + row < map.height)
                memcpy(&value, map.at + (y + row) * map.apart + (x + column) * 2, 2);
            memcpy(to + row * 128 + ((column / 8 ^ row % 8) << 4) + column % 8 * 2, &value, 2);
        }
}

// Into one block of the pair.
template <class Map>
void fetch_into(unsigned block, const Map &map, unsigned x, unsigned y, unsigned char *to, unsigned long long *arrivals) {
    if ((to - emulated_shared) % 1024 != 0) fprintf(stderr, "a box begins at no multiple of 1024\n"), abort();
    copy_box(*(const EmulatedMap *)&map, x, y, there(to, block));
    count_arrivals(*(Rounds *)there(arrivals, block), 0, -64 * 128);
}

template <class Map>
void fetch_box(const Map &map, unsigned x, unsigned y, unsigned char *to, unsigned long long *arrivals) {
    fetch_into(block_of_pair(), map, x, y, to, arrivals);
}
template <class Map>
void fetch_box_for_both(const Map &map, unsigned x, unsigned y, unsigned char *to, unsigned long long *arrivals) {
    for (unsigned block = 0; block < 2; block++) fetch_into(block, map, x, y, to, arrivals);
}

static inline void add_four_to(float *at, float4 x) { at[0] += x.x, at[1] += x.y, at[2] += x.z, at[3] += x.w; }
