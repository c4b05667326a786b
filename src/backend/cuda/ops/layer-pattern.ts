/**
 * Recognises a layer of RWKV-7 in what was recorded: the eight ops of time mixing and channel mixing with nothing else
 * about them, so that one kernel can stand for them. Its large matrices are of one type, the low ranks
 * f16. Knows no kernel.
 */
import type { LinearJob, Ops, Tensor, Wkv7Operands, Wkv7Weights } from '../../backend.ts'
import type { DevicePointer } from '../kernel/args.ts'
import { CudaMatrix, CudaTensor, type HeldMatrix } from '../resources.ts'
import { CudaStatePool } from '../states.ts'

/** An op as it was recorded. */
export type Recorded = {
  [Op in keyof Ops]: { readonly op: Op; readonly args: Parameters<Ops[Op]> }
}[keyof Ops]

/** The inner matrices, in the order in which few-rows.cu reads them. */
export const IN_NAMES = ['r', 'k', 'v', 'w', 'a', 'g', 'vGate'] as const
export type InName = (typeof IN_NAMES)[number]
export const LOW_NAMES = ['w', 'a', 'g', 'vGate'] as const

/** A product x·Wᵀ of a layer: its input and output in [T, ·] buffers. */
interface Inner {
  readonly y: CudaTensor
  readonly weight: HeldMatrix
  readonly mix: Tensor
}

interface Outer {
  readonly weight: CudaMatrix
  readonly bias: Tensor | null
}

export interface Rwkv7Layer {
  readonly x: Tensor
  readonly out: Tensor
  readonly states: CudaStatePool
  readonly index: number
  readonly norms: readonly [Parameters<Ops['shiftMix']>[2], Parameters<Ops['shiftMix']>[2]]
  /** vGate is absent in the first layer of a model. */
  readonly inner: ReadonlyMap<InName, Inner>
  readonly outer: ReadonlyMap<InName, Outer>
  readonly operands: Wkv7Operands
  readonly weights: Wkv7Weights
  /** The layout of r, k, v, output, key and value. */
  readonly type: CudaMatrix['layout']
  readonly output: HeldMatrix
  readonly keyMix: Tensor
  readonly key: HeldMatrix
  readonly value: HeldMatrix
}

/** Ops of a layer. */
export const LAYER_OPS = 8

/** The layer that the eight ops compute; null when few-rows.cu does not know it. */
export function matchLayer(recorded: readonly Recorded[]): Rwkv7Layer | null {
  const [shift, inward, outward, mixing, output, channelShift, key, value] = recorded
  if (
    shift?.op !== 'shiftMix' ||
    inward?.op !== 'linear' ||
    outward?.op !== 'linear' ||
    mixing?.op !== 'wkv7' ||
    channelShift?.op !== 'shiftMix'
  )
    return null
  const [mixed, x, norm, mixes, states, index, which] = shift.args
  const [out, operands, weights, mixingStates, mixingIndex] = mixing.args
  const [keyInputs, channelX, channelNorm, keyMixes, channelStates, channelIndex, channelWhich] = channelShift.args
  const sameLayer = states === mixingStates && states === channelStates
  const sameIndex = index === mixingIndex && index === channelIndex
  if (!sameLayer || !sameIndex || which !== 0 || channelWhich !== 1 || x !== channelX) return null
  const mixOf = (input: Tensor) => mixes[mixed.indexOf(input)]
  const chains = matchChains(inward.args[0], outward.args[0], operands, mixOf)
  const outputs = soleJob(output, out, x, 'add')
  const keys = soleJob(key, keyInputs[0], null, 'relu2')
  const values = keys && soleJob(value, keys.y, x, 'add')
  if (!chains || !outputs || !keys || !values) return null
  const inputs = (['r', 'k', 'v'] as const).map((name) => chains.inner.get(name)!.weight)
  const { layout: type } = outputs.weight
  const isAlike = [...inputs, keys.weight, values.weight].every(({ layout }) => layout === type)
  if (!isAlike) return null
  if (!(states instanceof CudaStatePool) || keyInputs.length !== 1) return null
  return {
    ...{ x, out, states, index, operands, weights, type, ...chains },
    norms: [norm, channelNorm],
    output: outputs.weight,
    keyMix: keyMixes[0]!,
    key: keys.weight,
    value: values.weight,
  }
}

/**
 * Whether a layer is of one kind with those before it: the same buffers, types and shapes, the next of the states. Of each
 * inner matrix the first that has it counts: a model's first layer lacks vGate's.
 */
