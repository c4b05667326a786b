// A barrier over the grid of few-rows.cu and eight-rows.cu, all of whose blocks are resident.
#pragma once
#include "few-rows.cuh"

/** A barrier over the grid in two halves. One thread of a warp without copies on their way speaks
 * for the block. */
struct GridBarrier {
  u32* arrivals;
  u32 sense;

  __device__ void arrive() const {
    sync_threads();
    signal();
  }

  /** Of what the warp that multiplies nothing has written, and knows to be written. */
  __device__ void signal() const {
    if (threadIdx.x == kWorkers) {
      // The top bit turns when all have come.
      const u32 one = blockIdx.x == 0 ? 0x80000000u - (BLOCKS - 1) : 1u;
      asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(arrivals), "r"(one) : "memory");
    }
    __syncwarp();
  }

  __device__ u32 read() const {
    u32 value;
    asm volatile("ld.acquire.gpu.u32 %0, [%1];" : "=r"(value) : "l"(arrivals) : "memory");
    return value;
  }

  __device__ void wait() {
    // All lanes, so that they stay together.
    if (threadIdx.x >= kWorkers) {
      u32 value;
      // An acquire empties L1: one at the end.
      do {
        asm volatile("ld.relaxed.gpu.u32 %0, [%1];" : "=r"(value) : "l"(arrivals) : "memory");
      } while (((value ^ sense) & 0x80000000u) == 0);
      read();
    }
    __syncwarp();
    sense ^= 0x80000000u;
    sync_threads();
  }
};
