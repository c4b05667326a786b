/** A gateway with one worker, as `serve` and `chat FILE` start it. Puts gateway, supervisor and tokenizer together. */
import { existsSync, realpathSync } from 'node:fs'
import type { AddressInfo } from 'node:net'
import { basename, dirname, resolve } from 'node:path'
import { fileURLToPath } from 'node:url'
import type { FastifyInstance } from 'fastify'
import { type Logger, pino } from 'pino'
import { SkeinError } from '../errors.ts'
import { buildApp } from '../gateway/app.ts'
import { Drain } from '../gateway/drain.ts'
import type { KeyRing } from '../gateway/keys-file.ts'
import type { Limits } from '../gateway/limits.ts'
import { openModelFolder } from '../gateway/model-folder.ts'
import { type Launch, type Launched, ModelHost } from '../gateway/model-host.ts'
import { shutDown } from '../gateway/shutdown.ts'
import { Supervisor } from '../gateway/supervisor.ts'
import {
  checkModelFile,
  type EngineChoice,
  loadTokenizer,
  type QuantChoice,
  vocabularyPath,
} from '../load.ts'
import { packageVersion } from './version.ts'

export interface ServerOptions {
  readonly host?: string | undefined
  /** 0: any free one. */
  readonly port?: number | undefined
  readonly keys?: readonly string[] | undefined
  /** Keys with names, which come and go. */
  readonly keyRing?: KeyRing | undefined
  readonly modelId?: string | undefined
  readonly allowedOrigins?: readonly string[] | undefined
  readonly allowedHosts?: readonly string[] | undefined
  /** Translation needs no key. */
  readonly openTranslate?: boolean | undefined
  /** Whose files may be loaded over HTTP; by default the folder of the model, or "models" without one. */
  readonly modelDir?: string | undefined
  readonly limits?: Partial<Limits> | undefined
  readonly logger?: Logger | undefined
  readonly onProgress?: ((doneBytes: number, totalBytes: number) => void) | undefined
}

export interface Server {
  /** "http://127.0.0.1:8000" */
  readonly url: string
  readonly app: FastifyInstance
  readonly drain: Drain
  readonly models: ModelHost
  /** Ends at once: for commands and tests. `serve` drains instead. */
  stop(): Promise<void>
}

/**
 * Listens at once, so that probes get an answer; resolves when the model is ready, throws if it never will be. Without a
 * model (`choice.model` null) there is nothing to wait for.
 */
export async function startServer(
  choice: ServedChoice,
  options: ServerOptions = {},
): Promise<Server> {
  const { host = '127.0.0.1', port = 8000, keys = [], logger = pino({ level: 'silent' }) } = options
  const { model } = choice
  if (model !== null) checkModelFile({ ...choice, model })
  const folder = options.modelDir ?? (model === null ? 'models' : dirname(realPath(model)))
  const models = new ModelHost({
    folder: openModelFolder(folder),
    launch: (launch) => launchWorker(choice, launch, options),
    // One model has one store of sessions, and one worker that writes to it.
    excludes: (old, next) => choice.dataDir !== undefined && old.file === next.file,
  })
  const drain = new Drain()
  const app = buildApp({
    models: models.registry,
    admin: models,
    keys,
    keyRing: options.keyRing ?? null,
    host,
    version: packageVersion(),
    drain,
    logger,
    limits: options.limits ?? {},
    openTranslate: options.openTranslate ?? false,
    allowedOrigins: options.allowedOrigins ?? [],
    allowedHosts: options.allowedHosts ?? [],
  })
  const stop = () => shutDown({ app, drain, stopWorkers: () => models.stop(), timeoutMs: 0 })
  try {
    await listen(app, host, port)
    if (model !== null) await models.begin(firstLaunch({ ...choice, model }, options.modelId))
  } catch (error) {
    await stop()
    throw error
  }
  return { url: urlOf(app, host), app, drain, models, stop }
}

/** What every worker gets unless it is told otherwise, and the model to begin with. */
export type ServedChoice = Omit<EngineChoice, 'model'> & { readonly model: string | null }

function firstLaunch(choice: EngineChoice, id: string | undefined): Launch {
  return {
    id: id ?? defaultModelId(choice.model),
    file: realPath(choice.model),
    quant: null,
    startStates: choice.startStates ?? [],
  }
}

/** A worker that is not running yet. Adapters belong to the model that the server was started with. */
function launchWorker(base: ServedChoice, launch: Launch, options: ServerOptions): Launched {
  const { id, file, quant, startStates } = launch
  const isFirst = base.model !== null && realPath(base.model) === file
  const choice: EngineChoice = {
    ...base,
    model: file,
    startStates,
    // ModelChoice has the names of QuantChoice; a dialect chose it.
    ...(quant === null ? {} : { quant: quant as QuantChoice }),
    ...(isFirst ? {} : { adapters: undefined }),
  }
  checkModelFile(choice)
  const vocab = vocabularyPath(choice)
  const keeper = new Supervisor({
    worker: workerCommand({ ...choice, vocab }),
    name: id,
    logger: options.logger ?? pino({ level: 'silent' }),
    ...(options.onProgress ? { onProgress: options.onProgress } : {}),
  })
  return { keeper, tokenizer: loadTokenizer({ ...choice, vocab }) }
}

/** The path without links, where the file is there. */
function realPath(model: string): string {
  return existsSync(model) ? realpathSync(model) : resolve(model)
}

/** "models/demo.pth" is served as "demo". */
function defaultModelId(model: string): string {
  return basename(model).replace(/\.(pth|safetensors|st|gguf)$/, '')
}

function workerCommand(choice: EngineChoice) {
  const entry = fileURLToPath(new URL('../worker.js', import.meta.url))
  return { entry, args: [JSON.stringify(choice)] }
}

async function listen(app: FastifyInstance, host: string, port: number): Promise<void> {
  try {
    await app.listen({ host, port })
  } catch (error) {
    // Errors of listen carry a code; other values are passed on unchanged.
    const { code } = error as NodeJS.ErrnoException
    if (code === 'EADDRINUSE')
      throw new SkeinError('conflict', `port ${port} is in use; choose another with --port`)
    if (code === 'EACCES')
      throw new SkeinError(
        'forbidden',
        `not allowed to listen on port ${port}; choose one above 1023`,
      )
    if (code === 'EADDRNOTAVAIL' || code === 'ENOTFOUND')
      throw new SkeinError('invalid_request', `--host ${host} is not an address of this machine`)
    throw error
  }
}

function urlOf(app: FastifyInstance, host: string): string {
  // A listening TCP server has an address object; only pipes have a string.
  const { port } = app.server.address() as AddressInfo
  const name = host === '0.0.0.0' || host === '::' ? '127.0.0.1' : host
  return `http://${name.includes(':') ? `[${name}]` : name}:${port}`
}
