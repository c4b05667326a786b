// The copies and fragments of low-rank.cu. In shared memory an operand of a chunk has 128 bytes per
// line of 64 columns. The eight 16-byte units of a line are swizzled (unit ^ line % 8), so that
// neither copies nor ldmatrix have bank conflicts. Does not know jobs. Needs capability 9.0.
#pragma once
#include "common.cuh"
#include "mbarrier.cuh"
#include "tensor-cores.cuh"

/** Threads of a block, and columns of a chunk. */
constexpr int kThreads = 256;
constexpr int kColumns = 64;
/** Lines that all threads copy at once, eight threads per line. */
constexpr int kLines = kThreads / 8;

/** Starts a copy of 16 bytes into shared memory, or of zeros. It is done when its group is. */
__device__ __forceinline__ void copy_unit(u32 to, const f16* from, bool inside) {
#if __CUDA_ARCH__ >= 900
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
               "r"(inside ? 16 : 0)
               : "memory");
#endif
}

/** A thread's part of an operand: one 16-byte unit of every kLines-th line. */
struct Source {
  const f16* from;  // the first line, at column 0
  int columns;
  /** Lines from the first to the last that exists. */
  int left;
};

/** The source of `lines` lines of a matrix, from line `first` on. */
__device__ __forceinline__ Source source_of(const f16* matrix, int columns, int first, int lines) {
  const int line = threadIdx.x / 8;
  const f16* const from = matrix + (long long)(first + line) * columns + threadIdx.x % 8 * 8;
  return {from, columns, lines - first - line};
}

/** Starts the copies of a chunk of `Count` lines. `to` is the address of the first. */
template <int Count>
__device__ __forceinline__ void copy_lines(u32 to, const Source& source, int chunk) {
  const int line = threadIdx.x / 8, unit = threadIdx.x % 8, column = chunk * kColumns;
  const bool inside = column + unit * 8 < source.columns;
  const u32 place = to + line * 128 + (unit ^ line % 8) * 16;
#pragma unroll
  for (int i = 0; i < Count / kLines; i++)
    copy_unit(place + i * kLines * 128,
              source.from + (long long)i * kLines * source.columns + column,
              inside && i * kLines < source.left);
}
