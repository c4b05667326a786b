/** A gateway with its workers, as `serve` and `chat FILE` start it. It combines gateway, fleet and launcher. */
import { hostname } from 'node:os'
import { dirname, join } from 'node:path'
import type { FastifyBaseLogger, FastifyInstance } from 'fastify'
import { type Logger, pino } from 'pino'
import { FolderBatchStore } from '../batches/folder-store.ts'
import { packageVersion } from '../files/version.ts'
import type { CallerSeal } from '../gateway/access/caller-seal.ts'
import type { NamedKeys } from '../gateway/access/key-index.ts'
import { RateLimits } from '../gateway/access/rate-limits.ts'
import { type AppOptions, buildApp, createShared } from '../gateway/app.ts'
import { ClusterNode } from '../gateway/cluster/node.ts'
import { Metrics, startMetricsServer } from '../gateway/figures/metrics.ts'
import { startTracing } from '../gateway/figures/tracing.ts'
import { Fleet } from '../gateway/fleet/fleet.ts'
import { DEFAULT_SPEC, type Launch, launchOf } from '../gateway/fleet/launch.ts'
import { limitUnsentBytes, listenError, urlOf } from '../gateway/http/connection.ts'
import { Drain } from '../gateway/http/drain.ts'
import type { Limits } from '../gateway/http/limits.ts'
import { shutDown } from '../gateway/http/shutdown.ts'
import { Management } from '../gateway/management/management.ts'
import type { OpenGateway } from '../gateway/management/worker-gateways.ts'
import { type ModelFolder, openModelFolder } from '../gateway/models/model-folder.ts'
import { ModelHost } from '../gateway/models/model-host.ts'
import { createRegistry } from '../gateway/routing/registry.ts'
import { ModelJobs } from './checkpoints/model-jobs.ts'
import { checkModelFile } from './checkpoints/open-model.ts'
import { devicesOf } from './device-choice.ts'
import { createLauncher } from './launcher.ts'
import type { ClusterBatches } from './membership.ts'
import type { ClusterChoice, EngineChoice } from './model-choice.ts'
import { listModelFiles, nameOf, realPath, resolveSpec } from './model-files.ts'

interface ServerOptions {
  readonly host?: string | undefined
  /** 0: any free port. */
  readonly port?: number | undefined
  readonly keys?: readonly string[] | undefined
  /** Named keys, which may change at any time. */
  readonly keyRing?: NamedKeys | undefined
  /** Absent: this server's own. */
  readonly rates?: RateLimits | undefined
  /** Workers to start with; absent: one with the model of the choice. */
  readonly launches?: readonly Launch[] | undefined
  /** Maximum memory of a worker process. */
  readonly maxWorkerBytes?: number | undefined
  readonly allowedOrigins?: readonly string[] | undefined
  readonly allowedHosts?: readonly string[] | undefined
  /** Translation needs no key. */
  readonly openTranslate?: boolean | undefined
  /** The folder whose files may be loaded over HTTP. Default: the model's; without a model, "models" and "states". */
  readonly modelDir?: string | undefined
  readonly limits?: Partial<Limits> | undefined
  /** Port that serves only /metrics, without a key; 0: any free port. */
  readonly metricsPort?: number | undefined
  /** URL of an OpenTelemetry collector for traces. */
  readonly traceEndpoint?: string | undefined
  /** Makes this server a node of the choice's cluster; its members sign with this. */
  readonly seal?: CallerSeal | undefined
  /** Called with the node's name and the process id when a worker's process has gone. */
  readonly onWorkerEnd?: ((node: string, pid: number) => void) | undefined
  /** Absent: files and batches are stored in the data folder, if there is one. */
  readonly batches?: ClusterBatches | undefined
  readonly logger?: Logger | undefined
  readonly onProgress?: ((doneBytes: number, totalBytes: number) => void) | undefined
  /** Called as soon as it listens: ready models are served while others load. */
  readonly onListening?: ((server: Server) => void) | undefined
}

