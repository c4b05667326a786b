// The epilogues of a matrix product, applied before the store: the values of Epilogue in
// backend.ts.
#pragma once
#include "common.cuh"

enum Epilogue { kNone = 0, kTanh = 1, kSigmoid = 2, kRelu2 = 3, kAdd = 4 };

__device__ __forceinline__ float apply_epilogue(float x, int epilogue) {
  switch (epilogue) {
    case kTanh:
      return tanh_of(x);
    case kSigmoid:
      return sigmoid(x);
    case kRelu2: {
      // Written so that NaN, for which the comparison is false, is kept.
      const float positive = x < 0.0f ? 0.0f : x;
      return saturate_f16(positive * positive);
    }
    default:
      return x;
  }
}
