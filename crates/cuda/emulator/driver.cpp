// The driver's library, as far as `src/driver/sys.rs` calls it. Memory is the host's; it begins with NaN everywhere,
// so that what nobody wrote shows. Kernels run when they are launched, unless the stream is captured: then when its
// graph is. HALFBYTE_EMULATE_BACKWARDS lets the last
// thread of a block run first: what depends on an order that no barrier makes gives other results then.
#include <chrono>
#include <map>
#include <mutex>
#include <string>

#include "threads.h"

namespace {

typedef std::map<std::string, Kernel> Kernels;

Kernels &kernels() {
    static Kernels all;
    return all;
}

std::mutex one_launch;

typedef std::vector<std::function<int()>> Graph;
// That of this thread's stream, while it is captured.
thread_local Graph *captured = nullptr;

// Does something in the stream's turn.
int in_turn(std::function<int()> what) { return captured ? (captured->push_back(what), 0) : what(); }

// Few, so that blocks that are there at the same time are too.
constexpr int MULTIPROCESSORS = 6;

int take(void **place, size_t bytes) {
    *place = aligned_alloc(256, (bytes + 255) / 256 * 256);
    if (*place) memset(*place, 0xff, bytes);
    return *place ? 0 : 2;
}

// As sys.rs numbers them: multiprocessors, capability (9.0, or what is asked for), launches of blocks that wait for each
// other, shared memory.
int attribute(int which) {
    const char *asked = getenv("HALFBYTE_EMULATE_CAPABILITY");
    if (which == 75) return asked ? atoi(asked) : 9;
    return which == 16 ? MULTIPROCESSORS : which == 95 ? 1 : which == 97 ? (int)MOST_SHARED : 0;
}

} // namespace

int add_kernel(const char *name, Kernel kernel) {
    kernels()[name] = kernel;
    return 0;
}

