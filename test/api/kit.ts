/** Shared by the API tests: an app over the fake engine, calls by inject, and parsed event streams. */
import type { FastifyInstance, LightMyRequestResponse } from 'fastify'
import { type AppOptions, buildApp } from '../../src/gateway/app.ts'
import { FAKE_INFO, FakeEngineClient, fakeRegistry, type Script } from '../helpers/fake-engine.ts'

export interface Served {
  readonly app: FastifyInstance
  readonly engine: FakeEngineClient
}

export function serve(script?: Script, options: Partial<AppOptions> = {}, info = FAKE_INFO): Served {
  const engine = new FakeEngineClient(script, info)
  const models = fakeRegistry(engine)
  const app = buildApp({ models, keys: [], host: '127.0.0.1', version: '1.2.3', ...options })
  return { app, engine }
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
