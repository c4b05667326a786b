/**
 * The served models in Ollama's form: /api/tags, /api/ps, /api/show and /api/version. Its clients write names with a tag,
 * `:latest` where there is no other.
 */
import { createHash } from 'node:crypto'
import type { EngineInfo } from '../../engine/messages.ts'
import { invalid, SkeinError } from '../../errors.ts'
import { Type } from '../../files/schema-types.ts'
import { type ModelRegistry, type ServedModel, stateNames } from '../models.ts'
import { get, json, post, type Route } from '../route.ts'
import { Maybe } from '../schema.ts'

/** The Ollama whose API this is: clients ask before they send tools, schemas and `think`. */
const API_VERSION = '0.12.6'

/** Ollama's way to say that a model stays loaded. */
const NEVER = '9999-12-31T23:59:59Z'

/** Of descriptions of devices, and of a model's layers on several. */
const ON_GPU = /(^| on )(cuda|webgpu)/

/** The form of a conversation, in the language of Ollama's templates. Continue looks for `.Suffix` in it. */
const TEMPLATE =
  '{{ if .Suffix }}✿prefix✿✿suffix✿{{ .Suffix }}✿middle✿{{ .Prompt }}{{ else }}{{ if .System }}System: {{ .System }}\n\n{{ end }}{{ if .Prompt }}User: {{ .Prompt }}\n\n{{ end }}Assistant: {{ .Response }}{{ end }}'

export const modelRoutes: readonly Route[] = [
  get('/api/version', "The version of Ollama's API that is spoken here", () => json({ version: API_VERSION })),
  get('/api/tags', 'The models that can be asked, as Ollama lists them', ({ models }) =>
    json({ models: namesOf(models).map((named) => listed(named)) }),
  ),
  get('/api/ps', 'The models that are loaded, as Ollama lists them', ({ models }) =>
    json({
      models: namesOf(models).map((named) => ({
        ...listed(named),
        expires_at: NEVER,
        size_vram: ON_GPU.test(named.info.model.device) ? named.info.model.weightBytes : 0,
        context_length: named.info.maxPromptTokens,
      })),
    }),
  ),
  post('/api/show', 'One model, as Ollama describes it', showBody(), ({ models, body }) =>
    Promise.resolve(json(shown(models, nameOf(body)))),
  ),
]

function showBody() {
  return Type.Object({ model: Maybe(Type.String()), name: Maybe(Type.String()), verbose: Maybe(Type.Boolean()) })
}

/** `name` is what `model` was called once. */
export function nameOf({ model, name }: { readonly model?: string | null; readonly name?: string | null }): string {
  const asked = model ?? name
  if (asked) return asked
  throw invalid('model', 'missing; it is required')
}

interface Named {
  readonly id: string
  readonly created: number
  readonly info: EngineInfo
}

/** Names that a request may use, of models that answer. */
function namesOf(models: ModelRegistry): Named[] {
  return models.list().flatMap((entry) => {
    const { id, created, client, aliases = [] } = entry
    if (client === null) return []
    const { info } = client
    const states = stateNames(entry).map((state) => `${id}@${state}`)
    return [id, ...aliases, ...states].map((name) => ({ id: name, created, info }))
  })
}

function listed({ id, created, info }: Named): object {
  const { fingerprint, weightBytes } = info.model
  return {
    name: tagged(id),
    model: tagged(id),
    modified_at: new Date(1000 * created).toISOString(),
    size: weightBytes,
    // The weights' own: there is no manifest.
    digest: createHash('sha256').update(fingerprint).digest('hex'),
    details: detailsOf(info),
  }
}

function detailsOf({ model }: EngineInfo): object {
  return {
    parent_model: '',
    format: 'rwkv',
    family: model.architecture,
    families: [model.architecture],
    parameter_size: sizeOf(model.numParameters),
    quantization_level: model.weightType.toUpperCase(),
  }
}

function sizeOf(parameters: number): string {
  return parameters < 1e9 ? `${(parameters / 1e6).toFixed(1)}M` : `${(parameters / 1e9).toFixed(1)}B`
}

function shown(models: ModelRegistry, name: string): object {
  const { client, created } = modelOf(models, name)
  const { info } = client
  const { architecture, numParameters, vocabSize, stateShape } = info.model
  const about = (key: string) => `${architecture}.${key}`
  return {
    modelfile: '',
    parameters: '',
    license: '',
    template: TEMPLATE,
    modified_at: new Date(1000 * created).toISOString(),
    details: detailsOf(info),
    model_info: {
      'general.architecture': architecture,
      'general.parameter_count': numParameters,
      [about('block_count')]: stateShape.layers,
      // A state has no length; this is what one prompt may have.
      [about('context_length')]: info.maxPromptTokens,
      [about('embedding_length')]: stateShape.channels,
      [about('vocab_size')]: vocabSize,
    },
    capabilities: [
      ...['completion', 'insert', 'tools', 'thinking'],
      ...(info.embeddings === undefined ? [] : ['embedding']),
    ],
  }
}

const TAG = ':latest'

function tagged(id: string): string {
  return id.includes(':') ? id : `${id}${TAG}`
}

export function untagged(name: string): string {
  return name.endsWith(TAG) ? name.slice(0, -TAG.length) : name
}

export function modelOf(models: ModelRegistry, name: string): ServedModel {
  try {
    return models.get(name)
  } catch (thrown) {
    const isUnknown = thrown instanceof SkeinError && thrown.code === 'not_found'
    if (!isUnknown || !name.endsWith(TAG)) throw thrown
    return models.get(untagged(name))
  }
}
