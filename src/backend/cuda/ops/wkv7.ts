/**
 * wkv7 on cuda. The rows of one token of a step take one fused launch, its long rows another (in chunks, on the tensor
 * cores), and those between a third (token by token). What a step has none of is not launched.
 * Where the library made the projections, their biases and sigmoids are done here as well.
 */
import type { StatePool, Tensor, Wkv7Operands, Wkv7Weights } from '../../backend.ts'
import type { Batch, Capacity } from '../../batch.ts'
import type { CudaDevice } from '../device/device.ts'
import { type DevicePointer, i32 } from '../kernel/args.ts'
import type { Kernel } from '../kernel/kernel.ts'
import { StructBytes } from '../kernel/struct-bytes.ts'
import type { LinearCommand } from '../linear/linear.ts'
import type { Product } from '../linear/product.ts'
import { LOG_HEADS, LOGGED } from '../state-log.ts'
import type { CudaStatePool } from '../states.ts'
import type { Command, StepShape } from '../step/command.ts'
import { normOf, statesOf, tensorOf } from '../step/operands.ts'

const THREADS = 128
/** Heads of a block of wkv7_decode. */
const DECODE_HEADS = 2

/** Bytes of Chunk and Outcome with their barriers, and of Desk, of wkv7-chunk.cuh. */
const CHUNK_BYTES = 23_808 + 16
const OUTCOME_BYTES = 8192 + 16
const DESK_BYTES = 31_232

/** A variant of wkv7-chunk.cu: how many blocks share a head of a row. */
interface Chunked {
  readonly kernel: Kernel
  readonly cluster: number
  readonly threads: number
  readonly sharedBytes: number
}

/**
 * Blocks of a cluster, chunks in the ring, groups of eight warps in a block that prepare chunks; from the widest. Two
 * groups leave too few registers for the chain where warps cannot hand them to each other.
 */
const CHUNKED = [
  [2, 6, 2],
  [2, 6, 1],
  [1, 4, 2],
  [1, 4, 1],
  [1, 2, 1],
] as const

/**
 * Heads of rows of one token, for each token of a long row, from which they are to have multiprocessors meanwhile. Fitted to an
 * H200, 7.2B, µs: 256 tokens take 25 with two blocks a head on nearly all multiprocessors and 38 with one, 320 answers 97,
 * both together 131 and 114; with 128 answers 70 and 55 (docs/dev/kernels-log.md 69).
 */
const HEADS_BESIDE = 11

/** The variants that run on a chip: one without clusters at least, or none. */
function chunkedOn(device: CudaDevice, stateF16: number): readonly Chunked[] {
  const [major] = device.computeCapability
  const variants: Chunked[] = []
  for (const [cluster, stages, groups] of CHUNKED) {
    const places = stages / cluster
    const sharedBytes = stages * CHUNK_BYTES + places * OUTCOME_BYTES + groups * DESK_BYTES
    const isKnown = variants.at(-1)?.cluster === cluster
    if (isKnown || major < (cluster > 1 ? 9 : 8) || (groups > 1 && major !== 9)) continue
    if (sharedBytes > device.info.sharedBytesPerBlock) continue
    const defines = { STATE_F16: stateF16, CLUSTER: cluster, STAGES: stages, GROUPS: groups }
    const kernel = device.kernel('wkv7-chunk', 'wkv7_chunk', defines)
    const threads = (2 * 128) / cluster + 256 * groups
    variants.push({ kernel, cluster, threads, sharedBytes })
  }
  return variants
}

/** Biases that were left to this op; null where the operand is complete. */
interface Biases {
  readonly w: DevicePointer | null
  readonly a: DevicePointer | null
  readonly v: DevicePointer | null
}

/** In place of `StateLog` of wkv7-log.cuh. */
const NO_LOG = new StructBytes().padTo(24).bytes()

const NO_BIASES: Biases = { w: null, a: null, v: null }

