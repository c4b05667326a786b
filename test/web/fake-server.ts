/**
 * A server with the parts of the management API that the dashboard uses, and with fake workers: for situations that are
 * rare with a real one. It serves the dashboard's files like the gateway.
 */
import fastify, { type FastifyInstance, type FastifyReply } from 'fastify'
import type {
  GpuInfo,
  ManagementEvent,
  RequestRecord,
  Sample,
  SystemInfo,
  WorkerRecord,
  WorkerSample,
} from '../../src/gateway/contract.ts'
import { DEFAULT_SPEC } from '../../src/gateway/fleet/launch.ts'
import { mountWeb, ownWebFiles } from '../../src/gateway/pages/dashboard.ts'

export interface FakeOptions {
  readonly workers?: readonly WorkerRecord[]
  /** The key that it requires. */
  readonly key?: string
  /** Replies to calls of the management API: 403 for a user key, 404 at the address of a single worker. */
  readonly refuse?: 403 | 404
  /** Except for these. */
  readonly passes?: RegExp
  readonly logLines?: readonly string[]
  /** Starts with a history, and sends a new sample each second. */
  readonly load?: (at: number) => Readonly<Record<string, WorkerSample>>
}

/** Has some sessions, and one answer to everything, which may end with an error. */
export interface FakeModel {
  readonly sessions: readonly string[]
  readonly answer: string
  readonly error?: string
}

export class FakeServer {
  readonly app: FastifyInstance = fastify({ forceCloseConnections: true })
  readonly #workers: WorkerRecord[]
  readonly #options: FakeOptions
  readonly #models: { id: string; state: string }[] = []
  readonly #streams = new Set<FastifyReply>()
  readonly #timer: NodeJS.Timeout

  constructor(options: FakeOptions = {}) {
    this.#options = options
    this.#workers = [...(options.workers ?? [])]
    mountWeb(this.app, ownWebFiles())
    this.app.addHook('onRequest', async (request, reply) => {
      const { url, headers } = request
      const isRefused = url.startsWith('/api/') && options.passes?.test(url) !== true
      if (options.refuse !== undefined && isRefused) {
        return reply.code(options.refuse).send({ detail: 'no', code: 'forbidden', field: null })
      }
      const isOpen = url === '/' || url.startsWith('/assets/')
      if (isOpen || options.key === undefined) return undefined
      if (headers.authorization === `Bearer ${options.key}`) return undefined
      return reply.code(401).send({ error: { message: 'a key is needed', code: 'invalid_api_key' } })
    })
    this.#mount()
    this.#timer = setInterval(() => {
      this.send({ type: 'sample', sample: this.#sample(Date.now() / 1000) })
    }, 1000)
  }

