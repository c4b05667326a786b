/** How the events of a stream are written. A dialect names one of these forms; the gateway writes every stream with it. */
import { jsonAround, WRITTEN } from './json-around.ts'

export interface StreamForm {
  /** The Content-Type. */
  readonly type: string
  frame(event: object): string
  /** Written after the last event; a stream that fails ends with its error instead. */
  readonly end: string
  /** Written while the client waits for the first event. */
  readonly beat: string
}

/** An event whose JSON is known without making the object: most tokens of a stream differ in their text alone. */
class WrittenEvent {
  readonly json: string

  constructor(json: string) {
    this.json = json
  }
}

/** Writes events that differ from `make`'s in one text. Its sample is made for the first: a call may have a thousand answers. */
export function writerOf(make: (text: string) => object): (text: string) => WrittenEvent {
  let around: readonly string[] | null = null
  return (text) => {
    around ??= jsonAround(make(WRITTEN))
    return new WrittenEvent(around[0] + JSON.stringify(text) + around[1])
  }
}

/** An event that has WRITTEN where `json` is to be; null: it has it nowhere. */
export function eventAround(event: object, json: string | null): object {
  return json === null ? event : new WrittenEvent(jsonAround(event).join(json))
}

function jsonOf(event: object): string {
  return event instanceof WrittenEvent ? event.json : JSON.stringify(event)
}

const SSE_TYPE = 'text/event-stream; charset=utf-8'

/** OpenAI's: data only, and [DONE] at the end. A comment is no event. */
export const SSE: StreamForm = {
  type: SSE_TYPE,
  frame: (event) => `data: ${jsonOf(event)}\n\n`,
  end: 'data: [DONE]\n\n',
  beat: ': waiting\n\n',
}

/** Data only, and nothing at the end: the last event says that it is the last. */
export const PLAIN_SSE: StreamForm = { ...SSE, end: '' }

/** Every event is named by its own field `type`. */
export const NAMED_SSE: StreamForm = {
  ...PLAIN_SSE,
  frame: (event) => {
    // Any object may be asked for a field; an error that has no type is named so.
    const { type = 'error' } = event as { readonly type?: unknown }
    return `event: ${String(type)}\ndata: ${JSON.stringify(event)}\n\n`
  },
}

/** One JSON object a line. White space before an object belongs to it. */
export const NDJSON: StreamForm = {
  type: 'application/x-ndjson',
  frame: (event) => `${jsonOf(event)}\n`,
  end: '',
  beat: ' ',
}