extern "C" {

typedef unsigned long long Address;
typedef std::chrono::steady_clock::time_point Moment;

int cuInit(unsigned) { return 0; }
int cuDriverGetVersion(int *version) { return *version = 13000, 0; }
int cuGetErrorName(int, const char **name) { return *name = "CUDA_ERROR_EMULATED", 0; }
int cuGetErrorString(int, const char **text) { return *text = "the emulator refuses this", 0; }
int cuDeviceGetCount(int *count) { return *count = 1, 0; }
int cuDeviceGet(int *device, int) { return *device = 0, 0; }
int cuDeviceGetName(char *name, int bytes, int) { return snprintf(name, bytes, "emulator"), 0; }
int cuDeviceGetAttribute(int *value, int which, int) { return *value = attribute(which), 0; }
int cuDeviceTotalMem_v2(size_t *bytes, int) { return *bytes = 8ull << 30, 0; }
int cuDevicePrimaryCtxRetain(void **context, int) { return *context = &kernels(), 0; }
int cuDevicePrimaryCtxRelease_v2(int) { return 0; }
int cuCtxSetCurrent(void *) { return 0; }
int cuMemGetInfo_v2(size_t *free, size_t *total) { return *free = *total = 8ull << 30, 0; }
int cuMemAlloc_v2(Address *place, size_t bytes) { return take((void **)place, bytes); }
int cuMemFree_v2(Address place) { return free((void *)place), 0; }
int cuMemAllocHost_v2(void **place, size_t bytes) { return take(place, bytes); }
int cuMemFreeHost(void *place) { return free(place), 0; }
int cuMemcpyHtoDAsync_v2(Address to, const void *from, size_t bytes, void *) {
    return in_turn([=] { return memcpy((void *)to, from, bytes), 0; });
}
int cuMemcpyDtoHAsync_v2(void *to, Address from, size_t bytes, void *) {
    return in_turn([=] { return memcpy(to, (void *)from, bytes), 0; });
}
int cuMemcpyDtoDAsync_v2(Address to, Address from, size_t bytes, void *) {
    return in_turn([=] { return memmove((void *)to, (void *)from, bytes), 0; });
}
int cuMemsetD8Async(Address to, unsigned char value, size_t bytes, void *) {
    return in_turn([=] { return memset((void *)to, value, bytes), 0; });
}
int cuStreamCreate(void **stream, unsigned) { return *stream = &one_launch, 0; }
int cuStreamDestroy_v2(void *) { return 0; }
int cuStreamSynchronize(void *) { return captured ? 900 : 0; }
int cuStreamBeginCapture_v2(void *, unsigned) { return captured ? 900 : (captured = new Graph, 0); }
int cuStreamEndCapture(void *, void **graph) {
    *graph = captured, captured = nullptr;
    return *graph ? 0 : 901;
}
int cuGraphInstantiateWithFlags(void **made, void *graph, unsigned long long) { return *made = new Graph(*(Graph *)graph), 0; }
int cuGraphLaunch(void *made, void *) {
    for (const std::function<int()> &what : *(Graph *)made)
        if (int status = what()) return status;
    return 0;
}
int cuGraphDestroy(void *graph) { return delete (Graph *)graph, 0; }
int cuGraphExecDestroy(void *made) { return delete (Graph *)made, 0; }
int cuEventCreate(void **event, unsigned) { return *event = new Moment, 0; }
int cuEventDestroy_v2(void *event) { return delete (Moment *)event, 0; }
int cuEventRecord(void *event, void *) { return *(Moment *)event = std::chrono::steady_clock::now(), 0; }
int cuEventSynchronize(void *) { return 0; }
int cuEventElapsedTime(float *milliseconds, void *from, void *to) {
    return *milliseconds = std::chrono::duration<float, std::milli>(*(Moment *)to - *(Moment *)from).count(), 0;
}
int cuModuleLoadDataEx(void **module, const void *, unsigned, unsigned *, void **) { return *module = &kernels(), 0; }
int cuModuleUnload(void *) { return 0; }

int cuModuleGetFunction(void **function, void *, const char *name) {
    Kernels::iterator found = kernels().find(name);
    return found == kernels().end() ? 500 : (*function = &*found, 0);
}

// Matrices of bf16 alone, in boxes of 64 x 64 whose chunks are exchanged, with zeros around.
int cuTensorMapEncodeTiled(EmulatedMap *map, int type, unsigned dimensions, const unsigned char *at,
                           const unsigned long long *sizes, const unsigned long long *apart, const unsigned *box,
                           const unsigned *steps, int interleave, int exchanged, int, int fill) {
    bool aligned = (size_t)at % 16 == 0 && *apart % 16 == 0, whole = sizes[0] > 0 && sizes[1] > 0;
    bool ours = type == 9 && dimensions == 2 && box[0] == 64 && box[1] == 64 && steps[0] == 1 && steps[1] == 1;
    if (!aligned || !whole || !ours || interleave != 0 || exchanged != 3 || fill != 0) return 1;
    return *map = {at, sizes[0], sizes[1], *apart}, 0;
}

int cuFuncSetAttribute(void *, int, int bytes) { return bytes > (int)MOST_SHARED; }

// As in sys.rs.
struct Attribute {
    unsigned id;
    unsigned long long value[8];
};

struct LaunchSettings {
    unsigned blocks[3], threads[3], shared;
    void *stream;
    const Attribute *attributes;
    unsigned count;
};

int cuLaunchKernelEx(const LaunchSettings *of, void *function, void **arguments, void **);

// A launch with copies of what it is given.
int later(LaunchSettings of, void *function, void **arguments) {
    std::vector<std::vector<unsigned char>> values;
    for (size_t bytes : ((Kernels::value_type *)function)->second.sizes) {
        const unsigned char *value = (const unsigned char *)arguments[values.size()];
        values.emplace_back(value, value + bytes);
    }
    std::vector<Attribute> attributes(of.attributes, of.attributes + of.count);
    captured->push_back([=]() mutable {
        std::vector<void *> places;
        for (std::vector<unsigned char> &value : values) places.push_back(value.data());
        of.attributes = attributes.data();
        return cuLaunchKernelEx(&of, function, places.data(), nullptr);
    });
    return 0;
}

int cuLaunchKernelEx(const LaunchSettings *of, void *function, void **arguments, void **) {
    if (captured) return later(*of, function, arguments);
    std::lock_guard<std::mutex> guard(one_launch);
    const unsigned *blocks = of->blocks, *by = of->threads, threads = by[0] * by[1] * by[2];
    // Part of a warp would be allowed, but no kernel of ours wants it.
    if (blocks[0] * blocks[1] * blocks[2] == 0 || threads == 0 || threads % 32 != 0 || threads > MOST_THREADS) return 1;
    if (of->shared > MOST_SHARED || blocks[1] > 65535 || blocks[2] > 65535) return 1;
    // The attributes that we set: all blocks are there at the same time, or pairs. Others run one after the other.
    bool together = of->count > 0 && of->attributes->id == 2, pairs = of->count > 0 && of->attributes->id == 4;
    if (together && (blocks[0] > MULTIPROCESSORS || blocks[1] * blocks[2] > 1)) return 1;
    if (pairs && blocks[0] % 2 != 0) return 1;
    const Kernels::value_type &kernel = *(Kernels::value_type *)function;
    Launch launch = {kernel.first.c_str(), &kernel.second, arguments, of->shared};
    static bool backwards = getenv("HALFBYTE_EMULATE_BACKWARDS") != nullptr;
    gridDim = {blocks[0], blocks[1], blocks[2]}, blockDim = {by[0], by[1], by[2]};
    unsigned at_once = together ? blocks[0] : pairs ? 2 : 1;
    for (unsigned z = 0; z < blocks[2]; z++)
        for (unsigned y = 0; y < blocks[1]; y++)
            for (unsigned x = 0; x < blocks[0]; x += at_once) run_blocks(launch, {x, y, z}, at_once, backwards);
    return 0;
}

} // extern "C"
