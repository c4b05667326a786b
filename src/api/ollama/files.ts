/** Routes by which Ollama's clients change models. The files of this server are its operator's: an admin may fetch one; a pull of what is served is done. */

import { setTimeout as pause } from 'node:timers/promises'
import { SkeinError } from '../../errors.ts'
import { Type } from '../../files/schema-types.ts'
import type { FetchProgress, ModelFetcher } from '../models.ts'
import { del, json, post, type Reply, type Route } from '../route.ts'
import { Maybe } from '../schema.ts'
import { modelOf, nameOf, untagged } from './models.ts'

const BEGIN = { status: 'pulling manifest' }
const DONE = { status: 'success' }
/** Between two lines of progress. */
const PROGRESS_MS = 250

/** Path → what to do instead. */
const REFUSED: Readonly<Record<string, string>> = {
  '/api/create': 'start the server with the file: skein serve FILE',
  '/api/copy': 'give the model another name with --model-name or `aliases` of the configuration file',
  '/api/push': 'models are not published from here',
}

export function fileRoutes(): readonly Route[] {
  const refused = Object.entries(REFUSED).map(
    ([path, instead]): Route => ({
      method: 'POST',
      path,
      summary: 'Refused: Ollama has it, this server does not',
      body: null,
      handle: () => Promise.reject(notHere(path, instead)),
    }),
  )
  const path = '/api/delete'
  const remove = del(path, 'Refused: Ollama has it, this server does not', () => {
    throw notHere(path, 'remove it where the server runs: skein rm NAME')
  })
  return [pullRoute(), ...refused, remove]
}

function notHere(path: string, instead: string): SkeinError {
  return new SkeinError('unsupported_parameter', `this server has no ${path}; ${instead}`)
}

function pullRoute(): Route {
  const body = Type.Object({
    model: Maybe(Type.String()),
    name: Maybe(Type.String()),
    insecure: Maybe(Type.Boolean()),
    stream: Maybe(Type.Boolean()),
  })
  const summary = 'Succeeds for a model that is served; fetches another one, for admins'
  return post('/api/pull', summary, body, async (call): Promise<Reply> => {
    const { models, fetcher, signal } = call
    const name = nameOf(call.body)
    const events = isServed(models, name) ? only(BEGIN, DONE) : fetched(name, fetcher, signal)
    if (call.body.stream !== false) return { kind: 'events', events }
    for await (const _event of events);
    return json(DONE)
  })
}

function isServed(models: Parameters<typeof modelOf>[0], name: string): boolean {
  try {
    modelOf(models, name)
    return true
  } catch (thrown) {
    if (!(thrown instanceof SkeinError) || thrown.code !== 'not_found') throw thrown
    return false
  }
}

async function* only(...events: object[]): AsyncGenerator<object> {
  yield* events
}

/** The download continues when the client leaves. */
async function* fetched(name: string, fetcher: ModelFetcher | null, signal: AbortSignal): AsyncGenerator<object> {
  if (fetcher === null) {
    const message = `model "${name.slice(0, 100)}" is not served here; a key of an admin may fetch it, or where the server runs: skein pull NAME`
    throw new SkeinError('not_found', message, { param: 'model' })
  }
  let at: FetchProgress | null = fetcher.start(untagged(name))
  const { id } = at
  yield BEGIN
  let [told, pulled] = ['', untagged(name)]
  while (at?.state === 'running') {
    const { file, done_bytes: completed, total_bytes: total } = at
    const now = `${file} ${completed}`
    if (file !== null) pulled = file
    if (file !== null && now !== told) yield progressOf(file, total, completed)
    told = now
    await pause(PROGRESS_MS, undefined, { signal }).catch(() => signal.throwIfAborted())
    at = fetcher.progress(id)
  }
  if (at?.state !== 'done') {
    const reason = at?.reason ?? 'other downloads came after it'
    throw new SkeinError(
      'not_found',
      `model: it could not be fetched: ${reason}; the same request goes on with what has come`,
    )
  }
  yield progressOf(pulled, at.total_bytes, at.done_bytes)
  yield { status: 'verifying sha256 digest' }
  yield DONE
}

function progressOf(file: string, total: number, completed: number): object {
  return { status: `pulling ${file}`, digest: file, total, completed }
}
