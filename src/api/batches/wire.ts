/** Files and batches as OpenAI writes them. */
import type { BatchRow, Counts, FileRow } from '../../batches/store.ts'

export function wireFile({ id, filename, purpose, bytes, created, expires }: FileRow): object {
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

export function wireBatch({ id, status, created, data }: BatchRow, counts: Counts): object {
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

/** Of a list, from behind the item named `after`. */
export function pageOf<T extends { readonly id: string }>(
  all: readonly T[],
  { limit, after }: { readonly limit: number; readonly after: string | undefined },
): Page<T> {
  const from = after === undefined ? 0 : all.findIndex(({ id }) => id === after) + 1
  return { items: all.slice(from, from + limit), hasMore: all.length > from + limit }
}

export function wirePage(
  data: readonly object[],
  { items, hasMore }: Page<{ readonly id: string }>,
): object {
  const [first_id, last_id] = [items[0]?.id ?? null, items.at(-1)?.id ?? null]
  return { object: 'list', data, first_id, last_id, has_more: hasMore }
}
