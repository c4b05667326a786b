/** POST /v1/fim/completions, as Mistral's: `prompt` and `suffix` in, the shape of a chat completion out. */
import { Type } from '../../files/schema-types.ts'
import type { RequestLimits } from '../limits.ts'
import { type SamplingDefaults, samplingFields } from '../openai/sampling.ts'
import { usageOf } from '../openai/usage.ts'
import { json, post, type Reply, type Route } from '../route.ts'
import { BoundedInteger, Maybe } from '../schema.ts'
import { type Fill, type Filled, fill, fillWhole, fimPrompt, toFill } from './settings.ts'

/** Code wants few surprises. */
const DEFAULTS: SamplingDefaults = {
  temperature: 0.2,
}
const DEFAULT_TOKENS = 256

export function mistralFimRoute(limits: RequestLimits): Route {
  const body = Type.Object({
    ...samplingFields(limits),
    n: Maybe(BoundedInteger(1, 1)),
    max_tokens: Maybe(BoundedInteger(1, limits.maxTokens)),
    prompt: Type.String(),
    suffix: Maybe(Type.String()),
    random_seed: Maybe(BoundedInteger(0, 2 ** 53 - 1)),
  })
  return post('/v1/fim/completions', 'Fill in between prompt and suffix', body, async (call) => {
    const { prompt, suffix, random_seed, max_tokens, stream } = call.body
    const seeded = { ...call.body, seed: call.body.seed ?? random_seed ?? null }
    const job = await toFill({ ...call, body: seeded }, fimPrompt(prompt, suffix ?? ''), {
      defaults: DEFAULTS,
      maxTokens: max_tokens ?? DEFAULT_TOKENS,
      param: 'prompt',
      honoured: ['suffix'],
    })
    return await replyOf(job, stream === true, call.now)
  })
}

async function replyOf(job: Fill, isStream: boolean, created: number): Promise<Reply> {
  const head = { id: job.request.id, created, model: job.model.id }
  if (isStream) return { kind: 'events', events: events(job, head) }
  const filled = await fillWhole(job)
  const message = { role: 'assistant', content: filled.text }
  return json({
    ...head,
    object: 'chat.completion',
    choices: [{ index: 0, message, finish_reason: filled.reason }],
    usage: usage(filled),
  })
}

async function* events(job: Fill, head: object): AsyncGenerator<object> {
  const chunk = (delta: object, reason: string | null) => ({
    ...head,
    object: 'chat.completion.chunk',
    choices: [{ index: 0, delta, finish_reason: reason }],
  })
  const run = fill(job)
  let step = await run.next()
  // Not before: until the first event what fails is still a proper HTTP error.
  yield chunk({ role: 'assistant', content: '' }, null)
  for (; !step.done; step = await run.next()) yield chunk({ content: step.value }, null)
  yield { ...chunk({ content: '' }, step.value.reason), usage: usage(step.value) }
}

function usage({ promptTokens, completionTokens, cachedTokens }: Filled): object {
  return usageOf(promptTokens, completionTokens, null, cachedTokens)
}
