/** OpenAI's /v1/files and /v1/batches: requests by the file, answered with what the models have to spare. */
import { randomUUID } from 'node:crypto'
import { advance, type BatchRow, type BatchStore, type Counts, type FileRow, UNFINISHED } from '../../batches/store.ts'
import { invalid, SkeinError } from '../../errors.ts'
import { type Static, Type } from '../../files/schema-types.ts'
import type { RequestLimits } from '../limits.ts'
import { renderOpenAiError } from '../openai/errors.ts'
import { bytes, type Call, type Dialect, del, type FormBody, get, inCluster, json, post, type Route } from '../route.ts'
import { BoundedInteger, Matching, Maybe } from '../schema.ts'

export const BATCH_ENDPOINTS = ['/v1/chat/completions', '/v1/completions', '/v1/embeddings', '/v1/responses'] as const

/** The store and limits of the routes; null where nothing can be kept. */
export interface BatchService {
  readonly store: BatchStore
  /** Told that a batch has come, or that its status has changed. */
  wake(): void
}

const HOUR = 3600
const DAY = 24 * HOUR

export function batchesDialect(limits: RequestLimits, service: BatchService | null): Dialect {
  const routes = new BatchRoutes(limits, service)
  return {
    name: 'batches',
    about: 'Files of requests, run with what is to spare',
    // A front gateway keeps no files, and says so.
    routes: [...routes.ofFiles(), ...routes.ofBatches()].map(inCluster('any')),
    renderError: renderOpenAiError,
  }
}

const EXPIRY = Type.Object({ anchor: Type.Literal('created_at'), seconds: BoundedInteger(HOUR, 30 * DAY) })

const BATCH = Type.Object({
  input_file_id: Type.String(),
  endpoint: Type.Enum([...BATCH_ENDPOINTS]),
  completion_window: Matching('^([1-9]|[1-9][0-9]|1[0-5][0-9]|16[0-8])h$', '"24h", or other hours up to "168h"'),
  metadata: Maybe(Type.Record(Type.String({ maxLength: 64 }), Type.String({ maxLength: 512 }))),
  output_expires_after: Maybe(EXPIRY),
})

class BatchRoutes {
  readonly #limits: RequestLimits
  readonly #service: BatchService | null

  constructor(limits: RequestLimits, service: BatchService | null) {
    this.#limits = limits
    this.#service = service
  }

