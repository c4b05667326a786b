/** The JSON routes of the management API: Albatross's, and further ones for the dashboard. */
import { type Call, type Dialect, del, get, json, operators, post, type Route } from '../../api/route.ts'
import { BoundedInteger, Matching, Maybe, ModelName, OneOf } from '../../api/schema.ts'
import { invalid, SkeinError } from '../../errors.ts'
import { type Static, Type } from '../../files/schema-types.ts'
import type { ManagementError, WorkerSpec } from '../contract.ts'
import type { RecentRequests } from '../figures/recent-requests.ts'
import { DEFAULT_SPEC } from '../fleet/launch.ts'
import type { Management } from './management.ts'

const DEFAULT_TAIL = 200
const MAX_TAIL = 5000

export function managementDialect(management: Management, requests: RecentRequests): Dialect {
  return {
    name: 'management',
    about: 'Models and workers, for operators',
    routes: [
      ...[...systemRoutes(management), requestsRoute(requests), ...workerRoutes(management)].map(operators),
      ...modelRoutes(management).map((route): Route => ({ ...route, role: 'admin' })),
    ],
    renderError: renderManagementError,
    statusOf,
  }
}

export function renderManagementError({ code, message, param }: SkeinError): ManagementError {
  return { detail: message, code, field: param ?? null }
}

/** FastAPI's 422 for a wrong field; 409 for a conflict. */
export function statusOf({ code, param }: SkeinError): number | undefined {
  if (code === 'invalid_request' || code === 'unsupported_parameter') return 422
  return code === 'not_found' && param !== undefined ? 422 : undefined
}

function systemRoutes(management: Management): Route[] {
  return [
    get('/api/system', 'The machine: processor, memory, GPUs', async () => json(await management.system())),
    get('/api/models', 'Checkpoints that a worker can be started with', () => json({ models: management.models() })),
    get('/api/models/pulls', 'Downloads and quantisations, latest first, with their progress', () =>
      json({ pulls: management.pulls() }),
    ),
  ]
}

function requestsRoute(requests: RecentRequests): Route {
  return get('/api/requests', 'The last requests: who, what, how long; never their words', () =>
    json({ requests: requests.list() }),
  )
}

const pullBody = Type.Object({ name: Type.String({ minLength: 1, maxLength: 600 }) }, { additionalProperties: false })

const quantiseBody = Type.Object(
  {
    model_path: Type.String({ minLength: 1, maxLength: 600 }),
    quant: Type.Union([Type.Literal('int8'), Type.Literal('q4'), Type.Literal('nf4')]),
  },
  { additionalProperties: false },
)

/** Routes that change files or query the hub. Disk and network are shared by all tenants. */
function modelRoutes(management: Management): Route[] {
  return [
    get('/api/models/hub', 'Repositories of the hub (query: search)', async ({ query }) =>
      json({ repositories: await management.searchHub(wordIn(query, 'search')) }),
    ),
    get('/api/models/hub/files', 'The models of a repository of the hub (query: repository)', async ({ query }) =>
      json({ models: await management.hubModels(wordIn(query, 'repository')) }),
    ),
    post('/api/models/pulls', 'Fetch a model from the hub; answers before it is there', pullBody, async ({ body }) =>
      json(management.pull(body.name)),
    ),
    post(
      '/api/models/quantise',
      'Round a checkpoint once, into a smaller file; answers before it is there',
      quantiseBody,
      async ({ body }) => json(management.quantise(body)),
    ),
    del('/api/models/:name', 'Delete a pulled or quantised model that no worker has', ({ params }) =>
      json({ status: 'ok', freed_bytes: management.removeModel(params.name!) }),
    ),
  ]
}

function wordIn(query: Call['query'], param: string): string {
  const text = query[param]?.trim() ?? ''
  if (text !== '' && text.length <= 200) return text
  throw invalid(param, 'expected 1 to 200 characters')
}