export function wkv7(
  device: CudaDevice,
  capacity: Capacity,
  out: Tensor,
  operands: Wkv7Operands,
  weights: Wkv7Weights,
  states: StatePool,
  layer: number,
  projections: LinearCommand | null,
): Command {
  const pool = statesOf(states)
  const { heads } = pool.shape
  const stateF16 = Number(pool.wkvType === 'f16')
  const defines = { STATE_F16: stateF16 }
  const log = pool.openLog()
  const decode = device.kernel('wkv7-decode', 'wkv7_decode', {
    ...defines,
    LOG_HEADS,
    LOGGED: log === null ? 0 : LOGGED,
  })
  const byToken = device.kernel('wkv7', 'wkv7_rows', defines)
  const chunked = chunkedOn(device, stateF16)
  const takesLong = i32(Number(chunked.length === 0))
  const absorbed = projections === null ? NO_BIASES : absorbBiases(projections, operands)
  const struct = (biases: Biases) => wkv7Struct(capacity, out, operands, weights, pool, layer, biases)
  // One set of arguments for each way the projections can be made.
  const sites = [NO_BIASES, absorbed].map((biases) => ({
    args: () => [struct(biases)],
    rowArgs: () => [struct(biases), takesLong],
    decodeArgs: () => [struct(biases), log?.struct(layer) ?? NO_LOG],
    decode: {},
    chunked: {},
    byToken: {},
  }))
  return {
    // Once for all layers.
    ...(log !== null && layer === 0 && { upload: (batch: Batch) => log.beginStep(batch) }),
    run(stream, { tokens, rows, singles, longRows }: StepShape) {
      const site = sites[projections?.leaves(tokens) ? 1 : 0]!
      // One block per multiprocessor; a single block takes the heads of rows one after the other.
      const sequences = heads * longRows
      const isFew = heads * singles * longRows < HEADS_BESIDE * (tokens - singles)
      const fits = ({ cluster }: Chunked) => cluster * sequences <= (isFew ? device.numSms : device.numSms / 2)
      const variant = longRows === 0 ? undefined : (chunked.find(fits) ?? chunked.at(-1))
      if (variant !== undefined) {
        const { kernel, cluster, threads, sharedBytes } = variant
        const options = { pdl: true, cluster, sharedBytes }
        const blocks = cluster > 1 ? cluster * sequences : Math.min(sequences, device.numSms)
        const grid = [blocks, 1, 1] as const
        stream.launch(site.chunked, kernel, grid, threads, site.args, options)
      }
      const others = rows - singles - (variant === undefined ? 0 : longRows)
      stream.launch(site.byToken, byToken, [heads, others, 1], THREADS, site.rowArgs)
      // The last of the three, which run beside each other.
      const decodeGrid = [Math.ceil(heads / DECODE_HEADS), singles, 1] as const
      stream.launch(site.decode, decode, decodeGrid, THREADS, site.decodeArgs)
    },
  }
}

/** Takes over the biases of w, a and vGate from the linear before, where all are as this op expects them. */
function absorbBiases(linear: LinearCommand, { w, a, vGate }: Wkv7Operands): Biases {
  const find = (tensor: Tensor | undefined, epilogue: 'none' | 'sigmoid'): Product | undefined =>
    linear.products.find((product) => product.y === tensor && product.bias !== null && product.epilogue === epilogue)
  const wanted = [find(w, 'none'), find(a, 'sigmoid'), find(vGate, 'sigmoid')] as const
  const taken = linear.absorb(wanted.filter((product) => product !== undefined))
  const biasOf = (product: Product | undefined) =>
    product !== undefined && taken.includes(product) ? product.bias : null
  return { w: biasOf(wanted[0]), a: biasOf(wanted[1]), v: biasOf(wanted[2]) }
}

/** `Wkv7` of wkv7.cuh. */
export function wkv7Struct(
  capacity: Capacity,
  out: Tensor,
  operands: Wkv7Operands,
  weights: Wkv7Weights,
  pool: CudaStatePool,
  layer: number,
  biases: Biases,
): Uint8Array {
  const { channels } = pool.shape
  const operand = (tensor: Tensor) => tensorOf(tensor, 'f16', capacity.tokens * channels)
  const constant = (tensor: Tensor) => tensorOf(tensor, 'f32', channels)
  const { r, k, v, w, a, g, vGate, vFirst } = operands
  const ln = normOf(weights.ln_x, channels)
  const struct = new StructBytes()
  for (const tensor of [out, r, k, v, w, a, g]) struct.pointer(operand(tensor))
  struct.pointer(vGate ? operand(vGate) : null).pointer(operand(vFirst))
  struct.pointer(biases.w).pointer(biases.a).pointer(biases.v)
  for (const tensor of [weights.k_k, weights.k_a, weights.r_k]) struct.pointer(constant(tensor))
  struct.pointer(ln.weight).pointer(ln.bias)
  struct.pointer(pool.wkvAddress(layer)).i64(pool.wkvStride)
  return struct.i32(channels).f32(ln.eps).bytes()
}
