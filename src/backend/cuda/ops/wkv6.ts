/**
 * The ops that only RWKV-6 has, on cuda: ddlerp, wkv6, gatedAdd. The rows of one token of a step take one fused launch of
 * wkv6; the others the row-split recurrence and a second launch for the norm and gate.
 */
import { assert } from '../../../errors.ts'
import type { StatePool, Tensor, Wkv6Operands, Wkv6Weights } from '../../backend.ts'
import type { Capacity } from '../../batch.ts'
import type { CudaDevice } from '../device/device.ts'
import { type DevicePointer, i32 } from '../kernel/args.ts'
import { StructBytes } from '../kernel/struct-bytes.ts'
import type { CudaStatePool } from '../states.ts'
import type { Command, StepShape } from '../step/command.ts'
import { normOf, statesOf, tensorOf } from '../step/operands.ts'

const DECODE_THREADS = 128
/** Four warps of the recurrence and four that prepare its operands. */
const PREFILL_THREADS = 256
/** Blocks that share a head's 64 value rows, and heads of a block of wkv6_output. */
const SPLITS = 4
const OUTPUT_HEADS = 4
/** MAX_MIXES of ddlerp.cu */
const MAX_MIXES = 5
/** Elementwise kernels: threads of a block, and blocks that fill any device. */
const THREADS = 256
const MAX_BLOCKS = 2048

/** Blocks for this many elements, `each` to a thread. */
function blocksOf(elements: number, each: number): number {
  return Math.min(MAX_BLOCKS, Math.ceil(elements / (each * THREADS)))
}

export function wkv6(
  device: CudaDevice,
  capacity: Capacity,
  out: Tensor,
  operands: Wkv6Operands,
  weights: Wkv6Weights,
  states: StatePool,
  layer: number,
  scratch: (count: number) => DevicePointer,
): Command {
  const pool = statesOf(states)
  const { heads, channels } = pool.shape
  const defines = { STATE_F16: Number(pool.wkvType === 'f16') }
  const decode = device.kernel('wkv6', 'wkv6_decode', defines)
  const prefill = device.kernel('wkv6', 'wkv6_prefill', defines)
  const output = device.kernel('wkv6', 'wkv6_output', defines)
  const y = scratch(capacity.tokens * channels)
  const struct = wkv6Struct(capacity, out, operands, weights, pool, layer, y)
  const args = () => [struct]
  const sites = { decode: {}, prefill: {}, output: {} }
  return {
    run(stream, { tokens, rows, singles }: StepShape) {
      stream.launch(sites.decode, decode, [heads, singles, 1], DECODE_THREADS, args)
      const others = rows - singles
      if (others === 0) return
      stream.launch(sites.prefill, prefill, [heads, others, SPLITS], PREFILL_THREADS, args)
      const blocks = Math.ceil((tokens * heads) / OUTPUT_HEADS)
      stream.launch(sites.output, output, [blocks, 1, 1], 32 * OUTPUT_HEADS, args)
    },
  }
}

/** `Wkv6` of wkv6.cu. */
function wkv6Struct(
  capacity: Capacity,
  out: Tensor,
  { r, k, v, w, g }: Wkv6Operands,
  weights: Wkv6Weights,
  pool: CudaStatePool,
  layer: number,
  y: DevicePointer,
): Uint8Array {
  const { channels } = pool.shape
  const ln = normOf(weights.ln_x, channels)
  const struct = new StructBytes()
  for (const tensor of [out, r, k, v, w, g]) struct.pointer(tensorOf(tensor, 'f16', capacity.tokens * channels))
  struct
    .pointer(tensorOf(weights.u, 'f32', channels))
    .pointer(ln.weight)
    .pointer(ln.bias)
  struct.pointer(pool.wkvAddress(layer)).pointer(y).i64(pool.wkvStride)
  return struct.i32(channels).f32(ln.eps).bytes()
}

export function ddlerp(
  device: CudaDevice,
  capacity: Capacity,
  mix: readonly Tensor[],
  h: Tensor,
  prev: Tensor,
  base: readonly Tensor[],
): Command {
  const MIXES = mix.length
  assert(MIXES === base.length, 'ddlerp: as many mixes as bases')
  assert(MIXES > 0 && MIXES <= MAX_MIXES, `ddlerp with ${MIXES} mixes`)
  const channels = base[0]!.shape.reduce((a, b) => a * b, 1)
  assert(channels % 8 === 0, `${channels} channels, expected a multiple of 8`)
  const kernel = device.kernel('ddlerp', 'ddlerp', { MIXES })
  const activation = (tensor: Tensor) => tensorOf(tensor, 'f16', capacity.tokens * channels)
  const struct = new StructBytes()
  for (const tensor of mix) struct.pointer(activation(tensor))
  struct.padTo(8 * MAX_MIXES)
  for (const tensor of base) struct.pointer(tensorOf(tensor, 'f32', channels))
  const lerps = struct.padTo(16 * MAX_MIXES).bytes()
  const [now, before] = [activation(h), activation(prev)]
  const site = {}
  return {
    run: (stream, { tokens }) =>
      stream.launch(site, kernel, [blocksOf(tokens * channels, 8), 1, 1], THREADS, () => [
        lerps,
        now,
        before,
        i32(channels),
      ]),
  }
}

export function gatedAdd(device: CudaDevice, capacity: Capacity, x: Tensor, gate: Tensor, value: Tensor): Command {
  const channels = x.shape[1]!
  assert(channels % 4 === 0, `${channels} channels, expected a multiple of 4`)
  const kernel = device.kernel('gated-add', 'gated_add')
  const count = capacity.tokens * channels
  const sum = tensorOf(x, 'f32', count)
  const factor = tensorOf(gate, 'f16', count)
  const term = tensorOf(value, 'f32', count)
  const site = {}
  return {
    run: (stream, { tokens }) =>
      stream.launch(site, kernel, [blocksOf(tokens * channels, 4), 1, 1], THREADS, () => [
        sum,
        factor,
        term,
        i32(channels),
      ]),
  }
}
