/**
 * Checkpoints whose tensors go by other names than RWKV's own, shown under the native ones: web-rwkv's `.st` files
 * (RWKV-6 renamed; low-rank factors transposed), the Hugging Face names of the fla library, and models of embeddings, whose
 * backbone is below `rwkv.`, and their rerankers. Which it is follows from
 * the names and shapes, never from the file's name. What has no native name keeps its own, for `describe.ts` to report.
 */

import { SkeinError } from '../../errors.ts'
import { byName, renamed, sliced, Transposer } from './entry-views.ts'
import type { Checkpoint, TensorEntry } from './format.ts'

export function withNativeNames(checkpoint: Checkpoint): Checkpoint {
  const naming = namingOf(checkpoint.tensors)
  if (naming === 'native') return checkpoint
  const view = VIEWS[naming]
  const transposer = new Transposer()
  const natives = [...checkpoint.tensors.values()].flatMap((entry) => view(entry, transposer))
  return { ...checkpoint, naming, tensors: byName(checkpoint, natives) }
}

type Tensors = ReadonlyMap<string, TensorEntry>
type EntryView = (entry: TensorEntry, transposer: Transposer) => TensorEntry[]

function namingOf(tensors: Tensors): 'native' | keyof typeof VIEWS {
  if (tensors.has('model.embeddings.weight')) return 'fla'
  if (tensors.has('rwkv.emb.weight')) return 'rwkv-emb'
  if (tensors.has('blocks.0.att.time_mix_w1')) return 'web-rwkv' // RWKV-6; the older ones have no w1
  const isAdapter = [...tensors.keys()].some((name) => /\.lora\.[01]$/.test(name))
  return isAdapter || isTransposedRwkv7(tensors) ? 'web-rwkv' : 'native'
}

/** The names of RWKV-7 are the same; its low-rank factors are [D, C] where the native ones are [C, D]. */
function isTransposedRwkv7(tensors: Tensors): boolean {
  const channels = tensors.get('emb.weight')?.shape[1]
  const w1 = tensors.get('blocks.0.att.w1')?.shape
  return w1 !== undefined && w1[0] !== channels && w1[1] === channels
}

const WEB_RWKV_TRANSPOSED = /\.att\.([wavg][12]|time_maa_w[12]|time_decay_w[12]|time_state)$|\.lora_A$/

const webRwkvEntries: EntryView = (entry, transposer) => {
  const name = entry.name
    .replace('.time_first', '.time_faaaa')
    .replace('.time_mix_', '.time_maa_')
    .replace(/\.lora\.0$/, '.lora_A')
    .replace(/\.lora\.1$/, '.lora_B')
  const native = renamed(entry, name)
  return [WEB_RWKV_TRANSPOSED.test(name) ? transposer.view(native) : native]
}

const FLA_GLOBAL: ReadonlyMap<string, string> = new Map([
  ['model.embeddings.weight', 'emb.weight'],
  ['model.norm.weight', 'ln_out.weight'],
  ['model.norm.bias', 'ln_out.bias'],
  ['lm_head.weight', 'head.weight'],
])

/** The part of a name between the layer and `.weight` or `.bias`. */
const FLA_MODULES: ReadonlyMap<string, string> = new Map([
  ['pre_norm', 'ln0'],
  ['attn_norm', 'ln1'],
  ['ffn_norm', 'ln2'],
  ['attn.r_proj', 'att.receptance'],
  ['attn.k_proj', 'att.key'],
  ['attn.v_proj', 'att.value'],
  ['attn.o_proj', 'att.output'],
  ['attn.g_norm', 'att.ln_x'],
  ['ffn.key', 'ffn.key'],
  ['ffn.value', 'ffn.value'],
])

/** In the order in which the first version of the layout stacks them in one tensor. */
const FLA_MIXES = ['r', 'w', 'k', 'v', 'a', 'g'] as const

