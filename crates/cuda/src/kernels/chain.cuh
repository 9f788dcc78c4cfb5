// Kernels that begin before those in front of them have ended, where the chip can do that (PTX for sm_90): they bring what
// nobody writes meanwhile, then wait. Elsewhere these words say nothing.
#pragma once
#include "common.cuh"

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900

// The kernel behind this one may begin.
__device__ __forceinline__ void let_next_begin() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }

// Until all in front of this kernel have ended, and what they wrote is there. Every thread that reads or writes
// anything but weights says this first.
__device__ __forceinline__ void wait_for_previous() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

#else

__device__ __forceinline__ void let_next_begin() {}
__device__ __forceinline__ void wait_for_previous() {}

#endif
