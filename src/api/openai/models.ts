/** GET /v1/models and /v1/models/{id}: what is served here, in which state, and within which limits. */
import type { EmbeddingTask, Pooling } from '../../engine/messages.ts'
import { SkeinError } from '../../errors.ts'
import type { RequestLimits } from '../limits.ts'
import { type ModelEntry, type ModelRegistry, stateNames } from '../models.ts'
import { get, json, type Route } from '../route.ts'

export const modelRoutes: readonly Route[] = [
  get('/v1/models', 'List the served models', ({ models, limits }) =>
    json(listed(allNames(models).map((entry) => describe(entry, limits)))),
  ),
  get('/v1/models/:id', 'Describe one served model', ({ models, limits, params }) => {
    const listed = allNames(models).find(({ id }) => id === params.id)
    return json(describe(listed ?? found(models, params.id!), limits))
  }),
]

interface Named extends Pick<ModelEntry, 'id' | 'created' | 'state' | 'client'> {
  /** The model whose own name it is not. */
  readonly root?: string
}

/** Whatever a request may call a model, as it would be found for it. */
function found(models: ModelRegistry, name: string): Named {
  // In a request no name means the only model; here it names none.
  if (name !== '') return { ...models.get(name), state: 'ready' }
  throw new SkeinError('not_found', 'model: no model of that name; GET /v1/models lists the names', { param: 'model' })
}

/** Names that `model` may be: the models, what else they are called, and each with each of its states and mixtures. */
function allNames(models: ModelRegistry): Named[] {
  return models.list().flatMap((entry) => {
    const { id, aliases = [] } = entry
    const names = [...aliases, ...stateNames(entry).map((state) => `${id}@${state}`)]
    return [entry, ...names.map((name) => ({ ...entry, id: name, root: id }))]
  })
}

/** OpenAI's list, and what Anthropic's clients look for in theirs. */
function listed(data: readonly { readonly id: string }[]): object {
  const [first, last] = [data[0]?.id ?? null, data.at(-1)?.id ?? null]
  return { object: 'list', data, has_more: false, first_id: first, last_id: last }
}

function describe({ id, root, created, state, client }: Named, limits: RequestLimits) {
  const own = root === undefined ? {} : { root }
  const anthropic = { type: 'model', display_name: id, created_at: new Date(1000 * created).toISOString() }
  const described = { id, object: 'model', created, owned_by: 'skein', ...own, state, ...anthropic }
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
    embeddings: info.embeddings === undefined ? null : embeddingsOf(info.embeddings, info.embeddingTasks),
    ...(info.ranks === true ? { reranker: true } : {}),
    limits: { max_prompt_tokens: info.maxPromptTokens, ...wireLimits(limits) },
  }
}

function embeddingsOf(pooling: Pooling, tasks: readonly EmbeddingTask[] | undefined): object {
  const of = { of: 'final hidden state', pooling, trained: tasks !== undefined }
  return tasks === undefined ? of : { ...of, tasks }
}

function wireLimits(limits: RequestLimits): object {
  return {
    max_tokens: limits.maxTokens,
    n: limits.n,
    prompts: limits.prompts,
    embedding_inputs: limits.embeddingInputs,
    sequences: limits.sequences,
    messages: limits.messages,
    stops: limits.stops,
    stop_bytes: limits.stopBytes,
    top_logprobs: limits.topLogprobs,
    prompt_logprobs: limits.promptLogprobs,
    answer_logprobs: limits.answerLogprobs,
    logit_bias: limits.logitBias,
    file_bytes: limits.fileBytes,
    batch_requests: limits.batchRequests,
  }
}
