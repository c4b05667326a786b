/**
 * How many tokens a text has, by the server's own word: POST /tokenize, which Skein and vLLM have. Null where the
 * server does not say; what is made of an estimate instead must be called one.
 */
import { type HttpClient, readJson } from './http-client.ts'

export type CountTokens = (text: string) => Promise<number | null>

/** English averages a little above four bytes a token in usual vocabularies. */
const BYTES_PER_TOKEN = 4

export function estimateTokens(text: string): number {
  return Math.ceil(Buffer.byteLength(text) / BYTES_PER_TOKEN)
}

/** Asks once whether the server counts. Raises an ExchangeError when there is no server. */
export async function tokenCounter(client: HttpClient, model: string | undefined): Promise<CountTokens> {
  const canCount = (await countOnServer(client, model, 'one two three')) !== null
  if (!canCount) return async () => null
  // A server that dies within a load must not take the figures of what it did before with it.
  return (text) => countOnServer(client, model, text).catch(() => null)
}

async function countOnServer(client: HttpClient, model: string | undefined, prompt: string): Promise<number | null> {
  const reply = await client.send('/tokenize', { model, prompt })
  const body = await readJson(reply)
  if (reply.status !== 200 || typeof body !== 'object' || body === null) return null
  const { count } = body as { count?: unknown }
  return typeof count === 'number' ? count : null
}
