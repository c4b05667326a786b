/** A gateway over a host with scripted workers, for tests of loading, replacing, draining and refusing. */
import { mkdtempSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import type { EngineCalls } from '../../src/engine/messages.ts'
import { type ErrorCode, SkeinError } from '../../src/errors.ts'
import { buildApp } from '../../src/gateway/app.ts'
import type { WorkerSpec } from '../../src/gateway/contract.ts'
import { Metrics } from '../../src/gateway/figures/metrics.ts'
import { Fleet } from '../../src/gateway/fleet/fleet.ts'
import type { Launch, WorkerHandle } from '../../src/gateway/fleet/launch.ts'
import { Management, type ManagementOptions } from '../../src/gateway/management/management.ts'
import { openModelFolder } from '../../src/gateway/models/model-folder.ts'
import { ModelHost, type ModelHostOptions } from '../../src/gateway/models/model-host.ts'
import { answer, byteCodec, FAKE_INFO, FakeEngineClient } from '../helpers/fake-engine.ts'
import { postTo } from './kit.ts'

function deferred() {
  let resolve = () => {}
  let reject = (_error: Error) => {}
  const promise = new Promise<void>((onResolve, onReject) => {
    resolve = onResolve
    reject = onReject
  })
  return { promise, resolve, reject }
}

/** A worker that becomes ready when told, or never. */
function refuseChange(): never {
  throw new SkeinError('not_found', 'there is no hub', { param: 'name' })
}

export class FakeWorker implements WorkerHandle {
  state: WorkerHandle['state'] = 'loading'
  reason: string | null = 'loading'
  client: IdleClient | null = null
  stopped = false
  /** Its reply about a start state from a file. */
  refuses: (path: string) => boolean = () => false
  readonly pid = null
  readonly progress = null
  readonly restarts = 0
  readonly failure = null
  readonly exitCode = null
  readonly bytes = null
  readonly numProbes = 0
  readonly ready = deferred()
  readonly #launch: () => Launch
  readonly #onChange: () => void

  constructor(launch: () => Launch, onChange: () => void) {
    this.#launch = launch
    this.#onChange = onChange
  }

  get launch(): Launch {
    return this.#launch()
  }

  get engine(): IdleClient | null {
    return this.client
  }

  async start(): Promise<void> {
    await this.ready.promise
    this.begin()
  }

  /** A reply of its process. */
  begin(): void {
    this.state = 'ready'
    this.reason = null
    this.client = new IdleClient(this.launch, (path) => this.refuses(path))
    this.#onChange()
  }

  crash(): void {
    this.state = 'restarting'
    this.reason = 'the worker ended'
    this.client = null
    this.#onChange()
  }

  giveUp(): void {
    this.state = 'failed'
    this.reason = 'no such device'
    this.client = null
    this.#onChange()
  }

  async stop(): Promise<void> {
    this.stopped = true
    this.state = 'stopped'
    this.client = null
    this.ready.reject(new SkeinError('model_not_loaded', 'the worker was stopped'))
  }
}

/** With start states that are added and removed, and answers that contain the end of the model's name. */
export class IdleClient extends FakeEngineClient {
  running = 0
  readonly states: Map<string, string>

  constructor(launch: Launch, refuses: (path: string) => boolean) {
    super((request) => answer(request, launch.file.slice(-5)))
    this.states = new Map(launch.startStates.map(({ name, path }) => [name, path]))
    this.answerCall = (method, params) => {
      // The host calls no other members.
      const { name, path, replace } = params as EngineCalls['startStates.add']['params']
      if (method === 'startStates.add' && refuses(path)) throw new SkeinError('state_incompatible', 'wrong size')
      if (method === 'startStates.add' && this.states.has(name) && replace !== true)
        throw new SkeinError('conflict', 'there is one already')
      const isThere = this.states.delete(name)
      if (method === 'startStates.add') this.states.set(name, path)
      else if (!isThere) throw new SkeinError('not_found', 'no start state of that name')
      return [...this.states.keys()]
    }
  }

  override get info() {
    return { ...FAKE_INFO, startStates: [...this.states.keys()] }
  }

  override get stats() {
    return { ...super.stats, waiting: 0, running: this.running }
  }
}

export function hosted(options: Partial<ModelHostOptions> = {}) {
  const folder = mkdtempSync(join(tmpdir(), 'skein-models-'))
  for (const name of ['a.pth', 'b.pth', 'RWKV-x060.pth', 'state.pth']) {
    writeFileSync(join(folder, name), '')
  }
  const handles: FakeWorker[] = []
  /** The fate of the next worker, or of the next few. */
  const next: { fail: ErrorCode | null; numFails: number; isHeld: boolean } = {
    fail: null,
    numFails: Number.POSITIVE_INFINITY,
    isHeld: false,
  }
  const fleet = new Fleet({
    launcher: (launch, { onChange }) => {
      const handle = new FakeWorker(launch, onChange)
      handles.push(handle)
      handle.ready.promise.catch(() => {})
      if (next.fail !== null && next.numFails-- > 0) handle.ready.reject(new SkeinError(next.fail, 'wrong size'))
      else if (!next.isHeld) handle.ready.resolve()
      return { handle, tokenizer: byteCodec }
    },
  })
  const host = new ModelHost({ folder: openModelFolder(folder), fleet, drainMs: 5000, ...options })
  const app = buildApp({ models: host.registry, admin: host, keys: [], host: '127.0.0.1', version: '1' })
  const names = async () => ((await app.inject({ url: '/models' })).json() as { id: string }[]).map(({ id }) => id)
  const say = async (model?: string) => (await postTo(app, '/v1/completions', { prompt: 'x', model })).json()
  return { folder, fleet, host, app, handles, next, names, say }
}

/** The control plane over the same workers. */
export function managementOf(
  fleet: Fleet,
  resolve: (spec: WorkerSpec) => Launch,
  options: Partial<ManagementOptions> = {},
): Management {
  return new Management({
    fleet,
    metrics: new Metrics(fleet.registry, fleet),
    version: '0',
    host: '127.0.0.1',
    isOpen: () => false,
    resolve,
    listModels: () => [],
    devices: () => ['cpu'],
    jobs: {
      list: () => [],
      start: refuseChange,
      quantise: refuseChange,
      remove: refuseChange,
      search: refuseChange,
      modelsOf: refuseChange,
    },
    openGateway: () => {
      throw new Error('no gateway was asked for')
    },
    ...options,
  })
}

export const SEED = { model_filename: 'RWKV-x060.pth', model_viewname: 'RWKV x060 1B6 Base', model_strategy: '' }
