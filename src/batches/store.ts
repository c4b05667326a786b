/**
 * Stores files of clients, batches over them, and their results so far. Everything that a client was told survives a
 * crash.
 */

export interface FileRow {
  readonly id: string
  readonly tenant: string
  readonly filename: string
  readonly purpose: string
  readonly bytes: number
  /** Unix seconds, like all times here. */
  readonly created: number
  readonly expires: number | null
}

export type BatchStatus =
  | 'validating'
  | 'in_progress'
  | 'finalizing'
  | 'completed'
  | 'failed'
  | 'expired'
  | 'cancelling'
  | 'cancelled'

export const UNFINISHED: readonly BatchStatus[] = ['validating', 'in_progress', 'finalizing', 'cancelling']

/** Facts of a batch besides its status; they grow as it runs. */
export interface BatchData {
  readonly endpoint: string
  readonly inputFile: string
  readonly window: string
  readonly metadata: object | null
  readonly expires: number
  /** Seconds that result files are kept; null: until the caller deletes them. */
  readonly outputSeconds: number | null
  /** Lines of the input, once counted. */
  readonly total: number
  readonly outputFile: string | null
  readonly errorFile: string | null
  /** Wrong lines, if the batch cannot run. */
  readonly errors: readonly LineError[]
  /** When it entered each of its later states. */
  readonly times: Readonly<Partial<Record<BatchStatus, number>>>
  /** Counts of the results, once they are in files. */
  readonly counts: Counts | null
}

export interface LineError {
  readonly code: string
  readonly message: string
  readonly line: number | null
  readonly param: string | null
}

export interface BatchRow {
  readonly id: string
  readonly tenant: string
  readonly status: BatchStatus
  readonly created: number
  readonly data: BatchData
}

export interface Counts {
  readonly completed: number
  readonly failed: number
}

export interface ResultFiles {
  readonly output: FileRow | null
  readonly error: FileRow | null
}

export type Facts = Partial<Omit<BatchData, 'times'>>

/** A change of status, if the current one is in `from`. */
export interface Advance {
  readonly from: readonly BatchStatus[]
  readonly status: BatchStatus
  readonly change: Facts
  readonly now: number
}

/** False if the batch has another status. */
export function advance(store: BatchStore, id: string, { from, status, change, now }: Advance): Promise<boolean> {
  return store.change(id, (batch) => {
    if (!from.includes(batch.status)) return null
    const times = { ...batch.data.times, [status]: now }
    return { ...batch, status, data: { ...batch.data, ...change, times } }
  })
}

/** Saves facts of a batch, whatever its status. */
export async function note(store: BatchStore, id: string, facts: Facts): Promise<void> {
  await store.change(id, (batch) => ({ ...batch, data: { ...batch.data, ...facts } }))
}

export interface FileReader {
  /** Fills `into` from this position as far as the file goes; returns the number of bytes. */
  read(into: Uint8Array, at: number): Promise<number>
  close(): Promise<void>
}

/** Stores rows and contents without knowing what they mean. */
export interface BatchStore {
  /** How often a process looks for batches to run. */
  readonly pollMs: number
  /** False if there has never been a file, so there is nothing to look for. */
  readonly isInUse: boolean
  /** Returns false and stores nothing if the tenant's files would exceed `mostBytes`. */
  addFile(row: FileRow, content: Uint8Array, mostBytes: number): Promise<boolean>
  file(tenant: string, id: string): Promise<FileRow | null>
  /** Oldest first. */
  files(tenant: string, purpose: string | null): Promise<readonly FileRow[]>
  read(row: FileRow): Promise<Uint8Array>
  /** Null if the file does not exist any more. */
  openFile(id: string): Promise<FileReader | null>
  removeFile(row: FileRow): Promise<void>
  /** Returns false and stores nothing if the tenant has `most` unfinished batches. */
  addBatch(row: BatchRow, most: number): Promise<boolean>
  batch(tenant: string, id: string): Promise<BatchRow | null>
  /** Newest first. */
  batches(tenant: string): Promise<readonly BatchRow[]>
  /** Of all tenants, oldest first, except batches that other owners are running. */
  unfinished(owner: string): Promise<readonly BatchRow[]>
  /** Replaces the row by what `change` makes of it, while nobody else does. False if there is none, or it makes null. */
  change(id: string, change: (batch: BatchRow) => BatchRow | null): Promise<boolean>
  /** Reserves the batch for seconds. False if another owner runs it or one of the same tenant, or if it has ended. */
  claim(batch: BatchRow, owner: string): Promise<boolean>
  release(owner: string): Promise<void>
  /**
   * The first result of a line counts. False, and nothing is stored, if another owner has the batch or it has ended.
   */
  addResults(batch: string, owner: string, results: readonly LineResult[]): Promise<boolean>
  linesDone(batch: string): Promise<ReadonlySet<number>>
  countsOf(batch: BatchRow): Promise<Counts>
  /** Turns the results into these files and ends the batch, atomically. False if another owner has it. */
  finish(ended: BatchRow, owner: string, files: ResultFiles): Promise<boolean>
  tidy(now: number): Promise<void>
  close(): void
}

export interface LineResult {
  readonly line: number
  readonly isFailed: boolean
  readonly text: string
}
