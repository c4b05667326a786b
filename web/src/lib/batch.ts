/** Many raw texts continued as the rows of one batch (docs/api.md, /v1/batch/completions). */
import { request } from './api.ts'
import type { Target } from './chat.ts'
import { readChunks } from './sse.ts'

export interface BatchFigures {
  readonly completion_tokens: number
  readonly elapsed_seconds: number
  readonly tokens_per_second: number
}

interface BatchOptions {
  readonly maxTokens: number
  readonly temperature: number
  readonly signal: AbortSignal
  readonly onText: (row: number, text: string) => void
}

interface BatchChunk {
  readonly choices: readonly {
    readonly index: number
    readonly delta: { readonly content?: string }
  }[]
  readonly metrics?: BatchFigures
}

/** Tokens per event: one event per token is more than a page can process. */
const CHUNK_SIZE = 4

/** The server's figures, from its last event. */
export async function streamBatch(
  { base, model }: Target,
  contents: readonly string[],
  { maxTokens, temperature, signal, onText }: BatchOptions,
): Promise<BatchFigures | null> {
  const body = {
    ...{ model, contents, stream: true, include_metrics: true, chunk_size: CHUNK_SIZE },
    ...{
      max_tokens: maxTokens,
      temperature,
      top_k: 0,
      top_p: 0.9,
      alpha_presence: 0,
      alpha_frequency: 0,
    },
  }
  const reply = await request(`${base}/v1/batch/completions`, { body, signal })
  let figures: BatchFigures | null = null
  for await (const chunk of readChunks(reply.body!)) {
    // The server's own shape.
    const { choices, metrics } = chunk as BatchChunk
    for (const { index, delta } of choices) if (delta.content) onText(index, delta.content)
    figures = metrics ?? figures
  }
  return figures
}
