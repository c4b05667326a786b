/** Shared by the API tests: an app over the fake engine, calls by inject, and parsed event streams. */
import type { FastifyInstance, LightMyRequestResponse } from 'fastify'
import { onTestFinished } from 'vitest'
import type { ModelRegistry } from '../../src/api/models.ts'
import { type AppOptions, buildApp } from '../../src/gateway/app.ts'
import { answer, FAKE_INFO, FakeEngineClient, fakeRegistry, promptOf, type Script } from '../helpers/fake-engine.ts'

export interface Served {
  readonly app: FastifyInstance
  readonly engine: FakeEngineClient
}

/** Half of the time of many tests is the making of an app, so a test without options takes one that another has left. */
const left: Lent[] = []

interface Lent {
  readonly app: FastifyInstance
  engine: FakeEngineClient
  isClosed: boolean
}

export function serve(script?: Script, options?: Partial<AppOptions>, info = FAKE_INFO): Served {
  const engine = new FakeEngineClient(script, info)
  if (options !== undefined || info !== FAKE_INFO) return { app: appOver(fakeRegistry(engine), options), engine }
  const lent = left.pop() ?? newLent(engine)
  lent.engine = engine
  try {
    onTestFinished(() => {
      if (!lent.isClosed && !lent.app.server.listening) left.push(lent)
    })
  } catch {
    // Outside a test: it is this file's for good.
  }
  return { app: lent.app, engine }
}

/** An app that nobody had before: for tests of what it counts, or that leave it broken. */
export function serveAlone(script?: Script): Served {
  return serve(script, {})
}

function newLent(engine: FakeEngineClient): Lent {
  const registryNow = () => fakeRegistry(lent.engine)
  const models: ModelRegistry = { list: () => registryNow().list(), get: (name) => registryNow().get(name) }
  const lent: Lent = { engine, app: appOver(models), isClosed: false }
  lent.app.addHook('onClose', async () => {
    lent.isClosed = true
  })
  return lent
}

function appOver(models: ModelRegistry, options: Partial<AppOptions> = {}): FastifyInstance {
  return buildApp({ models, keys: [], host: '127.0.0.1', version: '1.2.3', ...options })
}

export function postTo(app: FastifyInstance, url: string, payload: object): Promise<LightMyRequestResponse> {
  return app.inject({ method: 'POST', url, payload })
}

/** The data of each event, parsed; '[DONE]' stays a string. */
export function eventsOf(body: string): unknown[] {
  return body
    .split('\n\n')
    .filter((block) => block.startsWith('data: '))
    .map((block) => block.slice('data: '.length))
    .map((data) => (data === '[DONE]' ? data : JSON.parse(data)))
}

/** Replaces values that change from run to run. */
export function steady<T>(value: T): T {
  const text = JSON.stringify(value)
    .replace(/(chatcmpl|cmpl)-[0-9a-f]{32}/g, '$1-ID')
    .replace(/"created":\d+/g, '"created":0')
  return JSON.parse(text) as T
}

export const CHAT = '/v1/chat/completions'
export const COMPLETIONS = '/v1/completions'
export const HELLO = { messages: [{ role: 'user', content: 'Hi' }] }

/** Where the app listens, from the first call on. */
export async function urlOf(app: FastifyInstance): Promise<string> {
  return app.server.listening ? app.listeningOrigin : app.listen({ host: '127.0.0.1', port: 0 })
}

const CALL = 'I look.\n```json\n{"name":"weather","arguments":{"place":"Oslo"}}\n```'

/** Words of the prompt, and what it ends with, choose the answer. */
export const scripted: Script = (request) => {
  const { id } = request
  const text = promptOf(request)
  if (text.includes('FULL')) return [{ type: 'error', id, error: { code: 'queue_full', message: 'full' } }]
  if (text.includes('MID')) {
    const error = { code: 'kernel_failed', message: 'broke' } as const
    return [...[...answer(request, 'ab')].slice(0, 3), { type: 'error', id, error }]
  }
  if (text.includes('Function output')) return answer(request, ' It is cold.')
  if (text.includes('Tools:')) return answer(request, ` ${CALL}`)
  if (text.endsWith('<think')) return answer(request, '>\nHm.\n</think>\nYes, 世界')
  return answer(request, ' Yes, 世界', text.includes('LONG') ? 'length' : 'stop')
}
