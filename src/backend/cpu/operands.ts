/**
 * Checks that tensors, matrices and pools are of this backend and large enough, and gives their addresses to native
 * code.
 */
import { assert } from '../../errors.ts'
import type { HostTable, Matrix, Norm, PenaltyPool, StatePool, Table, Tensor } from '../backend.ts'
import type { Pointer } from '../ffi.ts'
import { CpuMatrix, CpuPenaltyPool, CpuStatePool, CpuTable, CpuTensor } from './resources.ts'

/** Addresses as an array of C pointers. */
export function addresses(pointers: readonly (Pointer | null)[]): BigUint64Array {
  return BigUint64Array.from(pointers, (pointer) => pointer ?? 0n)
}

/** The address of a tensor that has room for `count` numbers. */
export function pointerOf(tensor: Tensor, count: number): Pointer {
  assert(tensor instanceof CpuTensor, 'a tensor of another backend')
  assert(tensor.count >= count, `a tensor [${tensor.shape}] where ${count} numbers are used`)
  return tensor.pointer
}

export function normOf(norm: Norm, channels: number) {
  return {
    weight: pointerOf(norm.weight, channels),
    bias: pointerOf(norm.bias, channels),
    eps: norm.eps,
  }
}

export function matrixOf(matrix: Matrix): Pointer {
  assert(matrix instanceof CpuMatrix, 'a matrix of another backend')
  return matrix.pointer
}

export function tableOf(table: Table | HostTable): Pointer {
  assert(table instanceof CpuTable, 'a table of another backend')
  return table.pointer
}

export function statesOf(states: StatePool): Pointer {
  assert(states instanceof CpuStatePool, 'a state pool of another backend')
  return states.pointer
}

export function penaltiesOf(penalties: PenaltyPool): CpuPenaltyPool {
  assert(penalties instanceof CpuPenaltyPool, 'a penalty pool of another backend')
  return penalties
}

/** Channels of an activation [T, C]. */
export function channelsOf({ shape }: Tensor): number {
  assert(shape.length === 2, `a tensor [${shape}] where [T, C] is used`)
  return shape[1]!
}
