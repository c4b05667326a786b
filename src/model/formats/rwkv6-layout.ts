/**
 * The tensors of an RWKV-6 checkpoint under their native names: which there are, of what shape, and how the sizes of
 * a model follow from them. Writers, `describe.ts` and the loader share this one list. Knows nothing of files.
 */
import { aroundBlocks, type Dimensions, type NamedShape, normTensors } from './rwkv7-layout.ts'

export interface Rwkv6Dimensions extends Dimensions {
  /** Inner sizes of the low-rank pairs. */
  readonly ranks: Rwkv6Ranks
}

export interface Rwkv6Ranks {
  /** Rank of each of the five mixes. */
  readonly mix: number
  readonly decay: number
}

/** The mixes of time_maa_w1 and time_maa_w2, in the order in which they lie side by side. */
export const RWKV6_MIXES = ['w', 'k', 'v', 'r', 'g'] as const

/** The bonus of the present token; older files call it time_first. */
export const BONUS = 'time_faaaa'
export const BONUS_ALIAS = 'time_first'

/** Every tensor the model uses, in checkpoint order. */
export function rwkv6Tensors(dimensions: Rwkv6Dimensions): NamedShape[] {
  return aroundBlocks(dimensions, (layer) => blockTensors(dimensions, layer))
}

function blockTensors(dimensions: Rwkv6Dimensions, layer: number): NamedShape[] {
  const { channels: C, heads: H, headSize: N, ffnSize: F, ranks } = dimensions
  const block = `blocks.${layer}`
  const att = (name: string, ...shape: number[]) => ({ name: `${block}.att.${name}`, shape })
  const ffn = (name: string, ...shape: number[]) => ({ name: `${block}.ffn.${name}`, shape })
  return [
    ...(layer === 0 ? normTensors(`${block}.ln0`, C) : []),
    ...normTensors(`${block}.ln1`, C),
    ...normTensors(`${block}.ln2`, C),
    att('time_maa_x', 1, 1, C),
    ...RWKV6_MIXES.map((letter) => att(`time_maa_${letter}`, 1, 1, C)),
    att('time_maa_w1', C, RWKV6_MIXES.length * ranks.mix),
    att('time_maa_w2', RWKV6_MIXES.length, ranks.mix, C),
    att('time_decay', 1, 1, C),
    att('time_decay_w1', C, ranks.decay),
    att('time_decay_w2', ranks.decay, C),
    att(BONUS, H, N),
    ...['receptance', 'key', 'value', 'gate', 'output'].map((name) => att(`${name}.weight`, C, C)),
    ...normTensors(`${block}.att.ln_x`, C),
    ffn('time_maa_k', 1, 1, C),
    ffn('time_maa_r', 1, 1, C),
    ffn('key.weight', F, C),
    ffn('receptance.weight', C, C),
    ffn('value.weight', C, F),
  ]
}
