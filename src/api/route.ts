/**
 * A wire dialect as data: a list of routes, each a body schema and a function from a call to a reply, and the shape
 * of its errors. The gateway mounts routes on HTTP and writes them into the OpenAPI page; no dialect knows of sockets,
 * headers or Fastify.
 */

import type { SkeinError } from '../errors.ts'
import type { Static, TSchema } from '../files/schema-types.ts'
import { checkFields, type UnreadFields } from './fields.ts'
import { jsonAround } from './json-around.ts'
import type { RequestLimits } from './limits.ts'
import type { MixtureAdmin, ModelAdmin, ModelFetcher, ModelRegistry } from './models.ts'
import type { StreamForm } from './stream-form.ts'

export interface Call<Body = unknown> {
  /** 128 random bits in hex; dialects put their prefix before it. */
  readonly id: string
  readonly body: Body
  /** Path parameters, decoded. */
  readonly params: Readonly<Record<string, string>>
  /** Fields of the query string; the last one wins. */
  readonly query: Readonly<Record<string, string>>
  readonly models: ModelRegistry
  /** Null where the models are fixed. */
  readonly admin: (ModelAdmin & MixtureAdmin) | null
  /** Null where nothing can be fetched, and for callers without the right. */
  readonly fetcher: ModelFetcher | null
  readonly limits: RequestLimits
  /** Aborts when the client has gone, in every phase. */
  readonly signal: AbortSignal
  /** Unix seconds at which the call arrived. */
  readonly now: number
  /** The owner of the call; states and live requests of one tenant are invisible to others. */
  readonly tenant: string
  /** Counts and logs an error that becomes part of a reply, and gives what the client may see of it. */
  readonly report: (thrown: unknown) => SkeinError
  /** Adds to the header `warnings` of the reply, until its first byte has gone. */
  readonly warn: (message: string) => void
}

export type Reply =
  /** Status 200 unless another is given. */
  | { readonly kind: 'json'; readonly body: object | string; readonly status?: number }
  /** As it is sent, where writing it takes longer than others should wait. */
  | { readonly kind: 'json-bytes'; readonly chunks: readonly Uint8Array[] }
  | { readonly kind: 'bytes'; readonly bytes: Uint8Array }
  /**
   * One object per event, written in the dialect's form of streams. The first is produced before any header is written,
   * so an error up to then is a proper HTTP error.
   */
  | { readonly kind: 'events'; readonly events: AsyncIterable<object> }

/** A form with one file, in the field `file`. */
export interface FormBody {
  readonly fields: Readonly<Record<string, string>>
  readonly file: { readonly name: string; readonly bytes: Uint8Array } | null
}

/**
 * How a caller shows its key. `header` (the rule): in the Authorization header or one of the dialect's own, looked at before
 * anything else.
 * `password`: there, or as the field `password` of the body. `translate`: like `password`, and open to all where the operator
 * says so, for browser extensions that can send neither.
 */
export type Access = 'header' | 'password' | 'translate'

/**
 * Roles of keys; each includes those before it. `user` asks models, `operator` also runs the server (workers, models,
 * everybody's figures), `admin` also gives and takes keys.
 */
export const ROLES = ['user', 'operator', 'admin'] as const
export type Role = (typeof ROLES)[number]

export interface Route {
  readonly method: 'GET' | 'POST' | 'DELETE'
  /** With `:name` for parameters. */
  readonly path: string
  /** One line for the OpenAPI page. */
  readonly summary: string
  readonly body: TSchema | null
  /** A call without any body is one with {}. */
  readonly mayLackBody?: boolean
  /** The body is a multipart form and arrives as a FormBody. */
  readonly takesForm?: boolean
  /** The body is a file (application/octet-stream) and arrives as a Uint8Array. */
  readonly takesBytes?: boolean
  readonly givesBytes?: boolean
  /** Absent: `header`. */
  readonly access?: Access
  /** The least role that may call it. Absent: `user`. */
  readonly role?: Role
  /**
   * Who answers at the front gateway of a cluster: the gateway itself, one node, any node (of what all share), or every node in turn until one knows what is
   * named. Absent: a node for calls with a body, the gateway for others; a route for operators changes one node, and a front refuses it.
   */
  readonly inCluster?: 'here' | 'node' | 'any' | 'every'
  /**
   * Several dialects may have a route at one path: the first whose `claims` says yes to the (unvalidated) body answers,
   * in its own shapes; the one without `claims` takes what is left.
   */
  claims?(body: unknown): boolean
  handle(call: Call): Promise<Reply>
}

export interface Dialect {
  /** The tag of its routes on the OpenAPI page. */
  readonly name: string
  /** Whose API the tag stands for, or its purpose. */
  readonly about: string
  readonly routes: readonly Route[]
  /** How its streams are written; absent: as OpenAI's. */
  readonly stream?: StreamForm
  /** Headers in lower case that may carry the key as it is, beside `Authorization: Bearer`. */
  readonly keyHeaders?: readonly string[]
  /** The JSON of an error, for a body or for an event inside a stream. */
  renderError(error: SkeinError): object
  /** The HTTP status of an error where it is not that of the error's code. */
  statusOf?(error: SkeinError): number | undefined
}

/** A POST route whose handler sees the type its schema describes. `unread`: what becomes of fields that the schema does not have. */
export function post<T extends TSchema>(
  path: string,
  summary: string,
  body: T,
  handle: (call: Call<Static<T>>) => Promise<Reply>,
  unread?: UnreadFields,
): Route {
  // Bodies with fields are objects.
  const read = Object.keys((body as { readonly properties?: object }).properties ?? {})
  const check = unread === undefined ? null : { ...unread, read }
  return {
    method: 'POST',
    path,
    summary,
    body,
    async handle(call) {
      if (check !== null) checkFields(call.body as object, check, call.warn)
      // The gateway validates the body against this very schema before it calls.
      return handle(call as Call<Static<T>>)
    },
  }
}

export function mayLackBody(route: Route): Route {
  return { ...route, mayLackBody: true }
}

export function get(path: string, summary: string, handle: (call: Call) => Promise<Reply> | Reply): Route {
  return { method: 'GET', path, summary, body: null, handle: async (call) => handle(call) }
}

export function del(path: string, summary: string, handle: (call: Call) => Promise<Reply> | Reply): Route {
  return { ...get(path, summary, handle), method: 'DELETE' }
}

export function operators(route: Route): Route {
  return { ...route, role: 'operator' }
}

export function inCluster(answerer: NonNullable<Route['inCluster']>): (route: Route) => Route {
  return (route) => ({ ...route, inCluster: answerer })
}

export function json(body: object | string, status = 200): Reply {
  return { kind: 'json', body, status }
}

/** A body that has WRITTEN where `parts` are to be, one after the other. */
export function longJson(body: object, parts: readonly Uint8Array[]): Reply {
  const chunks = jsonAround(body).flatMap((text, i) => [Buffer.from(text), ...parts.slice(i, i + 1)])
  return { kind: 'json-bytes', chunks }
}

export function bytes(content: Uint8Array): Reply {
  return { kind: 'bytes', bytes: content }
}