export interface Server {
  /** "http://127.0.0.1:8000" */
  readonly url: string
  readonly app: FastifyInstance
  readonly drain: Drain
  readonly models: ModelHost
  /** Stops at once, for commands and tests. `serve` drains first. */
  stop(): Promise<void>
}

/**
 * Listens at once, so that probes get an answer. Resolves when the models are ready or the server is told to stop;
 * throws if a model never will be ready. Without a model (`choice.model` null) it resolves at once.
 */
export async function startServer(choice: ServedChoice, options: ServerOptions = {}): Promise<Server> {
  const { host = '127.0.0.1', port = 8000, logger = pino({ level: 'silent' }) } = options
  const { model, dataDir } = choice
  const launches = options.launches ?? workerOf(choice)
  for (const { file } of launches) checkModelFile({ ...choice, model: file })
  const folder = modelFolderOf(model, options)
  let url: string | null = null
  const fleet = new Fleet({
    launcher: launcherOf(choice, options, logger, () => url),
    logFolder: dataDir === undefined ? undefined : join(dataDir, 'logs'),
  })
  const models = new ModelHost({ folder, fleet })
  const drain = new Drain()
  const common = commonOptions(options, logger, fleet, drain)
  const management = manage(fleet, folder, host, common)
  const app = bounded(
    buildApp({
      ...common,
      ...{ host, models: models.registry, admin: models, management },
      ...batchesOf(dataDir, options.batches),
    }),
    logger,
  )
  const stop = () => shutDown({ app, drain, stopWorkers: () => models.stop(), timeoutMs: 0 })
  app.addHook('onClose', async () => options.batches?.close())
  let server: Server | null = null
  try {
    await observe(app, common.metrics, { ...options, host })
    await listen(app, host, port)
    url = urlOf(app, host)
    server = { url, app, drain, models, stop }
    management.listensOn(server.url)
    options.onListening?.(server)
    await models.begin(launches)
    return server
  } catch (error) {
    // During shutdown, loading models are stopped, which is not their failure; the caller stops the rest.
    if (server !== null && drain.isDraining) return server
    await stop()
    throw error
  }
}

function batchesOf(dataDir: string | undefined, shared: ClusterBatches | undefined) {
  if (shared !== undefined) return { batches: shared.store, batchRows: shared.rows }
  return dataDir === undefined ? {} : { batches: new FolderBatchStore(join(dataDir, 'batches')) }
}

/** Metrics and traces for other tools, as long as the server runs. */
async function observe(
  app: FastifyInstance,
  metrics: Metrics,
  { host = '127.0.0.1', metricsPort, traceEndpoint, allowedHosts }: ServerOptions,
): Promise<void> {
  if (metricsPort !== undefined) {
    const server = await startMetricsServer(metrics, host, metricsPort, allowedHosts)
    app.addHook('onClose', () => server.close())
  }
  if (traceEndpoint === undefined) return
  const endTracing = await startTracing(traceEndpoint, packageVersion())
  // Traces that have not been sent by now are lost; the shutdown does not wait for them.
  app.addHook('onClose', () => endTracing().catch(() => {}))
}

type CommonOptions = Omit<AppOptions, 'models' | 'host' | 'admin' | 'management'> & {
  readonly metrics: Metrics
  readonly logger: Logger
}

/** What the server and the gateways of single workers share: access, limits, calls, mixtures, metrics and shutdown. */
function commonOptions(options: ServerOptions, logger: Logger, fleet: Fleet, drain: Drain): CommonOptions {
  return {
    keys: options.keys ?? [],
    keyRing: options.keyRing ?? null,
    rates: options.rates ?? new RateLimits(),
    shared: createShared(),
    metrics: new Metrics(fleet.registry, fleet),
    version: packageVersion(),
    isTraced: options.traceEndpoint !== undefined,
    drain,
    logger,
    limits: options.limits ?? {},
    openTranslate: options.openTranslate ?? false,
    ...(options.seal === undefined ? {} : memberOf(options.seal, fleet)),
    allowedOrigins: options.allowedOrigins ?? [],
    allowedHosts: options.allowedHosts ?? [],
  }
}

