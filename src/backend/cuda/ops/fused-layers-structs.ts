/** The structs that few-rows.cu takes, as bytes. */
import type { Ops, Tensor } from '../../backend.ts'
import type { Capacity } from '../../batch.ts'
import type { DevicePointer } from '../kernel/args.ts'
import { StructBytes } from '../kernel/struct-bytes.ts'
import type { CudaMatrix } from '../resources.ts'
import type { StepStream } from '../step/command.ts'
import { normOf, tensorOf } from '../step/operands.ts'
import { firstRows, layerBytes } from './fused-layers-plan.ts'
import { IN_NAMES, LOW_NAMES, type Rwkv7Layer } from './layer-pattern.ts'
import { wkv7Struct } from './wkv7.ts'

/** Bytes of `Logits`. */
const LOGITS_BYTES = 72

/** What makes logits of the last layer's x, as it was recorded. */
export interface Output {
  readonly gather: Parameters<Ops['gatherNorm']>
  readonly logits: Tensor
  readonly head: CudaMatrix
}

/** Memory of a launch; `table` holds each layer's `Layer`. */
export type FewRowsMemory = Readonly<Record<'table' | 'y' | 'u' | 'arrivals', DevicePointer>> & {
  readonly words: DevicePointer | null
}

/** `Layer`. */
export function layerStruct(
  capacity: Capacity,
  layer: Rwkv7Layer,
  value: Pick<CudaMatrix, 'address' | 'scales'>,
): Uint8Array {
  const { inner, outer, states, index, weights, operands } = layer
  const { channels } = states.shape
  const vector = (tensor: Tensor | null | undefined) => (tensor ? tensorOf(tensor, 'f32', channels) : null)
  const bias = (name: (typeof LOW_NAMES)[number]) => vector(outer.get(name)?.bias)
  const biases = { w: bias('w'), a: bias('a'), v: bias('vGate') }
  const norms = layer.norms.map((norm) => normOf(norm, channels))
  const ln = normOf(weights.ln_x, channels)
  const struct = new StructBytes()
  for (const norm of norms) struct.pointer(norm.weight).pointer(norm.bias)
  struct.pointer(vector(layer.keyMix))
  for (const name of IN_NAMES) struct.pointer(vector(inner.get(name)?.mix))
  struct.pointer(biases.w).pointer(biases.a).pointer(biases.v)
  for (const tensor of [weights.k_k, weights.k_a, weights.r_k]) struct.pointer(vector(tensor))
  struct.pointer(ln.weight).pointer(ln.bias)
  for (const name of IN_NAMES) struct.pointer(inner.get(name)?.weight.address ?? null)
  for (const name of LOW_NAMES) struct.pointer(outer.get(name)?.weight.address ?? null)
  struct.pointer(layer.output.address).pointer(layer.key.address).pointer(value.address)
  if (layer.type !== 'f16') {
    const inputs = IN_NAMES.slice(0, 3).map((name) => inner.get(name)!.weight)
    for (const { scales } of [...inputs, layer.output, layer.key, value]) struct.pointer(scales)
  }
  struct.pointer(states.shiftAddress(index, 0)).pointer(states.shiftAddress(index, 1))
  const bytes = new Uint8Array(layerBytes(layer.type))
  const head = struct.bytes()
  bytes.set(head)
  bytes.set(wkv7Struct(capacity, layer.out, operands, weights, states, index, biases), head.length)
  return bytes
}

/** `FewRows`. */
export function fewRowsStruct(capacity: Capacity, layers: readonly Rwkv7Layer[], memory: FewRowsMemory): Uint8Array {
  const layer = layers[0]!
  const { channels } = layer.states.shape
  const struct = new StructBytes()
  struct.pointer(memory.table).pointer(tensorOf(layer.x, 'f32', capacity.tokens * channels))
  struct.pointer(memory.y).pointer(memory.u).pointer(memory.arrivals)
  struct.i64(layer.states.shiftStride)
  for (const row of firstRows(layers)) struct.i32(row)
  struct.i32(layers.length).f32(layer.norms[0].eps).pointer(memory.words)
  return struct.bytes()
}

/** `Logits`; null: none. */
export function logitsStruct(capacity: Capacity, { buffer }: StepStream, output: Output | null): Uint8Array {
  if (output === null) return new Uint8Array(LOGITS_BYTES)
  const { gather, logits, head } = output
  const [hidden, , norm, kept] = gather
  const { rows, columns, address } = head
  const { weight, bias, eps } = normOf(norm, columns)
  const struct = new StructBytes().pointer(weight).pointer(bias).pointer(address)
  struct.pointer(tensorOf(hidden, 'f16', capacity.logits * columns))
  struct.pointer(tensorOf(logits, 'f32', capacity.logits * rows)).pointer(buffer.input('keptAs'))
  struct.pointer(kept === undefined ? null : tensorOf(kept, 'f16', columns))
  return struct.f32(eps).i32(rows).bytes()
}
