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

/** A page of a list, from behind the item named `after`. */
export function pageOf<T extends { readonly id: string }>(
  all: readonly T[],
  { limit, after }: { readonly limit: number; readonly after: string | undefined },
  wire: (item: T) => object,
): object {
  const from = after === undefined ? 0 : all.findIndex(({ id }) => id === after) + 1
  const page = all.slice(from, from + limit)
  return {
    object: 'list',
    data: page.map(wire),
    first_id: page[0]?.id ?? null,
    last_id: page.at(-1)?.id ?? null,
    has_more: all.length > from + limit,
  }
}
