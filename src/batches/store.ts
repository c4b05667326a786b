/**
 * Stores files that clients sent, batches over them, and the results so far. Everything that a client was told is there
 * after a crash.
 */

export interface FileRow {
  readonly id: string
  readonly tenant: string
  readonly filename: string
  readonly purpose: string
  readonly bytes: number
  /** Unix seconds, as all times here. */
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
  /** Seconds that the files of results are kept; null: as long as the caller wants. */
  readonly outputSeconds: number | null
  /** Lines of the input, once they were read. */
  readonly total: number
  readonly outputFile: string | null
  readonly errorFile: string | null
  /** Lines at fault, where there is nothing to run. */
  readonly errors: readonly LineError[]
  /** When it came into each of its later states. */
  readonly times: Readonly<Partial<Record<BatchStatus, number>>>
  /** Counts of the results, once they are files. */
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

/** The result files, where there are any. */
export interface ResultFiles {
  readonly output: FileRow | null
  readonly error: FileRow | null
}

/** A change of a batch's status, where it is one of `from`. */
export interface Advance {
  readonly from: readonly BatchStatus[]
  readonly status: BatchStatus
  readonly change: Partial<Omit<BatchData, 'times'>>
  readonly now: number
}

/** The content of a file. */
export interface FileReader {
  /** Fills `into` with what begins there, as far as there is any; returns how many bytes that was. */
  read(into: Uint8Array, at: number): Promise<number>
  close(): Promise<void>
}

/** Rows and contents, not what they mean. */
export interface BatchStore {
  /** How often a process looks for batches to run. */
  readonly pollMs: number
  /** False where no file has ever come: there is nothing to look for. */
  readonly isInUse: boolean
  /** False, and nothing is kept, where all files of the tenant would have more than `mostBytes`. */
  addFile(row: FileRow, content: Uint8Array, mostBytes: number): Promise<boolean>
  file(tenant: string, id: string): Promise<FileRow | null>
  /** Oldest first. */
  files(tenant: string, purpose: string | null): Promise<readonly FileRow[]>
  read(row: FileRow): Promise<Uint8Array>
  /** Null: there is no such file any more. */
  openFile(id: string): Promise<FileReader | null>
  removeFile(row: FileRow): Promise<void>
  /** False, and nothing is kept, where the tenant has `most` that are not done. */
  addBatch(row: BatchRow, most: number): Promise<boolean>
  batch(tenant: string, id: string): Promise<BatchRow | null>
  /** Latest first. */
  batches(tenant: string): Promise<readonly BatchRow[]>
  /** Of all tenants, oldest first, except those that owners other than `owner` run. */
  unfinished(owner: string): Promise<readonly BatchRow[]>
  /** False where it is in another status. */
  advance(id: string, advance: Advance): Promise<boolean>
  /** Saves facts of a batch, whatever its status. */
  note(id: string, change: Advance['change']): Promise<void>
  /** Nobody else runs it for some seconds; false where somebody does, or runs another of its tenant, or it has ended. */
  claim(batch: BatchRow, owner: string): Promise<boolean>
  release(owner: string): Promise<void>
  /** The first result of a line counts. False, and nothing is kept, where another has the batch, or it has ended. */
  addResults(batch: string, owner: string, results: readonly LineResult[]): Promise<boolean>
  linesDone(batch: string): Promise<ReadonlySet<number>>
  countsOf(batch: BatchRow): Promise<Counts>
  /** The results become the files of these rows, and the batch ends; all of it or, after a crash or for another's, nothing. */
  finish(ended: BatchRow, owner: string, files: ResultFiles): Promise<boolean>
  /** Removes files whose time is over. */
  tidy(now: number): Promise<void>
  close(): void
}

export interface LineResult {
  readonly line: number
  readonly isFailed: boolean
  readonly text: string
}