  /** Sends to everyone who follows. */
  send(event: ManagementEvent): void {
    if (event.type === 'worker') this.#keep(event.worker)
    for (const reply of this.#streams) write(reply, event)
  }

  /** Ends every stream, like a server that restarts. */
  drop(): void {
    for (const reply of this.#streams) reply.raw.destroy()
    this.#streams.clear()
  }

  async close(): Promise<void> {
    clearInterval(this.#timer)
    this.drop()
    await this.app.close()
  }

  /** Before it listens. */
  serveModel(id: string, { sessions, answer, error }: FakeModel): void {
    this.#models.push({ id, state: 'ready' })
    this.app.get('/v1/sessions', () => ({ data: sessions.map(fakeSession) }))
    this.app.get<{ Params: { id: string } }>('/v1/sessions/:id', ({ params }) => fakeSession(params.id))
    this.app.get<{ Params: { id: string } }>('/v1/sessions/:id/transcript', ({ params }) =>
      fakeTranscript(params.id, answer),
    )
    this.app.get('/openapi.json', () => ({
      tags: [{ name: 'openai', description: answer }],
      paths: { [answer]: { get: { summary: answer, tags: ['openai'], responses: {} } } },
    }))
    this.app.post('/v1/chat/completions', (_request, reply) => {
      open(reply)
      const finish_reason = error === undefined ? 'stop' : null
      const choices = [{ index: 0, delta: { content: answer }, finish_reason }]
      const last = error === undefined ? '[DONE]' : JSON.stringify({ error: { message: error } })
      const chunk = JSON.stringify({ choices, session: { turn: 1 } })
      reply.raw.end(`data: ${chunk}\n\ndata: ${last}\n\n`)
    })
  }

  #mount(): void {
    const { app } = this
    const options = this.#options
    app.get('/v1/models', () => ({ data: this.#models }))
    app.get('/v1/me', () => ({ object: 'key', name: 'boss', role: 'admin' }))
    app.get('/api/models', () => ({
      models: [{ path: 'demo.pth', bytes: 11_504_093, modified_at: 1, source: 'folder' }],
    }))
    app.get('/api/models/pulls', () => ({ pulls: [] }))
    app.get('/api/requests', () => ({ requests: FAKE_REQUESTS }))
    app.get('/api/keys', () => [FAKE_KEY])
    app.get('/api/events', (_request, reply) => {
      open(reply)
      this.#streams.add(reply)
      reply.raw.on('close', () => this.#streams.delete(reply))
      const [now, workers] = [Date.now() / 1000, this.#workers]
      const times = Array.from({ length: 300 }, (_, i) => now - 300 + i)
      const history = this.#options.load === undefined ? [] : times.map((at) => this.#sample(at))
      write(reply, { type: 'hello', system: SYSTEM, workers, history })
    })
    app.get<{ Params: { id: string } }>('/api/workers/:id/logs/stream', (request, reply) => {
      open(reply)
      for (const line of options.logLines ?? LOG) write(reply, { type: 'log', worker_id: request.params.id, line })
    })
    app.setNotFoundHandler((_request, reply) =>
      reply.code(404).send({ detail: 'not here', code: 'not_found', field: null }),
    )
  }

  #keep(worker: WorkerRecord): void {
    const at = this.#workers.findIndex(({ worker_id }) => worker_id === worker.worker_id)
    this.#workers.splice(at < 0 ? this.#workers.length : at, at < 0 ? 0 : 1, worker)
  }

  #sample(at: number): Sample {
    return sampleAt(at, this.#options.load?.(at) ?? {})
  }
}

const FAKE_REQUESTS: readonly RequestRecord[] = [200, 404, null].map((status, i) => ({
  ...{ id: 3 - i, at: 1_700_000_000 - i, ms: 240, method: 'POST', route: '/v1/chat/completions' },
  ...{ status, cut_off: status === null, error: status === 404 ? 'not_found' : null },
  ...{ key: 'boss', model: 'demo', prompt_tokens: 12, answer_tokens: 64, first_token_ms: 40 },
}))

const FAKE_KEY = {
  ...{ name: 'boss', role: 'admin', tenant: 't', created_at: 1, expires_at: null, grace_until: [] },
  limits: { requests_per_minute: 60, tokens_per_minute: null, rows: null, stored_bytes: null, share: null },
}

function fakeSession(id: string) {
  const now = Date.now() / 1000
  const turn = { turn: 1, parent: 0, tokens: 9, created: now, tier: 'device', saved: true }
  const times = { created: now, updated: now, expires: null }
  return { id, version: 1, head: 1, ...times, bytes: 400_000, busy: false, turns: [turn] }
}

/** The question is its name. */
function fakeTranscript(id: string, answer: string) {
  const messages = [
    { role: 'user', content: id },
    { role: 'assistant', content: answer },
  ]
  const turn = { turn: 1, parent: 0, tokens: 9, text: id, messages }
  return { object: 'session.transcript', id, title: id, skipped_tokens: 0, turns: [turn] }
}

function open(reply: FastifyReply): void {
  reply.hijack()
  reply.raw.writeHead(200, { 'content-type': 'text/event-stream' })
}

function write(reply: FastifyReply, { type, ...rest }: ManagementEvent): void {
  reply.raw.write(`event: ${type}\ndata: ${JSON.stringify(rest)}\n\n`)
}

const GPU: GpuInfo = {
  index: 0,
  uuid: 'GPU-00000000-0000-0000-0000-000000000000',
  name: 'NVIDIA H200',
  memory_total_mb: 143_771,
  memory_used_mb: 31_400,
  utilisation: 74,
  temperature_c: 55,
  power_w: 410,
}

export const SYSTEM: SystemInfo = {
  skein: { version: '0.1.0', uptime_ms: 86_400_000, url: 'http://127.0.0.1:8000' },
  node: { version: '22.0.0' },
  python: { version: '', executable: '' },
  os: { platform: 'linux', machine: 'x86_64', hostname: 'flock' },
  env: { CUDA_VISIBLE_DEVICES: null },
  cpu: { model: 'A processor', cores: 16, use: 0.2 },
  memory: { total_bytes: 137_438_953_472, available_bytes: 90_000_000_000 },
  gpus: [GPU],
  devices: ['cpu', 'cuda:0'],
}

const LOG = ['reading demo.pth', 'loaded in 0.2 s', 'warning: a line with <b>markup</b>', 'ready']

const NO_GUESSES = { guessed_per_second: 0, accepted_per_second: 0 }

function sampleAt(at: number, workers: Readonly<Record<string, WorkerSample>>): Sample {
  const wave = Math.sin(at / 17)
  const load = Object.keys(workers).length === 0 ? null : 1
  const spread = (p50: number, p99: number) => ({ p50: load && p50, p90: load && (p50 + p99) / 2, p99: load && p99 })
  return {
    at,
    workers,
    requests: { open: 24, per_second: 6, errors_per_second: 0 },
    ttft_ms: spread(48 + 9 * wave, 130 + 50 * Math.sin(at / 5)),
    itl_ms: spread(4.1 + 0.4 * wave, 7.5 + Math.sin(at / 3)),
    event_loop_delay_ms: spread(1, 3),
    cpu_use: 0.22 + 0.05 * wave,
    memory_available_bytes: 90_000_000_000,
    gpus: [{ ...GPU, utilisation: 74 + 12 * wave, memory_used_mb: 31_400 + 300 * wave }],
  }
}

/** A worker after a start with only a file; `fields` override its values. */
export function fakeWorker(fields: Partial<WorkerRecord> = {}): WorkerRecord {
  return {
    worker_id: 'wkr-0123456789',
    model: 'demo',
    pid: 4242,
    status: 'running',
    phase: 'ready',
    reason: null,
    progress: null,
    created_at: Date.now() / 1000 - 3700,
    ready_at: Date.now() / 1000 - 3690,
    exited_at: null,
    exit_code: null,
    restarts: 0,
    endpoint: 'http://127.0.0.1:8000/api/workers/wkr-0123456789/proxy',
    spec: { ...DEFAULT_SPEC, model_path: 'demo.pth' },
    info: {
      architecture: 'rwkv7',
      num_parameters: 5_700_000,
      weight_type: 'bf16',
      weight_bytes: 11_504_093,
      device: 'cpu',
      slots: 64,
      state_bytes: 400_000,
      max_prompt_tokens: 65_536,
    },
    last_log: [],
    ...fields,
  }
}

export function fakeLoad(at: number, scale = 1): WorkerSample {
  const wave = 1 + 0.25 * Math.sin(at / 23) + 0.08 * Math.sin(at / 3)
  const running = Math.round(24 * wave)
  return {
    running,
    waiting: Math.max(0, Math.round(6 * Math.sin(at / 31))),
    slots: 64,
    free_slots: 64 - running,
    batch_tokens: Math.round(120 * wave),
    prompt_tokens_per_second: 900 * scale * wave,
    generated_tokens_per_second: 2400 * scale * wave,
    guesses: { grammar: NO_GUESSES, prediction: NO_GUESSES, lookup: NO_GUESSES, draft: NO_GUESSES },
    busy: Math.min(1, 0.7 * wave),
    rss_bytes: 620_000_000,
    states: {
      sessions: 41,
      in_slots: 12,
      in_memory: 29,
      on_disk: 118,
      unsaved: 0,
      prefixes: 210,
      prefix_bytes: 84_000_000,
      store_failing: 0,
      cached_tokens_per_second: 640 * wave,
      prefix_hit_rate: 0.61,
    },
  }
}
