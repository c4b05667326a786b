/** The ops around layer norms on cuda: embed, shiftMix, gatherNorm. Checks shapes once, when recorded. */
import { assert } from '../../../errors.ts'
import type { Norm, StatePool, Table, Tensor } from '../../backend.ts'
import type { Capacity } from '../../batch.ts'
import { isPacked } from '../../weight-types.ts'
import type { CudaDevice } from '../device/device.ts'
import { f32, i64, type KernelArg } from '../kernel/args.ts'
import { StructBytes } from '../kernel/struct-bytes.ts'
import { blockCode } from '../rounded-matrix.ts'
import { SOURCE_CODES } from '../source-rows.ts'
import type { Command, StepShape } from '../step/command.ts'
import { anyTensorOf, normOf, statesOf, tableOf, tensorOf } from '../step/operands.ts'

/** TABLE_TYPE of embed.cu for GGUF's blocks. */
const PACKED_TABLE = 3
/** MAX_MIXES of shift-mix.cu */
const MAX_MIXES = 6
/**
 * Tokens of rows of several from which a block of shift_mix takes several of them, and how many: all blocks at once come
 * first. Rows of one token have a kernel of their own.
 */
const TOKENS_PER_BLOCK = [
  [448, 2],
  [0, 1],
] as const
const MAX_THREADS = 512
const WARP = 32

/** Macros of norm.cuh: as few groups of 4 channels to a thread as fit in MAX_THREADS. */
function rowDefines(channels: number): { readonly CHANNELS: number; readonly THREADS: number } {
  assert(channels % 4 === 0, `${channels} channels, expected a multiple of 4`)
  const groups = channels / 4
  const perThread = Math.ceil(groups / MAX_THREADS)
  return { CHANNELS: channels, THREADS: WARP * Math.ceil(groups / perThread / WARP) }
}

function normArgs(norm: Norm, channels: number): KernelArg[] {
  const { weight, bias, eps } = normOf(norm, channels)
  return [weight, bias, f32(eps)]
}

export function embed(device: CudaDevice, capacity: Capacity, x: Tensor, table: Table, norm: Norm): Command {
  const source = tableOf(table)
  const defines = rowDefines(source.columns)
  const { type } = source
  const tableDefines = isPacked(type)
    ? { TABLE_TYPE: PACKED_TABLE, BLOCK: blockCode(type) }
    : { TABLE_TYPE: SOURCE_CODES[type] }
  const { type: outType, address: out } = anyTensorOf(x, capacity.tokens * source.columns)
  const outDefines = outType === 'f16' ? { OUT_F16: 1 } : {}
  const kernel = device.kernel('embed', 'embed', { ...defines, ...tableDefines, ...outDefines })
  const site = {}
  return {
    run: (stream, { tokens }) =>
      stream.launch(site, kernel, [tokens, 1, 1], defines.THREADS, () => [
        out,
        source.address,
        ...normArgs(norm, source.columns),
      ]),
  }
}

export function gatherNorm(
  device: CudaDevice,
  capacity: Capacity,
  out: Tensor,
  x: Tensor,
  norm: Norm,
  kept?: Tensor,
): Command {
  const channels = norm.weight.shape.reduce((a, b) => a * b, 1)
  const defines = rowDefines(channels)
  const kernel = device.kernel('gather-norm', 'gather_norm', defines)
  const to = tensorOf(out, 'f16', capacity.logits * channels)
  const keptRows = kept === undefined ? 0n : tensorOf(kept, 'f16', channels)
  const from = tensorOf(x, 'f32', capacity.tokens * channels)
  const site = {}
  return {
    run: (stream, { logits }) =>
      stream.launch(site, kernel, [logits, 1, 1], defines.THREADS, () => [
        to,
        from,
        ...normArgs(norm, channels),
        stream.buffer.input('keptAs'),
        keptRows,
      ]),
  }
}

/** `Mixes` of shift-mix.cu. */
function mixStruct(capacity: Capacity, out: readonly Tensor[], mix: readonly Tensor[], channels: number): Uint8Array {
  assert(out.length === mix.length, 'shiftMix: as many outputs as mixes')
  assert(out.length > 0 && out.length <= MAX_MIXES, `shiftMix with ${out.length} outputs`)
  const struct = new StructBytes()
  for (const tensor of out) struct.pointer(tensorOf(tensor, 'f16', capacity.tokens * channels))
  struct.padTo(8 * MAX_MIXES)
  for (const tensor of mix) struct.pointer(tensorOf(tensor, 'f32', channels))
  return struct.padTo(16 * MAX_MIXES).bytes()
}

export function shiftMix(
  device: CudaDevice,
  capacity: Capacity,
  out: readonly Tensor[],
  x: Tensor,
  norm: Norm,
  mix: readonly Tensor[],
  states: StatePool,
  layer: number,
  which: 0 | 1,
): Command {
  const pool = statesOf(states)
  const { channels } = pool.shape
  const mixes = mixStruct(capacity, out, mix, channels)
  const defines = { ...rowDefines(channels), MIXES: out.length }
  const variants = TOKENS_PER_BLOCK.map(([from, TOKENS]) => ({
    from,
    mix: device.kernel('shift-mix', 'shift_mix', { ...defines, TOKENS }),
    commit: device.kernel('shift-mix', 'shift_commit', { ...defines, TOKENS }),
    perBlock: TOKENS,
  }))
  const decode = device.kernel('shift-mix', 'shift_mix_decode', { ...defines, TOKENS: 1 })
  const rest = [
    tensorOf(x, 'f32', capacity.tokens * channels),
    ...normArgs(norm, channels),
    pool.shiftAddress(layer, which),
    i64(BigInt(pool.shiftStride)),
  ]
  const [site, commitSite] = [{}, {}]
  return {
    run(stream, { tokens, rows, singles }: StepShape) {
      const mixArgs = () => [mixes, ...rest]
      const others = rows - singles
      const kernels = variants.find(({ from }) => tokens - singles >= from) ?? variants.at(-1)!
      const blocks = others === 0 ? 0 : Math.ceil(tokens / kernels.perBlock)
      stream.launch(site, kernels.mix, [blocks, 1, 1], defines.THREADS, mixArgs)
      // Runs beside it.
      stream.launch(site, decode, [singles, 1, 1], defines.THREADS, mixArgs)
      // Blocks of one token have done it.
      if (others === 0 || kernels.perBlock === 1) return
      stream.launch(commitSite, kernels.commit, [others, 1, 1], defines.THREADS, () => rest)
    },
  }
}
