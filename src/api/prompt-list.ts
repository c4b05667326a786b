/** OpenAI's field for one or several prompts, each a text or its tokens, and its conversion to tokens. */
import { type Static, Type } from '../files/schema-types.ts'
import { checkPrompt, encodePrompts } from './encode.ts'
import type { ServedModel } from './models.ts'
import { OneOf, TokenId } from './schema.ts'

export function promptList(most: number) {
  return OneOf(
    `a string, a list of token ids, or a list of at most ${most} of either`,
    Type.String(),
    Type.Array(TokenId),
    Type.Array(Type.String(), { minItems: 1, maxItems: most }),
    Type.Array(Type.Array(TokenId), { minItems: 1, maxItems: most }),
  )
}

type PromptList = Static<ReturnType<typeof promptList>>
export type Entry = string | readonly number[]

export function numPrompts(list: PromptList): number {
  return typeof list === 'string' || typeof list[0] === 'number' ? 1 : list.length
}

export function listOf(list: PromptList): readonly Entry[] {
  if (typeof list === 'string') return [list]
  // The schema allows only lists of one kind: the first entry tells which. An empty list is a prompt of no tokens.
  const isTokens = list.length === 0 || typeof list[0] === 'number'
  if (isTokens) return [list as number[]]
  return list as string[] | number[][]
}

/** Refuses, as entries of `field`, those that the model cannot read. */
export async function tokensOfAll(
  list: readonly Entry[],
  model: ServedModel,
  field: string,
  signal: AbortSignal,
): Promise<Int32Array[]> {
  const paramOf = (i: number) => (list.length === 1 ? field : `${field}[${i}]`)
  if (list.every((entry) => typeof entry === 'string')) return encodePrompts(model, list, paramOf, signal)
  const ids = list as readonly (readonly number[])[] // a list is of one kind: see the schema
  return ids.map((entry, i) => checkPrompt(new Int32Array(entry), model, paramOf(i)))
}