function workerRoutes(management: Management): Route[] {
  const { fleet } = management
  return [
    get('/api/workers', 'All workers, ended ones too, as a bare array', () => json(management.records())),
    post('/api/workers/start', 'Start a worker; answers before it is ready', specBody, async (call) =>
      json(await start(management, specOf(call.body))),
    ),
    get('/api/workers/:id', 'One worker', ({ params }) => json(management.record(fleet.find(params.id!)))),
    action('/api/workers/:id/stop', 'Let a worker finish its requests and end it', (id) => {
      management.stop(id)
      return { status: 'ok' }
    }),
    action('/api/workers/:id/restart', 'End a worker if it runs, and start it again', (id) => management.restart(id)),
    del('/api/workers/:id', 'Forget an ended worker', ({ params }) => {
      fleet.forget(params.id!)
      return json({ status: 'ok' })
    }),
    get('/api/workers/:id/logs', 'The last lines that a worker has printed', ({ params, query }) => {
      const { id, log } = fleet.find(params.id!)
      return json({ worker_id: id, lines: log.tail(tailOf(query.tail)) })
    }),
  ]
}

/** A POST whose body is ignored and may be missing. */
function action(path: string, summary: string, act: (id: string) => object | Promise<object>): Route {
  return { method: 'POST', path, summary, body: null, handle: async ({ params }) => json(await act(params.id!)) }
}

/** Reports an error about a file for the field that named it, and an error that names no file for the model. */
async function start(management: Management, spec: Parameters<Management['start']>[0]) {
  try {
    return await management.start(spec)
  } catch (thrown) {
    const { code, message, param } = SkeinError.from(thrown)
    const isFile = code === 'unsupported_weights' || code === 'corrupt_weights'
    if (!isFile) throw thrown
    throw invalid(param ?? 'model_path', message)
  }
}

export function tailOf(given: string | undefined): number {
  if (given === undefined) return DEFAULT_TAIL
  const count = Number(given)
  if (/^\d+$/.test(given) && count <= MAX_TAIL) return count
  throw invalid('tail', `expected 0 to ${MAX_TAIL}`)
}

/** A name that the engine accepts. */
const StateName = Matching(
  '^(?! )[^@\\p{C}]{1,64}(?<! )$',
  '1 to 64 characters, none of them "@", and no space at either end',
)
const Path = Type.String({ minLength: 1, maxLength: 1024 })
const Word = Type.String({ minLength: 1, maxLength: 64 })
const GpuIndex = BoundedInteger(0, 1023)

const specBody = Type.Object(
  {
    model_path: Path,
    tokenizer_path: Maybe(Path),
    gpu_id: Maybe(GpuIndex),
    host: Maybe(Matching('^[A-Za-z0-9.:_-]{1,253}$', 'an address or a host name')),
    port: Maybe(BoundedInteger(1, 65_535)),
    max_batch_size: Maybe(BoundedInteger(1, 4096)),
    max_prefill_batch: Maybe(BoundedInteger(1, 4096)),
    max_queue_size: Maybe(BoundedInteger(1, 1_000_000)),
    prefill_chunk_size: Maybe(BoundedInteger(1, 65_536)),
    use_cuda_graph: Maybe(Type.Boolean()),
    model_name: Maybe(ModelName),
    aliases: Maybe(Type.Array(ModelName, { maxItems: 32 })),
    device: Maybe(Word),
    pp_devices: Maybe(Type.Array(GpuIndex, { minItems: 1, maxItems: 64 })),
    quant: Maybe(Word),
    wkv: Maybe(Word),
    tool_template: Maybe(Word),
    speculate: Maybe(Word),
    draft_path: Maybe(Path),
    threads: Maybe(BoundedInteger(1, 1024)),
    states: Maybe(
      Type.Array(
        OneOf(
          '{"name", "path"} of a start state',
          Type.Object({ name: StateName, path: Path }, { additionalProperties: false }),
        ),
        { maxItems: 256 },
      ),
    ),
  },
  { additionalProperties: false },
)

/** The body of POST /api/workers/start: Albatross's fields with its ranges, then Skein's. Null means the default. */
function specOf(body: Static<typeof specBody>): WorkerSpec {
  const given = Object.entries(body).filter(([, value]) => value !== null)
  // The schema has exactly the fields of a spec, in which null is the default.
  return { ...DEFAULT_SPEC, ...(Object.fromEntries(given) as Partial<WorkerSpec>) }
}
