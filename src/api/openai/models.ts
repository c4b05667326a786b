/** GET /v1/models and /v1/models/{id}: what is served here, in which state, and within which limits. */
import { SkeinError } from '../../errors.ts'
import type { RequestLimits } from '../limits.ts'
import type { ModelEntry, ModelRegistry } from '../models.ts'
import { get, json, type Route } from '../route.ts'

export const modelRoutes: readonly Route[] = [
  get('/v1/models', 'List the served models', ({ models, limits }) =>
    json({ object: 'list', data: allNames(models).map((entry) => describe(entry, limits)) }),
  ),
  get('/v1/models/:id', 'Describe one served model', ({ models, limits, params }) => {
    const entry = allNames(models).find((candidate) => candidate.id === params.id)
    if (entry === undefined) {
      throw new SkeinError(
        'not_found',
        'model: no model of that name; GET /v1/models lists the names',
        { param: 'model' },
      )
    }
    return json(describe(entry, limits))
  }),
]

/** Every name that `model` may be: the models, and each with each of its start states. */
function allNames(models: ModelRegistry): ModelEntry[] {
  return models.list().flatMap((entry) => [
    entry,
    ...(entry.client?.info.startStates ?? []).map((state) => ({
      ...entry,
      id: `${entry.id}@${state}`,
    })),
  ])
}

function describe({ id, created, state, client }: ModelEntry, limits: RequestLimits): object {
  const described = { id, object: 'model', created, owned_by: 'skein', state }
  if (client === null) return { ...described, limits: wireLimits(limits) }
  const { info } = client
  return {
    ...described,
    max_model_len: info.maxPromptTokens,
    architecture: info.model.architecture,
    num_parameters: info.model.numParameters,
    weight_type: info.model.weightType,
    vocab_size: info.model.vocabSize,
    num_slots: info.numSlots,
    limits: { max_prompt_tokens: info.maxPromptTokens, ...wireLimits(limits) },
  }
}

function wireLimits(limits: RequestLimits): object {
  return {
    max_tokens: limits.maxTokens,
    n: limits.n,
    prompts: limits.prompts,
    sequences: limits.sequences,
    messages: limits.messages,
    stops: limits.stops,
    stop_bytes: limits.stopBytes,
    top_logprobs: limits.topLogprobs,
    logit_bias: limits.logitBias,
  }
}
