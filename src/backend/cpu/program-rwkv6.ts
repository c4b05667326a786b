/** Recording the ops that only RWKV-6 uses; see program.ts. */
import { assert } from '../../errors.ts'
import type { StatePool, Tensor, Wkv6Operands, Wkv6Weights } from '../backend.ts'
import type { Pointer } from '../ffi.ts'
import type { CpuContext } from './context.ts'
import { addresses, channelsOf, normOf, pointerOf, statesOf } from './operands.ts'

export function recordDdlerp(
  context: CpuContext,
  program: Pointer,
  tokens: number,
  mix: readonly Tensor[],
  h: Tensor,
  prev: Tensor,
  base: readonly Tensor[],
): void {
  const C = channelsOf(h)
  assert(mix.length === base.length, 'ddlerp: as many mixes as bases')
  const status = context.native.sk_record_ddlerp(
    program,
    mix.length,
    addresses(mix.map((tensor) => pointerOf(tensor, tokens * C))),
    pointerOf(h, tokens * C),
    pointerOf(prev, tokens * C),
    addresses(base.map((tensor) => pointerOf(tensor, C))),
    C,
  )
  context.check(status, 'ddlerp')
}

export function recordWkv6(
  context: CpuContext,
  program: Pointer,
  tokens: number,
  out: Tensor,
  { r, k, v, w, g }: Wkv6Operands,
  { u, ln_x }: Wkv6Weights,
  states: StatePool,
  layer: number,
): void {
  const C = states.shape.channels
  const operand = (tensor: Tensor) => pointerOf(tensor, tokens * C)
  const ln = normOf(ln_x, C)
  const status = context.native.sk_record_wkv6(
    program,
    operand(out),
    operand(r),
    operand(k),
    operand(v),
    operand(w),
    operand(g),
    pointerOf(u, C),
    ln.weight,
    ln.bias,
    ln.eps,
    statesOf(states),
    layer,
  )
  context.check(status, 'wkv6')
}

export function recordGatedAdd(
  context: CpuContext,
  program: Pointer,
  tokens: number,
  x: Tensor,
  gate: Tensor,
  value: Tensor,
): void {
  const C = channelsOf(x)
  const operand = (tensor: Tensor) => pointerOf(tensor, tokens * C)
  const status = context.native.sk_record_gated_add(
    program,
    operand(x),
    operand(gate),
    operand(value),
    C,
  )
  context.check(status, 'gatedAdd')
}
