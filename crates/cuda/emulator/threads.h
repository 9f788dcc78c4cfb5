// A launch, and the run of some of its blocks.
#pragma once
#include "device.h"

constexpr int MOST_THREADS = 1024;
constexpr unsigned MOST_SHARED = 227 << 10;

struct Launch {
    const char *name;
    const Kernel *kernel;
    void **arguments;
    unsigned shared;
};

// Blocks of one line of the grid that are there at the same time; threads take turns in their order, or in the other.
void run_blocks(const Launch &launch, Index first, unsigned count, bool backwards);
