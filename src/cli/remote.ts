/**
 * Shared parts of the commands that talk to a running server, and `skein ps` and `skein stop`, which manage its
 * workers.
 */
import { setTimeout } from 'node:timers/promises'
import { type ErrorCode, SkeinError } from '../errors.ts'
import type { WorkerRecord } from '../gateway/contract.ts'
import { text, toggle } from '../settings/flags.ts'
import { defineCommand } from './terminal/command.ts'
import { printJson, printTable } from './terminal/output.ts'

export const SERVER_FLAGS = {
  url: text('Server to talk to when no FILE is given', { default: 'http://127.0.0.1:8000', hint: 'URL' }),
  'api-key': text('Key of the server (default: $SKEIN_API_KEY)', { hint: 'KEY' }),
}

export const NAME_FLAG = text('Which of its models (default: the only one)', { hint: 'NAME' })

interface ServerAddress {
  readonly url: string
  readonly apiKey: string | undefined
}

export function serverOf(args: { readonly url: string; readonly 'api-key': string | undefined }): ServerAddress {
  return { url: serverUrl(args.url), apiKey: args['api-key'] ?? process.env.SKEIN_API_KEY }
}

/** "host:8000" and "http://host:8000/v1" mean the same server, ":8000" one on this machine, as other clients accept them. */
export function serverUrl(given: string): string {
  const url = /^[a-z]+:\/\//i.test(given) ? given : `http://${given.replace(/^:/, '127.0.0.1:')}`
  if (!URL.canParse(url) || !/^https?:$/.test(new URL(url).protocol)) {
    const message = `--url takes a URL like http://127.0.0.1:8000, not "${given}"`
    throw new SkeinError('invalid_request', message, { param: 'url' })
  }
  return url.replace(/\/+$/, '').replace(/\/v1$/, '')
}

/** Time between two checks of workers that are stopping. */
const POLL_MS = 100

const FLAGS = {
  url: { ...SERVER_FLAGS.url, description: 'The server' },
  'api-key': { ...SERVER_FLAGS['api-key'], description: 'Key of an operator (default: $SKEIN_API_KEY)' },
}

export const ps = defineCommand({
  examples: [
    ['skein ps', 'workers of the server on this machine'],
    ['skein ps --url host:8000 --all', 'of another server, with workers that have ended'],
  ],
  flags: { ...FLAGS, all: toggle('Also workers that have ended'), json: toggle('One JSON object') },
  async run({ args }) {
    const server = serverOf(args)
    const workers = await (args.all ? workersOf(server) : runningOf(server))
    if (args.json) printJson({ workers })
    else if (workers.length === 0) process.stdout.write('no models are running\n')
    else
      printTable([
        ['model', 'worker', 'state', 'device', 'requests at once', 'since'],
        ...workers.map(({ model, worker_id, phase, info, spec, created_at }) => [
          model,
          worker_id,
          phase,
          info?.device ?? spec.device ?? '',
          String(info?.slots ?? ''),
          new Date(1000 * created_at).toISOString().slice(0, 16).replace('T', ' '),
        ]),
      ])
  },
})

export const stop = defineCommand({
  examples: [['skein stop goose', 'all workers of the model goose']],
  words: { name: { description: 'Name of a model, or a worker as skein ps shows it', isRequired: true } },
  flags: FLAGS,
  async run({ args }) {
    const server = serverOf(args)
    const workers = (await runningOf(server)).filter(
      ({ model, worker_id }) => model === args.name || worker_id === args.name,
    )
    if (workers.length === 0)
      throw new SkeinError('not_found', `nothing called "${args.name}" is running; skein ps lists what is`)
    for (const { worker_id } of workers) await ask(server, 'POST', `/api/workers/${worker_id}/stop`)
    const stopped = new Set(workers.map(({ worker_id }) => worker_id))
    // Running requests finish first.
    while ((await runningOf(server)).some(({ worker_id }) => stopped.has(worker_id))) await setTimeout(POLL_MS)
    process.stdout.write(`stopped ${args.name} (${workers.length} workers)\n`)
  },
})

async function runningOf(server: ServerAddress): Promise<readonly WorkerRecord[]> {
  return (await workersOf(server)).filter(({ status }) => status === 'running')
}

async function workersOf(server: ServerAddress): Promise<readonly WorkerRecord[]> {
  // The server is Skein, so the body has the type of contract.ts.
  return (await ask(server, 'GET', '/api/workers')) as readonly WorkerRecord[]
}

/** Calls the management API and returns its JSON. Throws the server's refusal with its own code. */
async function ask({ url, apiKey }: ServerAddress, method: string, path: string): Promise<unknown> {
  const headers: Record<string, string> = apiKey ? { authorization: `Bearer ${apiKey}` } : {}
  const response = await fetch(`${url}${path}`, { method, headers }).catch((error: unknown) => {
    throw noAnswer(url, error, 'start one with `skein serve`')
  })
  // Management API errors have a `detail`, others a `message`.
  const body = (await response.json().catch(() => null)) as Refusal | null
  if (response.ok) return body
  const message = body?.detail ?? body?.error?.message ?? noReason(response)
  const code = codeOf(response.status)
  throw new SkeinError(code, code === 'unauthorized' && !apiKey ? `${message} ${GIVE_KEY}` : message)
}

/** Why `fetch` reached no server; `advice` is for a machine on which nothing listens. */
export function noAnswer(url: string, error: unknown, advice: string): SkeinError {
  // fetch() puts the system's error behind its own.
  const { code = '', message = '' } = ((error as Error).cause ?? {}) as NodeJS.ErrnoException
  const isPlain = code === 'EPROTO' || code.startsWith('ERR_SSL')
  const why =
    code === 'ECONNREFUSED' ? `; ${advice}` : `: ${isPlain ? 'what listens there does not speak https' : message}`
  return new SkeinError('model_not_loaded', `no server answers at ${url}${why}`)
}

/** For a command that sent none. */
export const GIVE_KEY = '(give the key with --api-key)'

/** What is no refusal of Skein's. */
export function noReason({ url, status }: Response): string {
  return `${url} answered ${status} without a reason; is a Skein server at that address?`
}

interface Refusal {
  readonly detail?: string
  readonly error?: { readonly message?: string }
}

/** An error of the server is not an error of the command line. */
function codeOf(status: number): ErrorCode {
  if (status === 401) return 'unauthorized'
  return status === 403 ? 'forbidden' : status === 404 ? 'not_found' : 'conflict'
}

/** Names that a request may give as `model`; the server's default comes first. */
export async function modelNames(server: ServerAddress): Promise<readonly string[]> {
  // The shape of docs/api.md.
  const { data = [] } = (await ask(server, 'GET', '/v1/models')) as {
    readonly data?: readonly { readonly id: string }[]
  }
  return data.map(({ id }) => id)
}
