// Attention of one query, a stage of chain.cu: its heads get their norm and their turn, and the new key and value are
// kept, as heads.cu does it and with its bits.
//
// Splits are of 64 keys counted from position 0, so the result depends on the keys that are seen and on nothing else. A
// task is a split for up to HEADS query heads of one kv head, a set: each key is read once for all of them. Blocks have
// neighbouring tasks. What one finds: `[maximum, sum, channels]` for each head and split. Who finds the last of a set's
// splits puts them together.
#pragma once
#include "cache.cuh"
#include "norm.cuh"
#include "stage.cuh"

const u32 WIDEST = 128;

// Numbers in shared memory: as bf16, which has all that is kept and all of a query that meets it, but for f32.
template <int FORMAT> struct Held {
    typedef u16 Value;
    static __device__ __forceinline__ u16 of(float x) { return bf16_of(x); }
    static __device__ __forceinline__ void put(u16 *to, const float (&x)[8]) { *(uint4 *)to = eight_bf16(x); }
    static __device__ __forceinline__ void get(const u16 *from, float (&x)[8]) {
        uint4 eight = *(const uint4 *)from;
        const u32 *word = (const u32 *)&eight;
#pragma unroll
        for (u32 i = 0; i < 8; i++) x[i] = __uint_as_float(i % 2 ? word[i / 2] & 0xffff0000u : word[i / 2] << 16);
    }
    static __device__ __forceinline__ float4 four(const u16 *from) {
        uint2 x = *(const uint2 *)from;
        return make_float4(__uint_as_float(x.x << 16), __uint_as_float(x.x & 0xffff0000u), __uint_as_float(x.y << 16),
                           __uint_as_float(x.y & 0xffff0000u));
    }
};

template <> struct Held<CACHE_F32> {
    typedef float Value;
    static __device__ __forceinline__ float of(float x) { return x; }
    static __device__ __forceinline__ void put(float *to, const float (&x)[8]) { put_eight(to, x); }
    static __device__ __forceinline__ void get(const float *from, float (&x)[8]) { get_eight(from, x); }
    static __device__ __forceinline__ float4 four(const float *from) { return *(const float4 *)from; }
};

// A head in the hands of 16 threads: each has every sixteenth channel, so both of a pair.
struct Head {
    float x[8], gain[8], cosine[4], sine[4];
    bool normed;

    // Asks for what is always there; `count` channels, none where there is no such head.
    __device__ __forceinline__ void prepare(const float *gains, const float *turns, u32 count) {
        normed = gains != nullptr;
#pragma unroll
        for (u32 i = 0; i < 8; i++) {
            u32 c = i * 16 + (threadIdx.x & 15u);
            gain[i] = normed && c < count ? gains[c] : 1.0f;
        }
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            u32 c = i * 16 + (threadIdx.x & 15u);
            cosine[i] = c < count / 2 ? turns[c] : 0.0f;
            sine[i] = c < count / 2 ? turns[c + count / 2] : 0.0f;
        }
    }

    __device__ __forceinline__ void load(const float *raw, u32 count) {
#pragma unroll
        for (u32 i = 0; i < 8; i++) {
            u32 c = i * 16 + (threadIdx.x & 15u);
            x[i] = c < count ? raw[c] : 0.0f;
        }
    }

    // The norm and, with the channel that is half a head away, the turn; nothing but the sum where it is not `meant`.
    __device__ __forceinline__ void turn(float eps, u32 count, bool meant) {
        float sum = 0.0f;
#pragma unroll
        for (u32 i = 0; i < 8; i++) sum = __fmaf_rn(x[i], x[i], sum);
        float r = reciprocal(fold(sum), count, eps);
        if (!meant) return;
#pragma unroll
        for (u32 i = 0; i < 8; i++) x[i] = normed ? gain[i] * (x[i] * r) : x[i];
        if (count == 128) turn_pairs<4>();
        else if (count == 96) turn_pairs<3>();
        else if (count == 64) turn_pairs<2>();
        else turn_pairs<1>();
    }

    template <u32 HALF> __device__ __forceinline__ void turn_pairs() {
#pragma unroll
        for (u32 i = 0; i < HALF; i++) {
            float a = x[i], b = x[i + HALF];
            x[i] = __fmaf_rn(a, cosine[i], -(b * sine[i])), x[i + HALF] = __fmaf_rn(b, cosine[i], a * sine[i]);
        }
    }
};

