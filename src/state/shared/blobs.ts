/**
 * Storage of large states that all nodes see: a folder of a shared file system, or a bucket. A blob is there whole or not
 * at all, under a name that is never used again; which of them are wanted is the database's business.
 */

export interface BlobInfo {
  readonly name: string
  /** Milliseconds since 1970, by the storage's clock. */
  readonly changedAt: number
}

export interface Blobs {
  /** Resolves when it is kept whatever happens to this machine. Names are letters, digits and hyphens. */
  put(name: string, parts: readonly Uint8Array[]): Promise<void>
  /** Rejects where there is none of that name. */
  get(name: string): Promise<Uint8Array>
  /** It need not be there. */
  remove(name: string): Promise<void>
  list(): AsyncIterable<BlobInfo>
}
