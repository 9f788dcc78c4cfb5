// A launch, and the run of one of its blocks.
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

// Of block `blockIdx`; threads take turns in their order, or in the other.
void run_block(const Launch &launch, bool backwards);
