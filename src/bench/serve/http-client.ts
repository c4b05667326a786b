/**
 * An HTTP client for loads: keep-alive connections, one per request in flight, one deadline per exchange, and each
 * piece of a body as it arrives. It knows no API.
 */

import { type ClientRequest, Agent as HttpAgent, request as httpRequest, type IncomingMessage } from 'node:http'
import { Agent as HttpsAgent, request as httpsRequest } from 'node:https'
import { parsedJson } from '../../files/bytes.ts'

/** Shorter than the idle timeout of usual servers (5 s), so that no connection is reused while it closes. */
const IDLE_MS = 2000

/** Why an exchange failed; `reason` groups failures. */
export class ExchangeError extends Error {
  /** `timeout`, `connection`, `http 503`, … */
  readonly reason: string

  constructor(reason: string, message: string) {
    super(message)
    this.reason = reason
  }
}

export interface Reply {
  readonly status: number
  readonly isJson: boolean
  /** Reads the body to its end. Call it once. */
  read(onBytes: (bytes: Uint8Array) => void): Promise<void>
}

export class HttpClient {
  readonly #base: URL
  readonly #agent: HttpAgent
  readonly #headers: Record<string, string>
  readonly #timeoutMs: number

  constructor(url: string, apiKey: string | undefined, timeoutMs: number) {
    this.#base = new URL(url)
    const options = { keepAlive: true, timeout: IDLE_MS }
    this.#agent = this.#base.protocol === 'https:' ? new HttpsAgent(options) : new HttpAgent(options)
    this.#headers = apiKey === undefined ? {} : { authorization: `Bearer ${apiKey}` }
    this.#timeoutMs = timeoutMs
  }

  /** Sends JSON with POST, or GET without a body. Resolves with the head of the reply. */
  send(path: string, body?: object): Promise<Reply> {
    const text = body === undefined ? '' : JSON.stringify(body)
    const request = this.#open(path, body === undefined ? 'GET' : 'POST', text)
    const failure = new Promise<never>((_, reject) => {
      const timer = setTimeout(() => {
        reject(new ExchangeError('timeout', `no end of the reply within ${this.#timeoutMs} ms`))
        request.destroy()
      }, this.#timeoutMs)
      request.on('error', (error) => reject(new ExchangeError('connection', error.message)))
      request.on('close', () => clearTimeout(timer))
    })
    // Awaiting races report the failure; between two of them nobody does, and it must not count as unhandled.
    failure.catch(() => {})
    const head = new Promise<Reply>((resolve) => {
      request.on('response', (response) => resolve(replyOf(response, failure)))
    })
    request.end(text)
    return Promise.race([head, failure])
  }

  dispose(): void {
    this.#agent.destroy()
  }

  #open(path: string, method: string, text: string): ClientRequest {
    const { protocol, pathname } = this.#base
    const target = new URL(this.#base)
    target.pathname = `${pathname.replace(/\/+$/, '')}${path}`
    const content = method === 'GET' ? {} : { 'content-type': 'application/json' }
    const length = { 'content-length': String(Buffer.byteLength(text)) }
    const headers = { accept: '*/*', ...this.#headers, ...content, ...length }
    const open = protocol === 'https:' ? httpsRequest : httpRequest
    return open(target, { method, agent: this.#agent, headers })
  }
}

function replyOf(response: IncomingMessage, failure: Promise<never>): Reply {
  const { statusCode = 0, headers } = response
  return {
    status: statusCode,
    isJson: headers['content-type']?.includes('application/json') === true,
    read(onBytes) {
      const end = new Promise<void>((resolve, reject) => {
        response.on('data', onBytes)
        response.on('end', resolve)
        // This also runs after `end`, when it no longer matters.
        response.on('close', () => reject(new ExchangeError('connection', 'the connection closed within the reply')))
        response.on('error', () => {})
      })
      return Promise.race([end, failure])
    },
  }
}

export async function readJson(reply: Reply): Promise<unknown> {
  const text = await readText(reply)
  return parsedJson(text) ?? text
}

export async function readText(reply: Reply): Promise<string> {
  const pieces: Uint8Array[] = []
  await reply.read((bytes) => pieces.push(bytes))
  return Buffer.concat(pieces).toString()
}
