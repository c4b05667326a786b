/**
 * The tensors of an RWKV-7 or RWKV-7a checkpoint under their native names: which there are, of what shape, and how the sizes of
 * a model follow from them. Writers, `describe.ts` and the loader share this one list. Knows nothing of files.
 */
import type { StateShape } from '../../backend/state-shape.ts'

/** channels = heads · headSize */
export interface Dimensions extends StateShape {
  readonly ffnSize: number
  readonly vocabSize: number
}

export interface Rwkv7Dimensions extends Dimensions {
  /** Inner sizes of the low-rank pairs. */
  readonly ranks: Rwkv7Ranks
}

export interface Rwkv7Ranks {
  readonly w: number
  readonly a: number
  /** 0 for a model of one layer: the first layer mixes no earlier value in. */
  readonly v: number
  readonly g: number
  /** RWKV-7a only: rows and columns of the matrix that each token has (DeepEmbed). */
  readonly s?: number
}

export interface NamedShape {
  readonly name: string
  readonly shape: readonly number[]
}

/** Every tensor the model uses, in checkpoint order. */
export function rwkv7Tensors(dimensions: Rwkv7Dimensions): NamedShape[] {
  return aroundBlocks(dimensions, (layer) => blockTensors(dimensions, layer))
}

/** The blocks with what stands before and behind them in every version. */
export function aroundBlocks(
  { layers, channels: C, vocabSize: V }: Dimensions,
  blockOf: (layer: number) => readonly NamedShape[],
): NamedShape[] {
  const blocks = Array.from({ length: layers }, (_, layer) => blockOf(layer)).flat()
  const [emb, head] = ['emb.weight', 'head.weight'].map((name) => ({ name, shape: [V, C] }))
  return [emb!, ...blocks, ...normTensors('ln_out', C), head!]
}

/** Tensors that a checkpoint may carry and the model does not use: value mixing of the first layer. */
export function isUnusedRwkv7Tensor(name: string): boolean {
  return /^blocks\.0\.att\.v[012]$/.test(name)
}

/** A table of RWKV-7a, of which a step reads the rows of its tokens alone. */
export function isHostTable(name: string): boolean {
  return /\.ffn\.s_emb\.weight$/.test(name)
}

function blockTensors(dimensions: Rwkv7Dimensions, layer: number): NamedShape[] {
  const { channels: C, heads: H, headSize: N, ffnSize: F, ranks } = dimensions
  const block = `blocks.${layer}`
  const att = `${block}.att`
  const vector = (name: string): NamedShape => ({ name: `${att}.${name}`, shape: [1, 1, C] })
  const matrix = (name: string): NamedShape => ({ name: `${att}.${name}.weight`, shape: [C, C] })
  const lowRank = (letter: string, rank: number): NamedShape[] => [
    { name: `${att}.${letter}1`, shape: [C, rank] },
    { name: `${att}.${letter}2`, shape: [rank, C] },
  ]
  return [
    ...(layer === 0 ? normTensors(`${block}.ln0`, C) : []),
    ...normTensors(`${block}.ln1`, C),
    ...normTensors(`${block}.ln2`, C),
    ...['x_r', 'x_w', 'x_k', 'x_v', 'x_a', 'x_g'].map(vector),
    ...[vector('w0'), ...lowRank('w', ranks.w)],
    ...[vector('a0'), ...lowRank('a', ranks.a)],
    ...(layer > 0 ? [vector('v0'), ...lowRank('v', ranks.v)] : []),
    ...lowRank('g', ranks.g),
    ...['k_k', 'k_a'].map(vector),
    { name: `${att}.r_k`, shape: [H, N] },
    ...['receptance', 'key', 'value', 'output'].map(matrix),
    ...normTensors(`${att}.ln_x`, C),
    { name: `${block}.ffn.x_k`, shape: [1, 1, C] },
    { name: `${block}.ffn.key.weight`, shape: [F, C] },
    { name: `${block}.ffn.value.weight`, shape: [C, F] },
    ...(ranks.s === undefined ? [] : deepEmbedTensors(dimensions, `${block}.ffn`, ranks.s)),
  ]
}

function deepEmbedTensors({ channels: C, ffnSize: F, vocabSize: V }: Rwkv7Dimensions, ffn: string, S: number) {
  return [
    { name: `${ffn}.s_emb.weight`, shape: [V, S * S] },
    { name: `${ffn}.s_emb_x.weight`, shape: [S * S, C] },
    { name: `${ffn}.s0`, shape: [1, 1, F] },
    { name: `${ffn}.s1`, shape: [C, S] },
    { name: `${ffn}.s2`, shape: [S, F] },
  ]
}

export function normTensors(name: string, channels: number): NamedShape[] {
  return [
    { name: `${name}.weight`, shape: [channels] },
    { name: `${name}.bias`, shape: [channels] },
  ]
}
