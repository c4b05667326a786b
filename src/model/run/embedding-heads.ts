/**
 * The heads of EmbeddingRWKV's checkpoints: a small network for each of three tasks, behind the final hidden state of the
 * token that ends a text. Computed here, in f32: it is a matrix or two for a whole text.
 */
import { SkeinError } from '../../errors.ts'
import type { Checkpoint } from '../formats/format.ts'
import { readFloats } from '../formats/tensor-values.ts'

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
  const read = (part: string, shape: readonly number[]): Float32Array => {
    const name = `head.${task}_head.${part}`
    const entry = tensors.get(name)
    if (entry !== undefined && String(entry.shape) === String(shape)) return readFloats(entry)
    const found = entry === undefined ? 'is missing' : `has shape [${entry.shape.join(', ')}]`
    const message = `${path}: ${name} ${found}, expected [${shape.join(', ')}]`
    throw new SkeinError('unsupported_weights', message)
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
