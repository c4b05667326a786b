/** A gateway with one worker, as `serve` and `chat FILE` start it. Puts gateway, supervisor and tokenizer together. */
import type { AddressInfo } from 'node:net'
import { basename } from 'node:path'
import { fileURLToPath } from 'node:url'
import type { FastifyInstance } from 'fastify'
import { type Logger, pino } from 'pino'
import { SkeinError } from '../errors.ts'
import { buildApp } from '../gateway/app.ts'
import { Drain } from '../gateway/drain.ts'
import type { Limits } from '../gateway/limits.ts'
import { createRegistry } from '../gateway/registry.ts'
import { shutDown } from '../gateway/shutdown.ts'
import { Supervisor } from '../gateway/supervisor.ts'
import { checkModelFile, type EngineChoice, loadTokenizer, vocabularyPath } from '../load.ts'
import { packageVersion } from './version.ts'

export interface ServerOptions {
  readonly host?: string | undefined
  /** 0: any free one. */
  readonly port?: number | undefined
  readonly keys?: readonly string[] | undefined
  readonly modelId?: string | undefined
  readonly allowedOrigins?: readonly string[] | undefined
  readonly allowedHosts?: readonly string[] | undefined
  readonly limits?: Partial<Limits> | undefined
  readonly logger?: Logger | undefined
  readonly onProgress?: ((doneBytes: number, totalBytes: number) => void) | undefined
}

export interface Server {
  /** "http://127.0.0.1:8000" */
  readonly url: string
  readonly app: FastifyInstance
  readonly drain: Drain
  readonly supervisor: Supervisor
  /** Ends at once: for commands and tests. `serve` drains instead. */
  stop(): Promise<void>
}

/** Listens at once, so that probes get an answer; resolves when the model is ready, throws if it never will be. */
export async function startServer(
  choice: EngineChoice,
  options: ServerOptions = {},
): Promise<Server> {
  const { host = '127.0.0.1', port = 8000, keys = [], logger = pino({ level: 'silent' }) } = options
  checkModelFile(choice)
  const vocab = vocabularyPath(choice)
  const tokenizer = loadTokenizer({ ...choice, vocab })
  const id = options.modelId ?? defaultModelId(choice.model)
  const supervisor = new Supervisor({
    worker: workerCommand({ ...choice, vocab }),
    name: id,
    logger,
    ...(options.onProgress ? { onProgress: options.onProgress } : {}),
  })
  const drain = new Drain()
  const app = buildApp({
    models: createRegistry([{ id, tokenizer, source: supervisor }]),
    keys,
    host,
    version: packageVersion(),
    drain,
    logger,
    limits: options.limits ?? {},
    allowedOrigins: options.allowedOrigins ?? [],
    allowedHosts: options.allowedHosts ?? [],
  })
  const stop = () => shutDown({ app, drain, stopWorkers: () => supervisor.stop(), timeoutMs: 0 })
  try {
    await listen(app, host, port)
    await supervisor.start()
  } catch (error) {
    await stop()
    throw error
  }
  return { url: urlOf(app, host), app, drain, supervisor, stop }
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