// Which head 16 threads have: one of the query's or, where this block has the newest position, its key or its value.
struct Fresh {
    u32 which, dim;
    bool is_key, is_value, is_query;

    __device__ __forceinline__ Fresh(const AttendStage &a, u32 count, bool newest) : which(threadIdx.x / 16), dim(a.head_dim) {
        is_key = newest && which == HEADS, is_value = newest && which == HEADS + 1, is_query = which < count;
    }

    __device__ __forceinline__ void prepare(const AttendStage &a, Head &head) const {
        head.prepare(is_key ? a.k_gain : a.q_gain, a.turns, is_key || is_query ? dim : 0);
    }

    // The query's heads into `query`; the key and the value into the cache and, as they are kept, into `newer`.
    template <int FORMAT>
    __device__ __forceinline__ void take(const AttendStage &a, const Cache &c, Head &head, u32 first, u32 kv, bool newest,
                                         typename Held<FORMAT>::Value *query, float *newer) const {
        u32 lane = threadIdx.x & 15u;
        const float *raw = is_key ? a.keys + kv * dim : is_value ? a.values + kv * dim : a.q + (first + which) * dim;
        head.load(raw, is_query || is_key || is_value ? dim : 0);
        head.turn(a.eps, dim, is_query || is_key);
#pragma unroll
        for (u32 i = 0; i < 8; i++)
            if (is_query && i * 16 < dim) query[which * dim + i * 16 + lane] = Held<FORMAT>::of(head.x[i]);
        if (!newest) return;
#pragma unroll
        for (u32 i = 0; i < 8; i++) {
            if (i * 16 >= dim) break;
            float kept = c.keep(is_key || is_value, is_value, c.row(kv, a.start) + i * 16 + lane, head.x[i]);
            if (is_key || is_value) newer[is_value * WIDEST + i * 16 + lane] = kept;
        }
    }
};

// What the splits of `count` heads from `h` on found, put together in order: a warp for each head finds the shares, into
// `shares[head][split]`. Meanwhile what the first splits found of a thread's channel is under way.
__device__ __forceinline__ void join(const AttendStage &a, u32 h, u32 count, float *shares) {
    const u32 EARLY = 8;
    u32 splits = a.splits, lane = threadIdx.x % 32, dim = a.head_dim, stride = dim + 2, columns = a.heads * dim;
    const float *sums = a.sums + (u64)h * splits * stride;
    auto found = [&](u32 i) { return sums + (u64)(i / dim * splits) * stride + 2 + i % dim; };
    float early[EARLY];
    const float *own = found(threadIdx.x < count * dim ? threadIdx.x : 0);
#pragma unroll
    for (u32 s = 0; s < EARLY; s++) early[s] = s < splits ? own[s * stride] : 0.0f;
    for (u32 g = threadIdx.x / 32; g < count; g += blockDim.x / 32) {
        const float *from = sums + (u64)g * splits * stride;
        float first = lane < splits ? from[lane * stride] : MINUS_INFINITY;
        float of_first = lane < splits ? from[lane * stride + 1] : 0.0f;
        float top = first, total = 0.0f;
        for (u32 s = lane + 32; s < splits; s += 32) top = fmaxf(top, from[s * stride]);
        for (int apart = 16; apart > 0; apart /= 2) top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, apart));
        for (u32 s = lane; s < splits; s += 32) {
            float share = exp_of((s == lane ? first : from[s * stride]) - top);
            total = __fmaf_rn(s == lane ? of_first : from[s * stride + 1], share, total), shares[g * splits + s] = share;
        }
        for (int apart = 16; apart > 0; apart /= 2) total += __shfl_xor_sync(0xffffffffu, total, apart);
        for (u32 s = lane; s < splits; s += 32) shares[g * splits + s] /= total;
    }
    __syncthreads();
    for (u32 i = threadIdx.x; i < count * dim; i += blockDim.x) {
        const float *from = found(i), *share = shares + i / dim * splits;
        float y = 0.0f;
        u32 s = 0;
        if (i == threadIdx.x) {
#pragma unroll
            for (; s < EARLY; s++)
                if (s < splits) y = __fmaf_rn(early[s], share[s], y);
        }
#pragma unroll 8
        for (; s < splits; s++) y = __fmaf_rn(from[s * stride], share[s], y);
        put(a.out, a.narrow, columns, 0, h * dim + i, y);
    }
    if (h + count == a.heads) pad(a.out, a.narrow, columns, 0, threadIdx.x, blockDim.x);
}

