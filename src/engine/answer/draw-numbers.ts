/** How the tokens of an answer are drawn and which tokens end it, as the request asks. */
import type { SampleSpec } from '../../model/runner.ts'
import type { GenerateRequest } from '../messages.ts'
import { END_OF_TEXT } from './answer-text.ts'

export type Mutable<T> = { -readonly [K in keyof T]: T[K] }

interface Drawing {
  readonly request: GenerateRequest
  readonly seed: bigint
  readonly bias: ReadonlyMap<number, number> | null
}

/** Refused by any runner, so a forgotten assignment cannot go unnoticed. */
export const NO_SLOT = -1

export function createDraw({ request, seed, bias }: Drawing, stream: number): Mutable<SampleSpec> {
  const { seed: _seed, logitBias: _bias, bannedTokens: _banned, ...numbers } = request.sampling
  return { ...numbers, slot: NO_SLOT, seed, position: 0, stream, logprobs: request.logprobs, bias }
}

/** `count` draws from this one on; `kept` has those of the last time, so that they are the same objects again. */
export function drawsFrom(kept: Mutable<SampleSpec>[], draw: SampleSpec, count: number): SampleSpec[] {
  while (kept.length < count) kept.push({ ...draw })
  const draws = kept.slice(0, count)
  for (const [i, one] of draws.entries()) {
    one.position = draw.position + i
    one.slot = draw.slot
  }
  return draws
}

/** A token that is both biased and banned is banned; of two biases of one token the later holds. */
export function biasOf({ sampling }: GenerateRequest): ReadonlyMap<number, number> | null {
  const bias = new Map(sampling.logitBias)
  for (const token of sampling.bannedTokens) bias.set(token, -Infinity)
  return bias.size === 0 ? null : bias
}

/** ignoreEos wins over a token 0 in the list: dialects put it there by default. */
export function stopTokensOf({ stop, constraint }: GenerateRequest): ReadonlySet<number> {
  const tokens = new Set(stop.tokens)
  // Only the end of the text can end a grammar.
  if (stop.ignoreEos && constraint === undefined) tokens.delete(END_OF_TEXT)
  else tokens.add(END_OF_TEXT)
  return tokens
}

/** Whether a token of the mask may still be drawn. */
export function leavesSome(bias: ReadonlyMap<number, number> | null, mask: Uint32Array): boolean {
  const banned = [...(bias ?? [])].filter(([, value]) => value === -Infinity)
  if (banned.length === 0) return true
  const left = mask.slice()
  for (const [token] of banned) left[token >> 5] = left[token >> 5]! & ~(1 << (token & 31))
  return left.some((word) => word !== 0)
}
