/**
 * POST /infill, as llama.cpp's: what editors' plugins for code completion speak. Fields that bound the time of a
 * call or choose a slot promise nothing about the text and are accepted; those of samplers we do not have are refused.
 */
import { type Static, Type } from '../../files/schema-types.ts'
import type { RequestLimits } from '../limits.ts'
import { type SamplingDefaults, samplingFields } from '../openai/sampling.ts'
import { json, post, type Reply, type Route } from '../route.ts'
import { BoundedInteger, Maybe } from '../schema.ts'
import { type Fill, type Filled, fill, fillWhole, fimPrompt, toFill } from './settings.ts'

/** llama.cpp's. */
const DEFAULTS: SamplingDefaults = {
  temperature: 0.8,
  topK: 40,
  topP: 0.95,
  minP: 0.05,
  penaltyDecay: 1,
}

/** Read here, or without meaning for the text of this server. */
const HONOURED = ['n_predict', 'samplers', 'n_keep', 'repeat_last_n']

export function infillRoute(limits: RequestLimits): Route {
  const summary = 'Fill in between input_prefix and input_suffix'
  return post('/infill', summary, infillBody(limits), async (call): Promise<Reply> => {
    const { body } = call
    const job = await toFill(call, promptOf(body), {
      defaults: DEFAULTS,
      maxTokens: maxTokensOf(body, limits),
      param: 'input_prefix',
      honoured: HONOURED,
    })
    if (body.stream === true) return { kind: 'events', events: events(job) }
    const filled = await fillWhole(job)
    return json({ index: 0, content: filled.text, ...ending(filled, job) })
  })
}

function infillBody(limits: RequestLimits) {
  return Type.Object({
    ...samplingFields(limits),
    n: Maybe(BoundedInteger(1, 1)),
    input_prefix: Maybe(Type.String()),
    input_suffix: Maybe(Type.String()),
    prompt: Maybe(Type.String()),
    input_extra: Maybe(
      Type.Array(Type.Object({ filename: Maybe(Type.String()), text: Type.String() }), {
        maxItems: limits.prompts,
      }),
    ),
    n_predict: Maybe(BoundedInteger(-1, limits.maxTokens)),
  })
}

type InfillBody = Static<ReturnType<typeof infillBody>>

/** Other files come first, as text the model has read; `prompt` is the beginning of the middle. */
function promptOf({ input_extra, input_prefix, input_suffix, prompt }: InfillBody): string {
  const extra = (input_extra ?? []).map(({ text }) => `${text}\n\n`).join('')
  return extra + fimPrompt((input_prefix ?? '') + (prompt ?? ''), input_suffix ?? '')
}

/** −1, the default, is "until it ends"; there is a limit all the same. */
function maxTokensOf({ n_predict, max_tokens }: InfillBody, limits: RequestLimits): number {
  const asked = n_predict ?? max_tokens ?? -1
  return asked < 0 ? limits.defaultChatTokens : asked
}

async function* events(job: Fill): AsyncGenerator<object> {
  const run = fill(job)
  let step = await run.next()
  for (; !step.done; step = await run.next()) yield { index: 0, content: step.value, stop: false }
  yield { index: 0, content: '', ...ending(step.value, job) }
}

function ending(filled: Filled, { model }: Fill): object {
  const { promptTokens, completionTokens, cachedTokens, promptMs, answerMs, matched } = filled
  return {
    stop: true,
    model: model.id,
    tokens_predicted: completionTokens,
    tokens_evaluated: promptTokens,
    tokens_cached: cachedTokens,
    truncated: false,
    stop_type: stopType(filled),
    stopping_word: typeof matched === 'string' ? matched : '',
    timings: {
      prompt_n: promptTokens - cachedTokens,
      prompt_ms: promptMs,
      predicted_n: completionTokens,
      predicted_ms: answerMs,
      predicted_per_second: answerMs > 0 ? (1000 * completionTokens) / answerMs : 0,
    },
  }
}

function stopType({ reason, matched }: Filled): string {
  if (reason === 'length') return 'limit'
  return typeof matched === 'string' ? 'word' : 'eos'
}
