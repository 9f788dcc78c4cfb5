// Threads of a block as contexts that take turns: each runs until it waits for its warp or its block. What a GPU
// would leave undefined ends the program: warps that part, barriers that not all reach, copies nobody waits for.
#include <setjmp.h>
#include <ucontext.h>

#include <vector>

#include "threads.h"

Index threadIdx, blockIdx, blockDim, gridDim;
alignas(1024) unsigned char emulated_shared[MOST_SHARED];

namespace {

constexpr size_t STACK = 256 << 10;
enum State { Ready, AtBlock, AtWarp, Done };

struct Copy {
    void *to;
    int count;
    unsigned group;
    unsigned char bytes[16];
};

struct Thread {
    bool begun;
    jmp_buf place;
    State state;
    Together what;
    unsigned waits, groups;
    std::vector<Copy> copies;
};

Thread threads[MOST_THREADS];
std::vector<unsigned char> stacks;
// Twice: who goes on may write the next while others still read.
unsigned char slots[2][MOST_THREADS][SLOT];
jmp_buf scheduler;
const Launch *launch;
int current;

[[noreturn]] void fail(const char *problem) {
    fprintf(stderr, "%s: %s\n", launch->name, problem);
    abort();
}

// Jumps are enough to change between stacks: a context would ask the system each time.
void wait(State state) {
    threads[current].state = state;
    if (_setjmp(threads[current].place) == 0) _longjmp(scheduler, 1);
}

// One block after the other, on the same stack.
void run_thread() {
    for (;;) {
        (*launch->kernel)(launch->arguments);
        if (!threads[current].copies.empty()) fail("copies that nobody waited for");
        wait(Done);
    }
}

void go_on() {
    Thread &thread = threads[current];
    if (_setjmp(scheduler) != 0) return;
    if (thread.begun) _longjmp(thread.place, 1);
    thread.begun = true;
    ucontext_t context;
    getcontext(&context);
    context.uc_stack.ss_sp = stacks.data() + current * STACK;
    context.uc_stack.ss_size = STACK;
    makecontext(&context, run_thread, 0);
    setcontext(&context);
}

// Lets those go on whose warp has come whole; false if there are none.
bool release_warps(int count) {
    bool released = false;
    for (int first = 0; first < count; first += 32) {
        bool whole = true;
        for (int i = first; i < first + 32; i++) whole = whole && threads[i].state == AtWarp;
        for (int i = first; whole && i < first + 32; i++) {
            if (threads[i].what != threads[first].what) fail("threads of a warp do different things together");
            threads[i].state = Ready;
        }
        released = released || whole;
    }
    return released;
}

bool release_block(int count, int live) {
    int waiting = 0;
    for (int i = 0; i < count; i++) waiting += threads[i].state == AtBlock;
    if (waiting < live) return false;
    for (int i = 0; i < count; i++)
        if (threads[i].state == AtBlock) threads[i].state = Ready;
    return true;
}

} // namespace

void wait_for_block() { wait(AtBlock); }

const unsigned char *wait_for_warp(Together what, const void *mine, int bytes) {
    Thread &thread = threads[current];
    int turn = thread.waits++ % 2, first = current / 32 * 32;
    memcpy(slots[turn][current], mine, bytes);
    thread.what = what;
    wait(AtWarp);
    return slots[turn][first];
}

void copy_later(void *to, const void *from, int bytes, bool there) {
    if ((size_t)to % bytes != 0 || (there && (size_t)from % bytes != 0)) fail("a copy begins at no multiple of its size");
    Copy copy = {to, bytes, threads[current].groups, {}};
    if (there) memcpy(copy.bytes, from, bytes);
    threads[current].copies.push_back(copy);
}

void end_group() { threads[current].groups++; }

void copy_now(unsigned but_groups) {
    std::vector<Copy> later;
    for (const Copy &copy : threads[current].copies) {
        if (copy.group + but_groups < threads[current].groups) memcpy(copy.to, copy.bytes, copy.count);
        else later.push_back(copy);
    }
    threads[current].copies.swap(later);
}

void run_block(const Launch &of, bool backwards) {
    launch = &of;
    int count = blockDim.x * blockDim.y * blockDim.z;
    stacks.resize(MOST_THREADS * STACK);
    memset(emulated_shared, 0xff, of.shared);
    for (int i = 0; i < count; i++) threads[i].state = Ready, threads[i].waits = 0;
    for (int live = count; live > 0;) {
        for (int n = 0; n < count; n++) {
            current = backwards ? count - 1 - n : n;
            if (threads[current].state != Ready) continue;
            threadIdx = {current % blockDim.x, current / blockDim.x % blockDim.y, current / blockDim.x / blockDim.y};
            go_on();
            live -= threads[current].state == Done;
        }
        if (live > 0 && !release_warps(count) && !release_block(count, live)) fail("not all come to a barrier");
    }
}
