/** Streams of a running server as clients see them: how many, how far, and how they ended. */
import { readEvents } from './event-reader.ts'
import { postJson } from './post-json.ts'

export interface StreamEnd {
  /** Received text events. */
  readonly numEvents: number
  readonly model: string | null
  readonly finishReason: string | null
  /** The error of the last event, or of the reply. */
  readonly error: string | null
  readonly status: number
  readonly endedAt: number
  /** Silences between its events. */
  readonly gapsMs: readonly number[]
}

export interface OpenStream {
  readonly end: Promise<StreamEnd>
  /** Text events so far. */
  numEvents: number
}

interface Chunk {
  readonly model?: string
  readonly choices?: readonly { readonly text?: string; readonly finish_reason: string | null }[]
  readonly error?: { readonly message: string }
}

/** Greedy text without an early end: token 0 is never drawn. */
export const ENDLESS = { temperature: 0, ignore_eos: true, logit_bias: { 0: -100 } }

export function openStream(url: string, fields: object): OpenStream {
  const stream: { end: Promise<StreamEnd>; numEvents: number } = {
    numEvents: 0,
    // Set below, before it is read.
    end: Promise.resolve(null as unknown as StreamEnd),
  }
  stream.end = follow(url, fields, () => {
    stream.numEvents++
  })
  return stream
}

async function follow(url: string, fields: object, onEvent: () => void): Promise<StreamEnd> {
  const reply = await postJson(`${url}/v1/completions`, {
    prompt: 'Once upon a time',
    stream: true,
    ...ENDLESS,
    ...fields,
  })
  const { status } = reply
  if (status !== 200) {
    const { error } = (await reply.json()) as { error: { message: string } }
    return { ...NOTHING, status, error: error.message, endedAt: performance.now() }
  }
  let end: StreamEnd = { ...NOTHING, status }
  const gapsMs: number[] = []
  let [numEvents, last] = [0, performance.now()]
  for await (const { data } of readEvents(reply)) {
    if (data === '[DONE]') continue
    gapsMs.push(performance.now() - last)
    last = performance.now()
    // The server's own shapes.
    const { model = null, choices = [], error } = data as Chunk
    if (choices[0]?.text) {
      numEvents++
      onEvent()
    }
    const finishReason = choices[0]?.finish_reason ?? end.finishReason
    end = { ...end, model: model ?? end.model, finishReason, error: error?.message ?? null }
  }
  return { ...end, numEvents, gapsMs, endedAt: performance.now() }
}

const NOTHING: StreamEnd = {
  numEvents: 0,
  model: null,
  finishReason: null,
  error: null,
  status: 0,
  endedAt: 0,
  gapsMs: [],
}