/** Further options of a server that is a node of a cluster. */
function memberOf(seal: CallerSeal, fleet: Fleet): Pick<AppOptions, 'seal' | 'modelsFor' | 'mount'> {
  const enginesOf = (model: string) =>
    fleet.workers.flatMap(({ launch, engine }) => (launch.id === model && engine !== null ? [engine] : []))
  const node = new ClusterNode({ seal, enginesOf })
  return {
    seal,
    modelsFor: (request, models) => node.modelsFor(request, models),
    mount: (app) => {
      node.mount(app)
      app.addHook('onClose', async () => node.close())
    },
  }
}

function manage(fleet: Fleet, folder: ModelFolder, host: string, common: CommonOptions): Management {
  const openGateway: OpenGateway = (worker, address) => {
    const { id, spec } = worker.launch
    const model = { id, aliases: spec.aliases, tokenizer: worker.tokenizer }
    const models = createRegistry([{ ...model, source: fleet.routerTo(worker) }])
    return bounded(buildApp({ ...common, host: address, models }), common.logger)
  }
  return new Management({
    fleet,
    metrics: common.metrics,
    version: common.version,
    host,
    isOpen: () => common.keys.length === 0 && common.keyRing?.isInUse !== true,
    resolve: (spec) => resolveSpec(spec, folder),
    listModels: () => listModelFiles(folder),
    devices: devicesOf,
    jobs: new ModelJobs(),
    openGateway,
  })
}

/** The choices of workers for fields that their specs leave out, and the first model. */
type ServedChoice = Omit<EngineChoice, 'model'> & { readonly model: string | null }

/** The default folders are those of RWKV-Infer. */
function modelFolderOf(model: string | null, { modelDir }: ServerOptions): ModelFolder {
  if (modelDir !== undefined) return openModelFolder(modelDir)
  return model === null ? openModelFolder('models', ['states']) : openModelFolder(dirname(realPath(model)))
}

/** One worker of the chosen model, if no others are requested. */
function workerOf({ model, startStates = [] }: ServedChoice): Launch[] {
  if (model === null) return []
  const spec = { ...DEFAULT_SPEC, model_path: model, model_name: nameOf(model), states: startStates }
  return [launchOf(spec, { file: realPath(model) })]
}

/** Adapters belong to the model that the server was started with; `--vocab` applies to all. */
function launcherOf(choice: ServedChoice, options: ServerOptions, logger: Logger, url: () => string | null) {
  const { model, cluster, ...defaults } = choice
  // The server's URL is known by the time a worker is started.
  const placed = () => (cluster === undefined ? undefined : placedAt(cluster, url() ?? ''))
  const onEnd = (pid: number) => {
    const node = placed()?.node
    if (node !== undefined) options.onWorkerEnd?.(node, pid)
  }
  return createLauncher({
    defaults: {
      ...defaults,
      get cluster() {
        return placed()
      },
    },
    adaptedFile: model === null ? null : realPath(model),
    logger,
    supervision: { maxBytes: options.maxWorkerBytes, onEnd },
    onProgress: options.onProgress,
  })
}

/** An empty URL becomes the server's own. */
function placedAt({ node, url, ...cluster }: ClusterChoice, own: string): ClusterChoice {
  const at = url === '' ? own : url
  return { ...cluster, url: at, node: node === '' ? `${hostname()}:${new URL(at).port}` : node }
}

/** Call this before anyone connects. */
export function bounded(app: FastifyInstance, logger: FastifyBaseLogger): FastifyInstance {
  app.addHook('onListen', async () => {
    const reason = limitUnsentBytes(app.server)
    if (reason !== null) logger.warn({ reason }, 'what the system keeps for slow clients is its own')
  })
  return app
}

export async function listen(app: FastifyInstance, host: string, port: number): Promise<void> {
  try {
    await app.listen({ host, port })
  } catch (error) {
    throw listenError(error, host, port, '--')
  }
}
