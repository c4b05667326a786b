/** The operands of recorded ops as device addresses, checked for their kind, type and size. */
import { assert } from '../../../errors.ts'
import {
  type HostTable,
  type Matrix,
  type Norm,
  own,
  type PenaltyPool,
  type StatePool,
  type Table,
  type Tensor,
} from '../../backend.ts'
import type { DevicePointer } from '../kernel/args.ts'
import { CudaHostTable, CudaMatrix, CudaTable, CudaTensor, type TensorType } from '../resources.ts'
import { CudaPenaltyPool, CudaStatePool } from '../states.ts'

/** The address of a tensor that has room for `count` numbers of the type. */
export function tensorOf(tensor: Tensor, type: TensorType, count: number): DevicePointer {
  const { type: actual, address } = anyTensorOf(tensor, count)
  assert(actual === type, `a tensor [${tensor.shape}] of ${actual} where ${type} is used`)
  return address
}

export function anyTensorOf(tensor: Tensor, count: number): CudaTensor {
  assert(tensor instanceof CudaTensor, 'a tensor of another backend')
  assert(tensor.count >= count, `a tensor [${tensor.shape}] where ${count} numbers are used`)
  return tensor
}

export function normOf(norm: Norm, channels: number) {
  return { weight: tensorOf(norm.weight, 'f32', channels), bias: tensorOf(norm.bias, 'f32', channels), eps: norm.eps }
}

export const matrixOf = (matrix: Matrix) => own(CudaMatrix, matrix)
export const tableOf = (table: Table) => own(CudaTable, table)
export const hostTableOf = (table: HostTable) => own(CudaHostTable, table)
export const statesOf = (states: StatePool) => own(CudaStatePool, states)
export const penaltiesOf = (penalties: PenaltyPool) => own(CudaPenaltyPool, penalties)