// A task: which keys for which heads.
struct Task {
    u32 split, set, kv, head, count, key; // `head`: the first of `count`; `key`: the first position

    __device__ __forceinline__ void be(const AttendStage &a, u32 of_split, u32 of_set) {
        u32 group = a.heads / a.kv_heads, sets = (group + HEADS - 1) / HEADS, first = of_set % sets * HEADS;
        split = of_split, set = of_set, kv = set / sets, count = min(HEADS, group - first), head = kv * group + first;
        key = (a.first_split + split) * SPLIT;
    }
};

// `work`: weights, the newest key and value, queries, and the values of a split or the shares of splits; attend.rs asks
// for as much.
template <int FORMAT, u32 THREADS, class Wait>
__device__ __forceinline__ void attend_one(const AttendStage &a, u8 *work, Wait wait) {
    // Keys: so many threads for each. Values: 16 for each.
    const u32 LOADS = SPLIT * 16 / THREADS, A_KEY = THREADS / SPLIT;
    Cache c = {a.cache, FORMAT, a.kv_heads, a.head_dim, a.capacity};
    u32 dim = c.head_dim, width = c.width(), chunks = width / 8, stride = dim + 2;
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, chunk = threadIdx.x % 16;
    u32 end = a.start + 1, low = a.window && end > a.window ? end - a.window : 0;
    u32 at = a.share * blockIdx.x + min(blockIdx.x, a.tasks - a.share * gridDim.x);
    u32 last = at + a.share + (blockIdx.x < a.tasks - a.share * gridDim.x);
    typedef Held<FORMAT> Held;
    typedef typename Held::Value Value;
    float *p = (float *)work, *newer = p + HEADS * SPLIT;
    Value *query = (Value *)(newer + 2 * WIDEST), *values = query + HEADS * WIDEST;
    // Rows of values lie 32 bytes further apart, so that those of four keys are in other banks.
    u32 row = width + 32 / sizeof(Value);
    Eight<FORMAT> k[LOADS], v[LOADS];
    // Keys and values that older tokens left; nothing in place of those that are not seen.
    auto load = [&](const Task &of) {
        u32 own = of.key + threadIdx.x / A_KEY;
#pragma unroll
        for (u32 i = 0; i < LOADS; i++) {
            u32 part = i * A_KEY + threadIdx.x % A_KEY, j = of.key + i * (THREADS / 16) + threadIdx.x / 16;
            bool key = own >= low && own < a.start && part < chunks, value = j >= low && j < a.start && chunk < chunks;
            k[i].load(c, c.side(0), key ? c.row(of.kv, own) + part * 8 : 0, key);
            v[i].load(c, c.side(1), value ? c.row(of.kv, j) + chunk * 8 : 0, value);
        }
    };

    // What is always there is asked for at once.
    Task task;
    Head head;
    task.be(a, at % a.splits, at / a.splits);
    bool prepared = at < last;
    if (prepared) load(task), Fresh(a, task.count, task.key + SPLIT > a.start).prepare(a, head);
    wait();
#pragma unroll 1
    for (u32 run = 1; at < last; at++, run++) {
        bool newest = task.key + SPLIT > a.start;
        if (run == 1 || newest) {
            Fresh fresh(a, task.count, newest);
            if (!prepared) fresh.prepare(a, head);
            prepared = false;
            fresh.template take<FORMAT>(a, c, head, task.head, task.kv, newest, query, newer);
            __syncthreads();
        }
        u32 own = task.key + threadIdx.x / A_KEY;

        // Scores.
        float scores[HEADS] = {};
#pragma unroll
        for (u32 i = 0; i < LOADS; i++) {
            u32 part = i * A_KEY + threadIdx.x % A_KEY;
            if (part >= chunks) break;
            float x[8];
            k[i].values(x);
            if (own == a.start) get_eight(newer + part * 8, x);
#pragma unroll
            for (u32 g = 0; g < HEADS; g++) {
                if (g >= task.count) break;
                float q[8], s = scores[g];
                Held::get(query + g * dim + part * 8, q);
#pragma unroll
                for (u32 j = 0; j < 8; j++) s = __fmaf_rn(q[j], x[j], s);
                scores[g] = s;
            }
        }
        float scale = 1.0f / sqrtf((float)dim);
#pragma unroll
        for (u32 g = 0; g < HEADS; g++) {
            if (g >= task.count) break;
            float score = scores[g];
#pragma unroll
            for (u32 apart = 1; apart < A_KEY; apart *= 2) score += __shfl_xor_sync(0xffffffffu, score, apart);
            if (threadIdx.x % A_KEY == 0)
                p[g * SPLIT + threadIdx.x / A_KEY] = own >= low && own < end ? score * scale : MINUS_INFINITY;
        }
#pragma unroll
        for (u32 i = 0; i < LOADS; i++) {
            if (chunk >= chunks) break;
            u32 j = i * (THREADS / 16) + threadIdx.x / 16;
            Value *to = values + j * row + chunk * 8;
            // As they are kept, where that is how they are held.
            if (FORMAT == CACHE_BF16 && task.key + j != a.start) {
                *(uint4 *)to = v[i].words[0];
                continue;
            }
            float x[8];
            v[i].values(x);
            if (task.key + j == a.start) get_eight(newer + WIDEST + chunk * 8, x);
            Held::put(to, x);
        }
        // The next task's are under way while this one is worked on.
        Task now = task;
        bool ends = task.split == a.splits - 1;
        if (at + 1 < last) task.be(a, ends ? 0 : task.split + 1, task.set + ends), load(task);
        __syncthreads();

        // Weights: a warp for each head.
        float *out = a.sums + ((u64)now.head * a.splits + now.split) * stride;
        u32 to_next = a.splits * stride; // head
        for (u32 g = warp; g < now.count; g += THREADS / 32) {
            float x = p[g * SPLIT + lane], y = p[g * SPLIT + 32 + lane], top = fmaxf(x, y);
#pragma unroll
            for (int apart = 16; apart > 0; apart /= 2) top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, apart));
            float base = top == MINUS_INFINITY ? 0.0f : top;
            x = exp_of(x - base), y = exp_of(y - base);
            float total = x + y;
#pragma unroll
            for (int apart = 16; apart > 0; apart /= 2) total += __shfl_xor_sync(0xffffffffu, total, apart);
            p[g * SPLIT + lane] = FORMAT == CACHE_F32 ? x : rounded(x);
            p[g * SPLIT + 32 + lane] = FORMAT == CACHE_F32 ? y : rounded(y);
            if (lane == 0) out[g * to_next] = top, out[g * to_next + 1] = total;
        }
        __syncthreads();

        // Values: four threads have every fourth key of four channels, and one of those each in the end.
        for (u32 i = threadIdx.x; i < now.count * dim; i += THREADS) {
            u32 g = i / dim, channel = i % dim, part = i % 4;
            const Value *from = values + channel / 4 * 4 + part * row;
            const float *weight = p + g * SPLIT + part;
            float sums[4] = {};
#pragma unroll 8
            for (u32 j = 0; j < SPLIT; j += 4) {
                float4 x = Held::four(from + j * row);
                float w = weight[j];
                sums[0] = __fmaf_rn(w, x.x, sums[0]), sums[1] = __fmaf_rn(w, x.y, sums[1]);
                sums[2] = __fmaf_rn(w, x.z, sums[2]), sums[3] = __fmaf_rn(w, x.w, sums[3]);
            }
#pragma unroll
            for (u32 k = 0; k < 4; k++) {
                sums[k] += __shfl_xor_sync(0xffffffffu, sums[k], 1);
                sums[k] += __shfl_xor_sync(0xffffffffu, sums[k], 2);
            }
            out[g * to_next + 2 + channel] = part == 0 ? sums[0] : part == 1 ? sums[1] : part == 2 ? sums[2] : sums[3];
        }
        __syncthreads();
        if (!ends && at + 1 < last) continue;

        // What this block wrote is there before it is counted; who counts to the end sees it all.
        u32 *whole = (u32 *)p;
        if (threadIdx.x == 0) {
            __threadfence();
            *whole = atomicAdd(a.tickets + now.set, run) + run == a.splits;
            if (*whole) a.tickets[now.set] = 0;
            __threadfence();
        }
        __syncthreads();
        if (*whole) join(a, now.head, now.count, (float *)values);
        __syncthreads();
        run = 0;
    }
}