const flaEntries: EntryView = (entry, transposer) => {
  const global = FLA_GLOBAL.get(entry.name)
  if (global !== undefined) return [renamed(entry, global)]
  const [, layer, rest = ''] = /^model\.layers\.(\d+)\.(.+)$/.exec(entry.name) ?? []
  if (layer === undefined) return [entry]
  const block = `blocks.${layer}`
  const lowRank = /^attn\.([wavg])_lora\.lora\.([02])\.(weight|bias)$/.exec(rest)
  if (lowRank) return [flaLowRank(entry, `${block}.att.${lowRank[1]}`, lowRank, transposer)]
  // With other rows the tensor keeps its name, and the error names what is missing.
  if (rest === 'attn.x_x' && entry.shape[0] === FLA_MIXES.length)
    return FLA_MIXES.map((letter, index) => sliced(entry, `${block}.att.x_${letter}`, index))
  const vector = /^(?:attn|ffn)\.(x_[rwkvag]|k_k|k_a|r_k)$/.exec(rest)
  if (vector) return [renamed(entry, `${block}.${rest.replace('attn.', 'att.')}`)]
  const [, module = '', kind] = /^(.+)\.(weight|bias)$/.exec(rest) ?? []
  const native = FLA_MODULES.get(module)
  return [native === undefined ? entry : renamed(entry, `${block}.${native}.${kind}`)]
}

/** A linear layer in, another with a bias out: the bias is w0, the weights are stored [out, in]. */
function flaLowRank(entry: TensorEntry, letter: string, [, , layer, kind]: RegExpExecArray, transposer: Transposer) {
  if (kind === 'bias') return renamed(entry, `${letter}0`)
  return transposer.view(renamed(entry, `${letter}${layer === '0' ? 1 : 2}`))
}

const embeddingEntries: EntryView = (entry) => [renamed(entry, entry.name.replace(/^rwkv\./, ''))]

const VIEWS: Readonly<Record<'fla' | 'web-rwkv' | 'rwkv-emb', EntryView>> = {
  fla: flaEntries,
  'web-rwkv': webRwkvEntries,
  'rwkv-emb': embeddingEntries,
}

const RERANKER = 'reranker.'
/** The published name of the embedding of its only token. */
const RERANKER_TOKEN = 'token.weight'

export function isReranker(tensors: Checkpoint['tensors']): boolean {
  return tensors.has(`${RERANKER}blocks.0.att.r_k`)
}

interface RerankerParts {
  /** RWKV-7 of one token. */
  readonly model: Checkpoint
  /** `0.weight` [D, C], `0.bias` [D], `2.weight` [1, D] */
  readonly head: ReadonlyMap<string, TensorEntry>
}

/**
 * A reranker of EmbeddingRWKV: all tensors are below `reranker.`, among them a whole RWKV-7 whose only token reads the states of
 * another model, and a small network behind it. The model is shown as any other's, the network apart.
 */
export function rerankerParts(checkpoint: Checkpoint): RerankerParts {
  const { path, tensors } = checkpoint
  if (!isReranker(tensors)) {
    const message = `${path} is no reranker: it has no tensors below "${RERANKER}"; give the file of EmbeddingRWKV's that is called so`
    throw new SkeinError('unsupported_weights', message, { param: 'reranker' })
  }
  const model = new Map<string, TensorEntry>()
  const head = new Map<string, TensorEntry>()
  for (const entry of tensors.values()) {
    if (!entry.name.startsWith(RERANKER)) continue
    const name = entry.name.slice(RERANKER.length)
    const part = /^head\.(.+)$/.exec(name)?.[1]
    if (part !== undefined) head.set(part, renamed(entry, entry.name))
    else {
      const own = name === RERANKER_TOKEN ? 'emb.weight' : name
      model.set(own, renamed(entry, own))
    }
  }
  // The matrix draws nothing, and no other one has its shape.
  const token = model.get('emb.weight')
  if (token !== undefined) model.set('head.weight', renamed(token, 'head.weight'))
  return { model: { ...checkpoint, tensors: model }, head }
}
