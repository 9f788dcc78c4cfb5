// A gradient kept until a step knows all of it; a thread for each block of 16 of a row.
#include "common.cuh"
#include "state/draw.cuh"
#include "state/moment.cuh"
#include "state/place.cuh"

using namespace state;

// As in accumulate.rs.
enum { STORED_FOUR, STORED_FLOAT };
constexpr float LARGEST = 6.0f * 57344.0f;

DEVICE u64 stored_bytes(u32 storage) {
    return storage == STORED_FOUR ? 9 : 64;
}

DEVICE void load_stored(u32 storage, const u8* row, u32 blocks, u32 index, float (&x)[BLOCK]) {
    if (storage == STORED_FOUR) {
        u32 codes[2];
        load(row + index * 8, codes);
        decode_four(codes, row[blocks * 8 + index], x);
    } else {
        UNROLL for (int i = 0; i < BLOCK; i++) x[i] = ((const float*)row)[index * BLOCK + i];
    }
}

// Rows `first..` of what is stored get rows 0.. of a gradient added; counts what cannot be held.
extern "C" __global__ void accumulate_add(u8* stored, const float* gradient, u32 storage, u32 first, u32 rows,
                                          u32 columns, u32 fresh, u32 key0, u32 key1, u64* counts) {
    u32 blocks = (columns + BLOCK - 1) / BLOCK;
    u64 number = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    u32 beyond = 0;
    if (number < (u64)rows * blocks) {
        u32 index = (u32)(number / blocks), block = (u32)(number % blocks), row = first + index;
        u8* place = stored + (u64)row * blocks * stored_bytes(storage);
        float sum[BLOCK] = {}, g[BLOCK];
        if (!fresh) load_stored(storage, place, blocks, block, sum);
        load_values(gradient + (u64)index * columns, columns, block, g);
        u32 largest = storage == STORED_FOUR ? __float_as_uint(LARGEST) : 0x7F7FFFFF;
        UNROLL for (int i = 0; i < BLOCK; i++) {
            if (block * BLOCK + i < columns) sum[i] += g[i];
            // As bits, infinity and NaN lie above every number.
            beyond += (__float_as_uint(sum[i]) & 0x7FFFFFFF) > largest;
        }
        if (storage == STORED_FOUR) {
            u32 luck[BLOCK], codes[2];
            draw_block(Draws{{key0, key1}}, ((u64)row * blocks + block) * BLOCK, luck);
            encode_four(sum, luck, codes, place[blocks * 8 + block]);
            store(place + block * 8, codes);
        } else {
            UNROLL for (int i = 0; i < BLOCK; i++) ((float*)place)[block * BLOCK + i] = one_nan(sum[i]);
        }
    }
    if (beyond > 0) atomicAdd(counts + REFUSED, (u64)beyond);
}

// Rows of factor * what is stored, from the first byte given on.
extern "C" __global__ void accumulate_read(const u8* stored, float* out, u32 storage, u32 rows, u32 columns,
                                           float factor) {
    u32 blocks = (columns + BLOCK - 1) / BLOCK;
    u64 number = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    if (number >= (u64)rows * blocks) return;
    u32 row = (u32)(number / blocks), block = (u32)(number % blocks);
    float x[BLOCK];
    load_stored(storage, stored + (u64)row * blocks * stored_bytes(storage), blocks, block, x);
    UNROLL for (int i = 0; i < BLOCK; i++) {
        u32 column = block * BLOCK + i;
        if (column < columns) out[(u64)row * columns + column] = x[i] * factor;
    }
}

DEVICE double stored_value(u32 storage, const u8* row, u32 blocks, u32 block, u32 lane) {
    if (storage == STORED_FLOAT) return (double)((const float*)row)[block * BLOCK + lane];
    float half = moment_scale(row[blocks * 8 + block]) * 0.5f;
    u32 code = row[block * 8 + lane / 2] >> (4 * (lane % 2)) & 15;
    return (double)((float)halves(code) * half);
}

// Squares of the rows of part blockIdx.x, in the order of `ops::accumulate`: lanes of a row by sixteen threads,
// the sixteen in order, rows in order.
extern "C" __global__ void accumulate_parts(const u8* stored, double* parts, u32 storage, u32 rows, u32 columns,
                                            u32 part_rows) {
    constexpr u32 AT_ONCE = 16; // rows
    __shared__ double lanes[AT_ONCE][BLOCK];
    u32 blocks = (columns + BLOCK - 1) / BLOCK, lane = threadIdx.x % BLOCK, which = threadIdx.x / BLOCK;
    u32 first = blockIdx.x * part_rows, last = first + part_rows < rows ? first + part_rows : rows;
    double total = 0.0;
    for (u32 start = first; start < last; start += AT_ONCE) {
        u32 row = start + which;
        double sum = 0.0;
        const u8* place = stored + (u64)row * blocks * stored_bytes(storage);
        for (u32 block = 0; row < last && block < blocks; block++) {
            double value = stored_value(storage, place, blocks, block, lane);
            sum += value * value;
        }
        lanes[which][lane] = sum;
        __syncthreads();
        if (threadIdx.x == 0) {
            for (u32 row = start; row < last && row < start + AT_ONCE; row++) {
                double sum = 0.0;
                for (int i = 0; i < BLOCK; i++) sum += lanes[row - start][i];
                total += sum;
            }
        }
        __syncthreads();
    }
    if (threadIdx.x == 0) parts[blockIdx.x] = total;
}
