// The copies and fragments of low-rank.cu. An operand of a chunk lies in shared memory line by
// line, a line of 64 columns in 128 bytes, its eight units of 16 bytes in an order (unit ^ line %
// 8) in which neither copies nor ldmatrix meet in a bank. Knows no job. Capability 9.0.
#pragma once
#include "common.cuh"
#include "mbarrier.cuh"
#include "tensor-cores.cuh"

/** Threads of a block, and columns of a chunk. */
constexpr int kThreads = 256;
constexpr int kColumns = 64;
/** Lines that all threads copy at once: eight threads to a line. */
constexpr int kLines = kThreads / 8;

/** 16 bytes into shared memory, zeros where there are none; done when its group is. */
__device__ __forceinline__ void copy_unit(u32 to, const f16* from, bool inside) {
#if __CUDA_ARCH__ >= 900
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
               "r"(inside ? 16 : 0)
               : "memory");
#endif
}

/** An operand as a thread copies it: one unit of every kLines-th line. */
struct Source {
  const f16* from;  // of its first line, at column 0
  int columns;
  /** Lines from its first to the last that exists. */
  int left;
};

/** `lines` of a matrix from its line `first` on. */
__device__ __forceinline__ Source source_of(const f16* matrix, int columns, int first, int lines) {
  const int line = threadIdx.x / 8;
  const f16* const from = matrix + (long long)(first + line) * columns + threadIdx.x % 8 * 8;
  return {from, columns, lines - first - line};
}

/** Asks for a chunk of `Count` lines; `to` is where the first lies. */
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