export function continues(before: readonly Rwkv7Layer[], layer: Rwkv7Layer): boolean {
  const [first] = before
  if (first === undefined) return true
  const isLike = IN_NAMES.every((name) => {
    const one = before.find(({ inner }) => inner.has(name))?.inner.get(name)
    const other = layer.inner.get(name)
    return !one || !other || (one.y === other.y && one.weight.rows === other.weight.rows)
  })
  return (
    isLike &&
    layer.inner.has('vGate') &&
    layer.type === first.type &&
    layer.x === first.x &&
    layer.out === first.out &&
    layer.states === first.states &&
    layer.index === first.index + before.length &&
    layer.key.rows === first.key.rows &&
    layer.norms.every(({ eps }) => eps === first.norms[0].eps)
  )
}

/** The layer with the copies in f16 of its large matrices in their place, where all of them have one. */
export function halvedLayer(layer: Rwkv7Layer, halved: ReadonlyMap<DevicePointer, DevicePointer>): Rwkv7Layer | null {
  const { inner, output, key, value } = layer
  const large = [inner.get('r'), inner.get('k'), inner.get('v')].map((one) => one!.weight)
  const copyOf = (matrix: HeldMatrix): HeldMatrix => {
    const { rows, columns } = matrix
    const address = halved.get(matrix.address)
    return address === undefined ? matrix : { rows, columns, layout: 'f16', address, scales: null }
  }
  if (![...large, output, key, value].every(({ address }) => halved.has(address))) return null
  const inners = [...inner].map(([name, one]) => [name, { ...one, weight: copyOf(one.weight) }] as const)
  const copies = { output: copyOf(output), key: copyOf(key), value: copyOf(value) }
  return { ...layer, type: 'f16', inner: new Map(inners), ...copies }
}

/** The only job of a linear, where it is as described. */
function soleJob(
  recorded: Recorded | undefined,
  x: Tensor | undefined,
  y: Tensor | null,
  epilogue: 'add' | 'relu2',
): { readonly y: Tensor; readonly weight: CudaMatrix } | null {
  if (recorded?.op !== 'linear') return null
  const [job, ...others] = recorded.args[0]
  if (!job || others.length > 0 || job.bias || job.x !== x || job.epilogue !== epilogue) return null
  if (y !== null && job.y !== y) return null
  return job.weight instanceof CudaMatrix ? { y: job.y, weight: job.weight } : null
}

function halfMatrix({ weight }: LinearJob): CudaMatrix | null {
  return weight instanceof CudaMatrix && weight.type === 'f16' ? weight : null
}

const INNER_EPILOGUES = { w: 'tanh', a: 'none', g: 'sigmoid', vGate: 'none' } as const
const OUTER_EPILOGUES = { w: 'none', a: 'sigmoid', g: 'none', vGate: 'sigmoid' } as const

/** r, k and v, and the two low-rank factors of w, a, g and vGate. */
function matchChains(
  inward: readonly LinearJob[],
  outward: readonly LinearJob[],
  operands: Wkv7Operands,
  mixOf: (input: Tensor) => Tensor | undefined,
): Pick<Rwkv7Layer, 'inner' | 'outer'> | null {
  const inner = new Map<InName, Inner>()
  const outer = new Map<InName, Outer>()
  const addInner = (name: InName, y: Tensor, epilogue: string, isLow: boolean): boolean => {
    const job = inward.find((one) => one.y === y)
    const mix = job && mixOf(job.x)
    const weight = job?.weight
    const isPlain = job && !job.bias && (job.epilogue ?? 'none') === epilogue
    if (!isPlain || !mix || !(weight instanceof CudaMatrix) || !(y instanceof CudaTensor)) return false
    if (isLow && weight.type !== 'f16') return false
    inner.set(name, { y, weight, mix })
    return true
  }
  for (const name of ['r', 'k', 'v'] as const) if (!addInner(name, operands[name], 'none', false)) return null
  for (const name of LOW_NAMES) {
    const y = operands[name]
    if (y === undefined) continue
    const job = outward.find((one) => one.y === y)
    const weight = job && halfMatrix(job)
    const isPlain = job && (job.epilogue ?? 'none') === OUTER_EPILOGUES[name]
    if (!isPlain || !weight || (job.bias === undefined) !== (name === 'g')) return null
    if (!addInner(name, job.x, INNER_EPILOGUES[name], true)) return null
    outer.set(name, { weight, bias: job.bias ?? null })
  }
  const isAll = inner.size === inward.length && outer.size === outward.length
  return isAll ? { inner, outer } : null
}
