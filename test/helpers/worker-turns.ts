/** Turns of sessions for workers of the demo model. */
import type { RemoteEngineClient } from '../../src/engine/client/remote-client.ts'
import type { EngineEvent, GenerateRequest, SessionUse } from '../../src/engine/messages.ts'
import { requestOf, SAMPLING } from '../engine/kit.ts'

/** A turn of session `id` that ends by itself. */
export function turnOf(i: number, id: string, use: Partial<SessionUse> = {}): GenerateRequest {
  const prompt = Int32Array.from({ length: 20 + i }, (_, at) => 1 + ((at * 37 + i * 101) % 250))
  const sampling = { ...SAMPLING, seed: BigInt(i), topP: 0.9 }
  const session = { id, ifMissing: 'create', ifBusy: 'wait', onCancel: 'drop', ...use } as const
  const stop = { strings: ['e '], tokens: [], ignoreEos: true }
  return requestOf({ id: `r${i}`, prompt, maxTokens: 30, sampling, session, stop, logprobs: 1 })
}

/** What was drawn, and which turn it became. */
export async function answerTo({ client }: { readonly client: RemoteEngineClient }, request: GenerateRequest) {
  const events: EngineEvent[] = []
  for await (const event of client.generate(request)) events.push(event)
  const logprobs = events.flatMap((event) => (event.type === 'text' ? (event.logprobs ?? []) : []))
  const finish = events.at(-1)
  return { logprobs, turn: finish?.type === 'finish' ? finish.session?.turn : null }
}
