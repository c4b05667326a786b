// What becomes of a matrix product before it is stored: the values of backend.ts's Epilogue.
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
      // A comparison that is false for NaN keeps it.
      const float positive = x < 0.0f ? 0.0f : x;
      return saturate_f16(positive * positive);
    }
    default:
      return x;
  }
}
