#pragma once

__device__ inline int index() { return blockIdx.x * blockDim.x + threadIdx.x; }
