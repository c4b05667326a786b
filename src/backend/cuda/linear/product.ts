/** A job of a linear on cuda, checked and resolved to addresses. Knows no kernel. */
import type { Epilogue, LinearJob } from '../../backend.ts'
import type { DevicePointer } from '../kernel/args.ts'
import type { CudaMatrix, CudaTensor } from '../resources.ts'
import { anyTensorOf, matrixOf, tensorOf } from '../step/operands.ts'

/** Values of enum Epilogue in epilogue.cuh. */
export const EPILOGUES: Readonly<Record<Epilogue, number>> = { none: 0, tanh: 1, sigmoid: 2, relu2: 3, add: 4 }

export interface Product {
  readonly y: CudaTensor
  readonly x: DevicePointer
  readonly weight: DevicePointer
  /** Of the weights; `scales` belong to those that are not f16. */
  readonly type: CudaMatrix['layout']
  readonly scales: DevicePointer | null
  readonly bias: DevicePointer | null
  readonly rows: number
  readonly columns: number
  readonly epilogue: Epilogue
}

export function productOf(job: LinearJob, tokens: number): Product {
  const { y, x, weight, bias, epilogue = 'none' } = job
  const { address, layout, scales, rows, columns } = matrixOf(weight)
  return {
    y: anyTensorOf(y, tokens * rows),
    x: tensorOf(x, 'f16', tokens * columns),
    weight: address,
    type: layout,
    scales,
    bias: bias ? tensorOf(bias, 'f32', rows) : null,
    rows,
    columns,
    epilogue,
  }
}
