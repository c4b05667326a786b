/**
 * Runs requests of batches through the routes that answer them over HTTP: same checks, same replies, but no connection.
 * They use spare capacity of the models and do not count against the limits of a key.
 */
import { randomUUID } from 'node:crypto'
import type { FastifyBaseLogger } from 'fastify'
import { BATCH_ENDPOINTS } from '../../api/batches/dialect.ts'
import { type AskedRow, BatchRunner, type RowOutcome, type RowRunner } from '../../api/batches/runner.ts'
import type { LiveCalls } from '../../api/live-calls.ts'
import type { ModelRegistry } from '../../api/models.ts'
import { openAiDialect } from '../../api/openai/dialect.ts'
import { responsesDialect } from '../../api/responses/dialect.ts'
import type { Call, Dialect, Route } from '../../api/route.ts'
import { PRIORITIES, type UrgencyFields } from '../../api/schema.ts'
import type { BatchStore } from '../../batches/store.ts'
import { assert, SkeinError } from '../../errors.ts'
import { NO_LIMITS } from '../access/keys.ts'
import { urgentModels } from '../access/urgency.ts'
import { type Complaint, describeInvalid } from '../body/body.ts'
import { withTurnOrigin } from '../routing/turn-origin.ts'
import { failureOf, isWorthRetrying, publicError } from './errors.ts'
import type { Limits } from './limits.ts'
import { AJV_OPTIONS, sharedValidators } from './validators.ts'

export interface BatchOptions {
  /** Stores files of requests and their batches. Absent: batches are not accepted. */
  readonly batches?: BatchStore
  /** Runs the requests of batches. Absent: this server's models do. */
  readonly batchRows?: RowRunner
}

interface RowOptions {
  readonly models: ModelRegistry
  readonly limits: Limits
  readonly live: LiveCalls
  /** Absent: silent. */
  readonly logger?: FastifyBaseLogger | undefined
}

/** The share of a model's slots that batches leave free for other requests. */
const SPARED = 1 / 4

export function sparedSlots(slots: number): number {
  return Math.floor(SPARED * slots)
}

/** Runs the store's batches from `start` until `stop`. Null without a store. */
export function batchRunnerOf({ batches: store, batchRows }: BatchOptions, options: RowOptions): BatchRunner | null {
  if (store === undefined) return null
  const { limits, logger } = options
  const bounds = { lines: limits.batchRequests, lineBytes: limits.batchLineBytes }
  const onError = (err: unknown) => logger?.error({ err }, 'a batch could not continue')
  return new BatchRunner({ store, rows: batchRows ?? new Rows(options), bounds, onError })
}

interface Answering {
  readonly dialect: Dialect
  readonly route: Route
  readonly check: (body: object) => void
}

class Rows implements RowRunner {
  readonly #options: RowOptions
  readonly #answering = new Map<string, Answering>()

  constructor(options: RowOptions) {
    this.#options = options
    const dialects = [openAiDialect, responsesDialect].map((of) => of(options.limits, options.live))
    for (const endpoint of BATCH_ENDPOINTS) {
      const dialect = dialects.find(({ routes }) => routes.some(isPost(endpoint)))
      const route = dialect?.routes.find(isPost(endpoint))
      assert(dialect !== undefined && route !== undefined, `no route at ${endpoint}`)
      this.#answering.set(endpoint, { dialect, route, check: checkOf(route) })
    }
  }

  hasRoom(body: object, running: number): boolean {
    try {
      const { model } = body as { readonly model?: unknown }
      const { client } = this.#options.models.get(typeof model === 'string' ? model : null)
      const { waiting, freeSlots } = client.stats
      const spared = sparedSlots(client.info.numSlots)
      return running < client.info.numSlots - spared && waiting === 0 && freeSlots > spared
    } catch (error) {
      // An unknown model is reported in the answer; a loading model is waited for.
      return SkeinError.from(error).code !== 'model_not_loaded'
    }
  }

  async run(row: AskedRow, signal: AbortSignal): Promise<RowOutcome> {
    const { body, tenant } = row
    const { route, dialect, check } = this.#answering.get(row.endpoint)!
    const { limits } = this.#options
    const models = withTurnOrigin(this.#options.models, row.id)
    const id = randomUUID().replaceAll('-', '')
    const warnings: string[] = []
    const outcome = (status: number, body: object) => {
      return { status, requestId: id, body, warnings: warnings.join('. ') || null }
    }
    const call = (): Call => ({
      ...{ id, body, tenant, limits, signal },
      // The limits of a key do not apply to batches.
      models: urgentModels(models, route, behindOthers(body), NO_LIMITS),
      params: {},
      query: {},
      admin: null,
      fetcher: null,
      now: Math.floor(Date.now() / 1000),
      report: (thrown) => this.#report(thrown, id),
      warn: (message) => warnings.push(message),
    })
    try {
      check(body)
      const reply = await route.handle(call())
      if (reply.kind === 'json-bytes') return outcome(200, JSON.parse(Buffer.concat(reply.chunks).toString()))
      assert(reply.kind === 'json' && typeof reply.body === 'object', 'a reply that is no object')
      return outcome(reply.status ?? 200, reply.body)
    } catch (thrown) {
      const { error, status } = failureOf(thrown, limits.batchLineBytes)
      if (signal.aborted || isWorthRetrying(error)) throw thrown
      return outcome(status, dialect.renderError(this.#report(thrown, id)))
    }
  }

  #report(thrown: unknown, id: string): SkeinError {
    const { error } = failureOf(thrown, this.#options.limits.batchLineBytes)
    const shown = publicError(error, id, false)
    if (shown !== error) this.#options.logger?.error({ err: error, id }, 'request of a batch failed')
    return shown
  }
}

function isPost(endpoint: string) {
  return ({ path, method, claims }: Route) => path === endpoint && method === 'POST' && claims === undefined
}

/** The check is compiled at its first use. */
function checkOf({ path, body }: Route): (body: object) => void {
  let isValid: ReturnType<ReturnType<typeof sharedValidators>> | null = null
  return (value) => {
    isValid ??= sharedValidators({}, AJV_OPTIONS)({ schema: body, method: 'POST', url: path, httpPart: 'body' })
    // The validator's errors are Ajv's, as for a request over HTTP.
    if (isValid(value) !== true) throw describeInvalid((isValid.errors ?? []) as Complaint[])
  }
}

/** Lowers the priority of batch rows, also while they run, so that they give up their slots, unless the row sets one. */
function behindOthers(body: UrgencyFields): UrgencyFields {
  return { ...body, priority: body.priority ?? PRIORITIES[0] }
}
