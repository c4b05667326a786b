/**
 * Acceptance tests: the promises of the five documents that Skein implements, each a test with the number of its row,
 * sent over HTTP to `skein serve` in a process of its own. `npm run acceptance` prints a line for each.
 */
import { expect } from 'vitest'
import type { RunningServer } from '../helpers/cli.ts'
import { postJson } from '../helpers/post-json.ts'

export const PASSWORD = 'rwkv7_7.2b'

export type Json = { readonly [name: string]: unknown }

export interface Client {
  /** Sends a JSON body; returns the reply unchanged. */
  post(path: string, body: object, headers?: Record<string, string>): Promise<Response>
  /** The same, but it must succeed; returns the JSON. */
  ask<T = Json>(path: string, body: object, headers?: Record<string, string>): Promise<T>
  get(path: string, headers?: Record<string, string>): Promise<Response>
}

export function clientOf({ url }: Pick<RunningServer, 'url'>): Client {
  const post: Client['post'] = (path, body, headers = {}) => postJson(url + path, body, headers)
  return {
    post,
    async ask<T>(path: string, body: object, headers?: Record<string, string>) {
      const reply = await post(path, body, headers)
      expect(reply.status, await reply.clone().text()).toBe(200)
      // The caller decides what it reads.
      return (await reply.json()) as T
    },
    get: (path, headers = {}) => fetch(url + path, { headers }),
  }
}

/** The payloads of an event stream, parsed; `[DONE]` stays text. */
export function payloadsOf(text: string): unknown[] {
  return text
    .split('\n')
    .filter((line) => line.startsWith('data:'))
    .map((line) => line.slice(5).trim())
    .map((data) => (data === '[DONE]' ? data : JSON.parse(data)))
}

interface Chunk {
  readonly object: string
  readonly choices: readonly { readonly index: number; readonly delta: { content?: string } }[]
}

/** Format B of rwkv_lightning: the text of each row, in order of its index. */
export async function rowsStreamed(client: Client, path: string, body: object, count: number) {
  const reply = await client.post(path, { stream: true, password: PASSWORD, ...body })
  expect(reply.status).toBe(200)
  expect(reply.headers.get('content-type')).toContain('text/event-stream')
  const payloads = payloadsOf(await reply.text())
  expect(payloads.at(-1)).toBe('[DONE]')
  const texts = Array<string>(count).fill('')
  // The format is what is checked.
  for (const { object, choices } of payloads.slice(0, -1) as Chunk[]) {
    expect(object).toBe('chat.completion.chunk')
    for (const { index, delta } of choices) {
      expect(index).toBeLessThan(count)
      texts[index] += delta.content ?? ''
    }
  }
  return texts
}

interface Whole extends Json {
  readonly choices: readonly {
    readonly index: number
    readonly message: { readonly role: string; readonly content: string }
  }[]
}

/** Format N: one choice per input, sorted. */
export async function rowsWhole(
  client: Client,
  path: string,
  body: object,
  expected: { readonly id: string; readonly object?: string; readonly count: number },
) {
  const { id, object = 'chat.completion', count } = expected
  const reply = await client.ask<Whole>(path, { stream: false, password: PASSWORD, ...body })
  expect(reply).toMatchObject({ id, object })
  expect(reply.choices.map(({ index }) => index)).toEqual([...Array(count).keys()])
  for (const { message } of reply.choices) expect(message.role).toBe('assistant')
  return reply.choices.map(({ message }) => message.content)
}

/** Token 261 is a blank line: no row continues after one. */
export function expectOneParagraph(texts: readonly string[]): void {
  for (const text of texts) expect(text).not.toContain('\n\n')
}

export const STOPS = { stop_tokens: [0, 261, 24281] }

export const CREATIVE = {
  temperature: 0.8,
  top_k: 50,
  top_p: 0.6,
  alpha_presence: 1.0,
  alpha_frequency: 0.1,
  alpha_decay: 0.99,
}

/** Always the best token, in the document's spelling. */
export const STEADY = {
  temperature: 1.0,
  top_k: 1,
  top_p: 0.3,
  pad_zero: true,
  alpha_presence: 0.8,
  alpha_frequency: 0.8,
  alpha_decay: 0.996,
}