  ofFiles(): Route[] {
    return [
      {
        method: 'POST',
        path: '/v1/files',
        summary: 'Keep a file of requests (multipart form: file, purpose)',
        body: null,
        takesForm: true,
        // The gateway makes a form of such a body before it calls.
        handle: async (call) => json(wireFile(await this.#keep(call as Call<FormBody>))),
      },
      get('/v1/files', 'The files, oldest first', async ({ tenant, query }) => {
        const oldestFirst = await this.#store.files(tenant, query.purpose ?? null)
        // OpenAI's order unless another is asked for.
        const all = query.order === 'asc' ? oldestFirst : oldestFirst.toReversed()
        const page = pageOf(all, pageAsked(query, 10_000))
        return json(wirePage(page.items.map(wireFile), page))
      }),
      get('/v1/files/:id', 'One file, without its content', async (call) => json(wireFile(await this.#file(call)))),
      {
        ...get('/v1/files/:id/content', 'The content of a file', async (call) =>
          bytes(await this.#store.read(await this.#file(call))),
        ),
        givesBytes: true,
      },
      del('/v1/files/:id', 'Forget a file', async (call) => json(await this.#forget(call))),
    ]
  }

  ofBatches(): Route[] {
    return [
      post(
        '/v1/batches',
        'Run the requests of a file',
        BATCH,
        async (call) => json(await this.#wire(await this.#begin(call))),
        { harmless: [], refused: {} },
      ),
      get('/v1/batches', 'The batches, latest first', async ({ tenant, query }) => {
        const page = pageOf(await this.#store.batches(tenant), pageAsked(query, 100))
        return json(wirePage(await Promise.all(page.items.map((row) => this.#wire(row))), page))
      }),
      get('/v1/batches/:id', 'One batch and how far it is', async (call) =>
        json(await this.#wire(await this.#batch(call))),
      ),
      {
        method: 'POST',
        path: '/v1/batches/:id/cancel',
        summary: 'Run no more requests of a batch',
        body: null,
        handle: async (call) => json(await this.#wire(await this.#cancel(call))),
      },
    ]
  }

  get #store(): BatchStore {
    return this.#needed.store
  }

  get #needed(): BatchService {
    if (this.#service !== null) return this.#service
    const message = 'this server keeps no files; start it with a data folder (--data-dir, and without --no-store)'
    throw new SkeinError('not_found', message)
  }

  async #wire(row: BatchRow): Promise<object> {
    return wireBatch(row, await this.#store.countsOf(row))
  }

  async #keep({ body, tenant, now, id }: Call<FormBody>): Promise<FileRow> {
    const store = this.#store
    const { fields, file } = body
    if (file === null) throw invalid('file', 'missing; expected a file of a line per request')
    if (fields.purpose !== 'batch') throw invalid('purpose', 'expected "batch": files are for /v1/batches here')
    const size = file.bytes.length
    const { fileBytes, tenantFileBytes } = this.#limits
    if (size > fileBytes) throw tooLarge(`the file has ${size} bytes, more than ${fileBytes}`)
    const row: FileRow = {
      id: `file-${id}`,
      tenant,
      filename: file.name.slice(0, 256),
      purpose: 'batch',
      bytes: size,
      created: now,
      expires: expiryOf(fields, now),
    }
    if (await store.addFile(row, file.bytes, tenantFileBytes)) return row
    throw tooLarge(`all files may have ${tenantFileBytes} bytes; delete some (DELETE /v1/files/{id})`)
  }

  async #file({ tenant, params }: Call): Promise<FileRow> {
    const file = await this.#store.file(tenant, params.id!)
    if (file !== null) return file
    throw new SkeinError('not_found', 'no file of that id', { param: 'id' })
  }

  async #forget(call: Call): Promise<object> {
    const file = await this.#file(call)
    const isUsed = (row: BatchRow) => row.data.inputFile === file.id && UNFINISHED.includes(row.status)
    const user = (await this.#store.batches(call.tenant)).find(isUsed)
    if (user !== undefined) throw new SkeinError('conflict', `${user.id} is running it; cancel that first`)
    await this.#store.removeFile(file)
    return { id: file.id, object: 'file', deleted: true }
  }

  async #begin({ body, tenant, now }: Call<Static<typeof BATCH>>): Promise<BatchRow> {
    const service = this.#needed
    const { store } = service
    const input = await store.file(tenant, body.input_file_id)
    if (input === null || input.purpose !== 'batch') throw invalid('input_file_id', 'no file of that id and purpose')
    const row: BatchRow = {
      id: `batch_${randomUUID().replaceAll('-', '')}`,
      tenant,
      status: 'validating',
      created: now,
      data: {
        endpoint: body.endpoint,
        inputFile: input.id,
        window: body.completion_window,
        metadata: body.metadata ?? null,
        expires: now + HOUR * Number.parseInt(body.completion_window, 10),
        outputSeconds: body.output_expires_after?.seconds ?? null,
        total: 0,
        outputFile: null,
        errorFile: null,
        errors: [],
        times: {},
        counts: null,
      },
    }
    const { tenantBatches } = this.#limits
    if (!(await store.addBatch(row, tenantBatches))) {
      const message = `${tenantBatches} batches are not done yet, which is the limit; wait for one or cancel it`
      throw new SkeinError('rate_limited', message)
    }
    service.wake()
    return row
  }

  async #batch({ tenant, params }: Call): Promise<BatchRow> {
    const batch = await this.#store.batch(tenant, params.id!)
    if (batch !== null) return batch
    throw new SkeinError('not_found', 'no batch of that id', { param: 'id' })
  }

  async #cancel(call: Call): Promise<BatchRow> {
    const service = this.#needed
    const batch = await this.#batch(call)
    if (batch.status === 'cancelling') return batch
    const from = ['validating', 'in_progress'] as const
    const cancel = { from, status: 'cancelling', change: {}, now: call.now } as const
    if (!(await advance(service.store, batch.id, cancel))) {
      const { status } = await this.#batch(call)
      throw new SkeinError('conflict', `the batch is ${status}; there is nothing to cancel`)
    }
    service.wake()
    return this.#batch(call)
  }
}

/** OpenAI's form has it as fields with brackets. */
function expiryOf(fields: FormBody['fields'], now: number): number | null {
  const seconds = fields['expires_after[seconds]']
  if (seconds === undefined) return null
  const number = Number(seconds)
  if (!Number.isInteger(number) || number < HOUR || number > 30 * DAY)
    throw invalid('expires_after[seconds]', `expected a number from ${HOUR} to ${30 * DAY}`)
  return now + number
}

function pageAsked({ limit, after }: Readonly<Record<string, string>>, most: number) {
  const number = limit === undefined ? Math.min(20, most) : Number(limit)
  if (!Number.isInteger(number) || number < 1 || number > most)
    throw invalid('limit', `expected a number from 1 to ${most}`)
  return { limit: limit === undefined && most > 100 ? most : number, after }
}

function tooLarge(message: string): SkeinError {
  return new SkeinError('too_large', message, { param: 'file' })
}

function wireFile({ id, filename, purpose, bytes, created, expires }: FileRow): object {
  return {
    id,
    object: 'file',
    bytes,
    created_at: created,
    ...(expires === null ? {} : { expires_at: expires }),
    filename,
    purpose,
    status: 'processed',
  }
}

function wireBatch({ id, status, created, data }: BatchRow, counts: Counts): object {
  const { times } = data
  const errors = data.errors.length === 0 ? null : { object: 'list', data: data.errors }
  return {
    id,
    object: 'batch',
    endpoint: data.endpoint,
    errors,
    input_file_id: data.inputFile,
    completion_window: data.window,
    status,
    output_file_id: data.outputFile,
    error_file_id: data.errorFile,
    created_at: created,
    in_progress_at: times.in_progress ?? null,
    expires_at: data.expires,
    finalizing_at: times.finalizing ?? null,
    completed_at: times.completed ?? null,
    failed_at: times.failed ?? null,
    expired_at: times.expired ?? null,
    cancelling_at: times.cancelling ?? null,
    cancelled_at: times.cancelled ?? null,
    request_counts: { total: data.total, ...counts },
    metadata: data.metadata,
  }
}

interface Page<T> {
  readonly items: readonly T[]
  readonly hasMore: boolean
}

/** A page of a list, after the item named `after`. */
function pageOf<T extends { readonly id: string }>(
  all: readonly T[],
  { limit, after }: { readonly limit: number; readonly after: string | undefined },
): Page<T> {
  const from = after === undefined ? 0 : all.findIndex(({ id }) => id === after) + 1
  return { items: all.slice(from, from + limit), hasMore: all.length > from + limit }
}

function wirePage(data: readonly object[], { items, hasMore }: Page<{ readonly id: string }>): object {
  const [first_id, last_id] = [items[0]?.id ?? null, items.at(-1)?.id ?? null]
  return { object: 'list', data, first_id, last_id, has_more: hasMore }
}
