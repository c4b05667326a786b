/** What a response says of its request: in the reply, and again when it is read back. */
import { MAX_NOTE_BYTES, type SamplingParams } from '../../engine/messages.ts'
import type { Told } from '../chat/told.ts'
import type { Call } from '../route.ts'
import type { ResponseBody } from './body.ts'

type Asked = Pick<Call<ResponseBody>, 'body' | 'now'>

export function echoOf({ body, now }: Asked, model: string, sampling: SamplingParams): object {
  const { text, tool_choice, tools, reasoning } = body
  return {
    created_at: now,
    model,
    instructions: body.instructions ?? null,
    max_output_tokens: body.max_output_tokens ?? null,
    metadata: body.metadata ?? {},
    parallel_tool_calls: body.parallel_tool_calls ?? true,
    previous_response_id: body.previous_response_id ?? null,
    reasoning: { effort: reasoning?.effort ?? null, summary: null },
    service_tier: 'default',
    temperature: sampling.temperature,
    text: { format: text?.format ?? { type: 'text' } },
    tool_choice: tool_choice ?? 'auto',
    tools: tools ?? [],
    top_p: sampling.topP,
    truncation: 'disabled',
    background: false,
  }
}

/** The same as a session keeps it, and what its line was told; of what is too long, with a warning, that alone. */
export function noteOf(call: Call<ResponseBody>, model: string, sampling: SamplingParams, told: Told): string {
  const note = JSON.stringify({ ...echoOf(call, model, sampling), told })
  if (Buffer.byteLength(note) <= MAX_NOTE_BYTES) return note
  call.warn(
    `what the request says beside its input is longer than ${MAX_NOTE_BYTES} bytes, and is not kept with the response`,
  )
  return JSON.stringify({ told })
}

/** Of one that is not in its note: only what holds of each. */
export function echoIn(note: string | undefined): object {
  // noteOf has written it.
  const { told: _, ...echo } = JSON.parse(note ?? '{}') as { readonly told?: Told }
  return {
    instructions: null,
    metadata: {},
    parallel_tool_calls: true,
    temperature: null,
    tool_choice: 'auto',
    tools: [],
    top_p: null,
    truncation: 'disabled',
    ...echo,
  }
}
