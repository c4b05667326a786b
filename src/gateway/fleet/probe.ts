/** One generated token: proof that an engine does not only listen. */
import { randomUUID } from 'node:crypto'
import type { EngineClient } from '../../engine/client.ts'
import { type GenerateRequest, PLAIN_SAMPLING } from '../../engine/messages.ts'
import { SkeinError } from '../../errors.ts'

/** Throws what the engine fails with. */
export async function probe(client: EngineClient): Promise<void> {
  for await (const event of client.generate(probeRequest())) {
    if (event.type === 'error') throw SkeinError.fromShape(event.error)
  }
}

function probeRequest(): GenerateRequest {
  return {
    id: `probe-${randomUUID()}`,
    prompt: Int32Array.of(0),
    n: 1,
    maxTokens: 1,
    sampling: { ...PLAIN_SAMPLING, temperature: 0 },
    stop: { strings: [], tokens: [], ignoreEos: true },
    logprobs: null,
    promptLogprobs: null,
    cache: 'no-store',
  }
}
