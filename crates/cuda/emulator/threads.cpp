// Threads of blocks as contexts that take turns: each runs until it waits for its warp or its block, or looks for other
// blocks. What a GPU would leave undefined ends the program: warps that part, barriers that not all reach, copies nobody
// waits for.
#include <setjmp.h>
#include <ucontext.h>

#include <array>
#include <memory>
#include <vector>

#include "threads.h"

Index threadIdx, blockIdx, blockDim, gridDim;
unsigned char *emulated_shared;

namespace {

constexpr size_t STACK = 128 << 10;
enum State { Ready, Looking, AtBlock, AtWarp, Done };

struct Copy {
    void *to;
    int count;
    unsigned group;
    unsigned char bytes[16];
};

struct Thread {
    bool begun = false;
    std::unique_ptr<unsigned char[]> stack{new unsigned char[STACK]};
    jmp_buf place;
    State state;
    Together what;
    unsigned waits, groups;
    std::vector<Copy> copies;
};

struct alignas(1024) Shared {
    unsigned char bytes[MOST_SHARED];
};

// Of all blocks that are there, and of older launches. A stack stays where it is: a context lives on it.
std::vector<std::unique_ptr<Thread>> threads;
// Shared memory of each block.
std::vector<std::unique_ptr<Shared>> shared;
// What threads of a warp show each other. Twice: who goes on may write the next while others still read.
std::vector<std::array<unsigned char, SLOT>> slots[2];
jmp_buf scheduler;
const Launch *launch;
size_t current;
// Whether the thread that runs found what it had looked for.
bool found;

[[noreturn]] void fail(const char *problem) {
    fprintf(stderr, "%s: %s\n", launch->name, problem);
    abort();
}

// Jumps are enough to change between stacks: a context would ask the system each time.
void wait(State state) {
    threads[current]->state = state;
    if (_setjmp(threads[current]->place) == 0) _longjmp(scheduler, 1);
}

// One block after the other, on the same stack.
void run_thread() {
    for (;;) {
        launch->kernel->run(launch->arguments);
        if (!threads[current]->copies.empty()) fail("copies that nobody waited for");
        wait(Done);
    }
}

void go_on() {
    Thread &thread = *threads[current];
    if (_setjmp(scheduler) != 0) return;
    if (thread.begun) _longjmp(thread.place, 1);
    thread.begun = true;
    ucontext_t context;
    getcontext(&context);
    context.uc_stack.ss_sp = thread.stack.get();
    context.uc_stack.ss_size = STACK;
    makecontext(&context, run_thread, 0);
    setcontext(&context);
}

// Lets those go on whose warp has come whole; false if there are none.
bool release_warps(size_t block, size_t count) {
    bool released = false;
    for (size_t first = block; first < block + count; first += 32) {
        bool whole = true;
        for (size_t i = first; whole && i < first + 32; i++) whole = threads[i]->state == AtWarp;
        for (size_t i = first; whole && i < first + 32; i++) {
            if (threads[i]->what != threads[first]->what) fail("threads of a warp do different things together");
            threads[i]->state = Ready;
        }
        released = released || whole;
    }
    return released;
}

// Lets a block go on whose threads have all come, but for those that are done.
bool release_block(size_t block, size_t count) {
    size_t waiting = 0, done = 0;
    for (size_t i = block; i < block + count; i++)
        waiting += threads[i]->state == AtBlock, done += threads[i]->state == Done;
    if (waiting == 0 || waiting + done < count) return false;
    for (size_t i = block; i < block + count; i++)
        if (threads[i]->state == AtBlock) threads[i]->state = Ready;
    return true;
}

// Runs the threads of a block until they are done, or look for other blocks; false if none came further.
bool run_block(size_t block, size_t count, bool backwards) {
    for (bool ever = false;; ever = true) {
        bool moved = false;
        for (size_t n = 0; n < count; n++) {
            unsigned own = backwards ? count - 1 - n : n;
            current = block + own;
            Thread &thread = *threads[current];
            if (thread.state != Ready && thread.state != Looking) continue;
            threadIdx = {own % blockDim.x, own / blockDim.x % blockDim.y, own / blockDim.x / blockDim.y};
            found = false;
            go_on();
            moved = moved || found || thread.state != Looking;
        }
        moved = release_warps(block, count) || moved;
        if (!release_block(block, count) && !moved) return ever;
    }
}

bool done(size_t count) {
    for (size_t i = 0; i < count; i++)
        if (threads[i]->state != Done) return false;
    return true;
}

} // namespace

void wait_for_block() { wait(AtBlock); }
void wait_for_others() { wait(Looking); }
void go_on_after_others() { found = true; }
unsigned char *shared_of(unsigned block) { return shared[block]->bytes; }

const unsigned char *wait_for_warp(Together what, const void *mine, int bytes) {
    Thread &thread = *threads[current];
    int turn = thread.waits++ % 2, first = current / 32 * 32;
    memcpy(&slots[turn][current], mine, bytes);
    thread.what = what;
    wait(AtWarp);
    return slots[turn][first].data();
}

void copy_later(void *to, const void *from, int bytes, bool there) {
    if ((size_t)to % bytes != 0 || (there && (size_t)from % bytes != 0)) fail("a copy begins at no multiple of its size");
    Copy copy = {to, bytes, threads[current]->groups, {}};
    if (there) memcpy(copy.bytes, from, bytes);
    threads[current]->copies.push_back(copy);
}

void end_group() { threads[current]->groups++; }

void copy_now(unsigned but_groups) {
    std::vector<Copy> later;
    for (const Copy &copy : threads[current]->copies) {
        if (copy.group + but_groups < threads[current]->groups) memcpy(copy.to, copy.bytes, copy.count);
        else later.push_back(copy);
    }
    threads[current]->copies.swap(later);
}

void run_blocks(const Launch &of, Index first, unsigned blocks, bool backwards) {
    launch = &of;
    size_t count = blockDim.x * blockDim.y * blockDim.z, all = count * blocks;
    while (threads.size() < all) threads.emplace_back(new Thread);
    while (shared.size() < blocks) shared.emplace_back(new Shared);
    for (unsigned b = 0; b < blocks; b++) memset(shared[b]->bytes, 0xff, of.shared);
    for (auto &turn : slots) turn.resize(threads.size());
    for (size_t i = 0; i < all; i++) threads[i]->state = Ready, threads[i]->waits = 0;
    while (!done(all)) {
        bool moved = false;
        for (unsigned n = 0; n < blocks; n++) {
            unsigned block = backwards ? blocks - 1 - n : n;
            blockIdx = {first.x + block, first.y, first.z};
            emulated_shared = shared[block]->bytes;
            moved = run_block(block * count, count, backwards) || moved;
        }
        if (!moved) fail("not all come to a barrier");
    }
}
