/**
 * How relevant a document is to a query, by the state in which another model has left both: EmbeddingRWKV's reranker reads
 * its one token in that state, and a small network makes a number of what comes out. It has no token before that one.
 */
import { SkeinError } from '../../errors.ts'
import type { Checkpoint, TensorEntry } from '../formats/format.ts'
import { readFloats } from '../formats/tensor-values.ts'
import type { Runner, StateData, StateShape } from '../runner.ts'

/** Takes the state of another model; the number has no bounds. */
export interface Reranker {
  score(state: StateData): number
  dispose(): void
}

/** The runner is the reranker's from here on, and disposed of if this throws. */
export function rerankerOver(
  runner: Runner,
  ...rest: [tensors: ReadonlyMap<string, TensorEntry>, of: StateShape, path: string]
): Reranker {
  try {
    return made(runner, ...rest)
  } catch (error) {
    runner.dispose()
    throw error
  }
}

function made(runner: Runner, tensors: ReadonlyMap<string, TensorEntry>, of: StateShape, path: string): Reranker {
  const { stateShape } = runner.info
  if (JSON.stringify(stateShape) !== JSON.stringify(of)) {
    const said = ({ layers, channels, heads }: StateShape) =>
      `${layers} layers of ${channels} channels in ${heads} heads`
    const message = `${path} reads states of ${said(stateShape)}, and the model has ${said(of)}; give the reranker that was trained with it`
    throw new SkeinError('unsupported_weights', message, { param: 'reranker' })
  }
  const head = headOf(tensors, stateShape.channels, path)
  const noShift = new Float32Array(stateShape.layers * 2 * stateShape.channels)
  return {
    score([, wkv]) {
      runner.writeState(0, [noShift, wkv!]).result()
      const row = { slot: 0, tokens: Int32Array.of(0), samples: [], hidden: 'last' } as const
      const [result] = runner.step([row])
      return head(result!.hidden!)
    },
    dispose: () => runner.dispose(),
  }
}

/** w2 tanh(w0 x + b0) */
function headOf(
  tensors: ReadonlyMap<string, TensorEntry>,
  channels: number,
  path: string,
): (x: Float32Array) => number {
  const inner = tensors.get('0.weight')?.shape[0] ?? 0
  const read = (name: string, shape: readonly number[]) => {
    return readShaped(tensors.get(name), shape, `${path}: reranker.head.${name}`, { param: 'reranker' })
  }
  const weight = read('0.weight', [inner, channels])
  const bias = read('0.bias', [inner])
  const last = read('2.weight', [1, inner])
  return (x) =>
    bias.reduce((sum, own, row) => {
      let value = own
      for (let i = 0; i < channels; i++) value += weight[row * channels + i]! * x[i]!
      return sum + last[row]! * Math.tanh(value)
    }, 0)
}

/**
 * The heads of EmbeddingRWKV's checkpoints: a small network for each of three tasks, behind the final hidden state of the
 * token that ends a text. Computed here, in f32: it is a matrix or two for a whole text.
 */

/** Names in the checkpoints: retrieval, similarity, classification. */
const TASKS = ['retr', 'sts', 'cls'] as const
type Task = (typeof TASKS)[number]
type Head = (hidden: Float32Array) => Float32Array

const NORM_EPS = 1e-5

/** Empty for a model that was not trained for embeddings. */
export function readEmbeddingHeads(checkpoint: Checkpoint): ReadonlyMap<Task, Head> {
  const has = (task: Task) => checkpoint.tensors.has(`head.${task}_head.fc1.weight`)
  return new Map(TASKS.filter(has).map((task) => [task, readHead(checkpoint, task)]))
}

/** norm(x + fc2 relu(fc1 x)) */
function readHead({ path, tensors }: Checkpoint, task: Task): Head {
  const channels = tensors.get('emb.weight')?.shape[1] ?? 0
  const inner = tensors.get(`head.${task}_head.fc1.weight`)?.shape[0] ?? 0
  const read = (part: string, shape: readonly number[]) => {
    const name = `head.${task}_head.${part}`
    return readShaped(tensors.get(name), shape, `${path}: ${name}`)
  }
  const fc1 = read('fc1.weight', [inner, channels])
  const fc2 = read('fc2.weight', [channels, inner])
  const [weight, bias] = [read('norm.weight', [channels]), read('norm.bias', [channels])]
  return (hidden) => {
    const added = product(
      fc2,
      product(fc1, hidden).map((value) => Math.max(0, value)),
    )
    return normed(
      hidden.map((value, i) => value + added[i]!),
      weight,
      bias,
    )
  }
}

/** Throws unsupported_weights for one that is missing or has another shape. */
function readShaped(
  entry: TensorEntry | undefined,
  shape: readonly number[],
  title: string,
  options: { readonly param?: string } = {},
): Float32Array {
  if (entry !== undefined && String(entry.shape) === String(shape)) return readFloats(entry)
  const found = entry === undefined ? 'is missing' : `has shape [${entry.shape.join(', ')}]`
  throw new SkeinError('unsupported_weights', `${title} ${found}, expected [${shape.join(', ')}]`, options)
}

/** matrix: [rows, x.length] */
function product(matrix: Float32Array, x: Float32Array): Float32Array {
  return Float32Array.from({ length: matrix.length / x.length }, (_, row) => {
    const begin = row * x.length
    let sum = 0
    for (let i = 0; i < x.length; i++) sum += matrix[begin + i]! * x[i]!
    return sum
  })
}

function normed(x: Float32Array, weight: Float32Array, bias: Float32Array): Float32Array {
  const mean = x.reduce((sum, value) => sum + value, 0) / x.length
  const variance = x.reduce((sum, value) => sum + (value - mean) ** 2, 0) / x.length
  const scale = 1 / Math.sqrt(variance + NORM_EPS)
  return x.map((value, i) => (value - mean) * scale * weight[i]! + bias[i]!)
}
