/** The operands of recorded ops as device addresses, checked for their kind, type and size. */
import { assert } from '../../../errors.ts'
import type { HostTable, Matrix, Norm, PenaltyPool, StatePool, Table, Tensor } from '../../backend.ts'
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
  return {
    weight: tensorOf(norm.weight, 'f32', channels),
    bias: tensorOf(norm.bias, 'f32', channels),
    eps: norm.eps,
  }
}

export function matrixOf(matrix: Matrix): CudaMatrix {
  assert(matrix instanceof CudaMatrix, 'a matrix of another backend')
  return matrix
}

export function tableOf(table: Table): CudaTable {
  assert(table instanceof CudaTable, 'a table of another backend')
  return table
}

export function hostTableOf(table: HostTable): CudaHostTable {
  assert(table instanceof CudaHostTable, 'a table of another backend')
  return table
}

export function statesOf(states: StatePool): CudaStatePool {
  assert(states instanceof CudaStatePool, 'a state pool of another backend')
  return states
}

export function penaltiesOf(penalties: PenaltyPool): CudaPenaltyPool {
  assert(penalties instanceof CudaPenaltyPool, 'a penalty pool of another backend')
  return penalties
}
