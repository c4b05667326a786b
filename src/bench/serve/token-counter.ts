/**
 * Counts the tokens of a text with the server's POST /tokenize, which Skein and vLLM have. Null if the server has none;
 * an estimate must then be labelled as such.
 */
import { type HttpClient, readJson } from './http-client.ts'

export type CountTokens = (text: string) => Promise<number | null>

/** English averages a little above four bytes per token in usual vocabularies. */
const BYTES_PER_TOKEN = 4

export function estimateTokens(text: string): number {
  return Math.ceil(Buffer.byteLength(text) / BYTES_PER_TOKEN)
}

/** Checks once whether the server can count. Throws an ExchangeError if there is no server. */
export async function tokenCounter(client: HttpClient, model: string | undefined): Promise<CountTokens> {
  const canCount = (await countOnServer(client, model, 'one two three')) !== null
  if (!canCount) return async () => null
  // A server that dies during a load must not take the earlier figures with it.
  return (text) => countOnServer(client, model, text).catch(() => null)
}

async function countOnServer(client: HttpClient, model: string | undefined, prompt: string): Promise<number | null> {
  const reply = await client.send('/tokenize', { model, prompt })
  const body = await readJson(reply)
  if (reply.status !== 200 || typeof body !== 'object' || body === null) return null
  const { count } = body as { count?: unknown }
  return typeof count === 'number' ? count : null
}
