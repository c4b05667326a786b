/** The files of one model: the checkpoint with its adapters, and its vocabulary. */
import { withAdapters } from '../../model/adapters.ts'
import { existsCheckpoint, isGguf, openCheckpoint } from '../../model/checkpoint.ts'
import type { Checkpoint, CheckpointToken } from '../../model/formats/format.ts'
import { findVocabulary } from '../../tokenizer/find-vocabulary.ts'
import { Tokenizer } from '../../tokenizer/tokenizer.ts'
import type { EngineChoice, RunnerChoice } from '../model-choice.ts'

/** The checkpoint with its adapters. */
export function openModel({ model, adapters = [] }: Pick<RunnerChoice, 'model' | 'adapters'>): Checkpoint {
  const checkpoint = openCheckpoint(model)
  try {
    return withAdapters(checkpoint, adapters)
  } catch (error) {
    checkpoint.close()
    throw error
  }
}

/** The file with a model's vocabulary; the model itself where that brings its own, as a GGUF does. */
export function vocabularyPath({ model, vocab }: Pick<EngineChoice, 'model' | 'vocab'>): string {
  if (vocab !== undefined) return findVocabulary({ model, explicit: vocab })
  return ownVocabulary(model)?.path ?? findVocabulary({ model })
}

/** Whether `vocabularyPath` finds one: in the model itself, beside it, or in the cache from an earlier time. */
export function hasVocabulary(model: string): boolean {
  try {
    vocabularyPath({ model })
    return true
  } catch {
    return false
  }
}

export function loadTokenizer(choice: Pick<EngineChoice, 'model' | 'vocab'>): Tokenizer {
  const path = vocabularyPath(choice)
  const own = isGguf(path) ? ownVocabulary(path) : undefined
  return own ? Tokenizer.fromTokens(own.tokens, path) : Tokenizer.fromFile(path)
}

interface OwnVocabulary {
  readonly path: string
  readonly tokens: readonly CheckpointToken[]
}

/** Undefined where the model is absent, too: who needs it will say so. */
function ownVocabulary(model: string): OwnVocabulary | undefined {
  if (!existsCheckpoint(model)) return undefined
  const checkpoint = openCheckpoint(model)
  try {
    const tokens = checkpoint.vocabulary?.()
    return tokens && { path: checkpoint.path, tokens }
  } finally {
    checkpoint.close()
  }
}

/** Throws, in the words of the reader, for a file that is missing or no checkpoint at all. */
export function checkModelFile(choice: Pick<RunnerChoice, 'model' | 'adapters'>): void {
  openModel(choice).close()
}
