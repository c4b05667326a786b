/** Opens the files of one model: the checkpoint with its adapters, and its vocabulary. */
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

/** The file with a model's vocabulary; the model itself if it contains one, like a GGUF. */
export function vocabularyPath({ model, vocab }: Pick<EngineChoice, 'model' | 'vocab'>): string {
  if (vocab !== undefined) return findVocabulary({ model, explicit: vocab })
  return ownVocabulary(model)?.path ?? findVocabulary({ model })
}

/** Whether `vocabularyPath` finds one: in the model itself, beside it, or in the cache. */
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

/** Undefined also if the model is missing; its loader reports that. */
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

/** Throws the reader's error for a file that is missing or no checkpoint. */
export function checkModelFile(choice: Pick<RunnerChoice, 'model' | 'adapters'>): void {
  openModel(choice).close()
}
