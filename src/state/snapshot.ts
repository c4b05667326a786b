/**
 * A recurrent state outside its slot, with the tokens it has consumed, and what it depends on. Its form as a file is
 * snapshot-file.ts.
 */

/** Structurally the backend's StateData: see backend/backend.ts for what the numbers mean. */
export interface StateArrays {
  readonly shift: Float32Array // [L, 2, C]
  readonly wkv: Float32Array // [L, H, N, N]
}

export interface Snapshot {
  /** All tokens that the state has consumed, in order, from the empty state on. */
  readonly tokens: Int32Array
  /** Tokens that belong to the conversation after those and that the state has not consumed. */
  readonly tail: Int32Array
  readonly state: StateArrays
}

/** What a state depends on. Two states of the same identity have the same shape and mean the same. */
export interface ModelIdentity {
  readonly architecture: string
  readonly layers: number
  readonly channels: number
  readonly heads: number
  readonly headSize: number
  /** Hash of the vocabulary: token ids mean nothing without it. */
  readonly vocabulary: string
  /** Fingerprint of the weights. */
  readonly weights: string
}

/** Tokens of the whole conversation: those consumed and the tail. */
export function transcriptOf({ tokens, tail }: Pick<Snapshot, 'tokens' | 'tail'>): Int32Array {
  return joinTokens(tokens, tail)
}

export function joinTokens(...parts: readonly ArrayLike<number>[]): Int32Array {
  const joined = new Int32Array(parts.reduce((sum, part) => sum + part.length, 0))
  let at = 0
  for (const part of parts) {
    joined.set(part, at)
    at += part.length
  }
  return joined
}

/** Of a state of that shape outside its slot, where its numbers are f32, however the device holds them. */
export function stateBytesOf({
  layers,
  channels,
  heads,
  headSize,
}: Pick<ModelIdentity, 'layers' | 'channels' | 'heads' | 'headSize'>): number {
  return 4 * layers * (2 * channels + heads * headSize ** 2)
}

export function bytesOf(state: StateArrays): number {
  return state.shift.byteLength + state.wkv.byteLength
}
