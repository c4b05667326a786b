/** Contents of any size as blobs of some megabytes each, so that no more of one is in memory. */
import { randomBytes } from 'node:crypto'
import { joinBytes } from '../files/bytes.ts'
import type { Blobs } from '../state/shared/blobs.ts'
import type { FileReader } from './store.ts'

export interface Part {
  readonly blob: string
  readonly bytes: number
}

const PART_BYTES = 8 * 2 ** 20

export class Parts {
  readonly #blobs: Blobs

  constructor(blobs: Blobs) {
    this.#blobs = blobs
  }

  /** Kept when this resolves. What it had kept when it fails is swept by age. */
  async write(pieces: AsyncIterable<Uint8Array> | Iterable<Uint8Array>): Promise<Part[]> {
    const parts: Part[] = []
    let held: Uint8Array[] = []
    let bytes = 0
    const put = async () => {
      if (bytes === 0) return
      const blob = randomBytes(16).toString('hex')
      await this.#blobs.put(blob, held)
      parts.push({ blob, bytes })
      held = []
      bytes = 0
    }
    for await (const piece of pieces) {
      for (let at = 0; at < piece.length; at += PART_BYTES) {
        const slice = piece.subarray(at, at + PART_BYTES)
        held.push(slice)
        bytes += slice.length
        if (bytes >= PART_BYTES) await put()
      }
    }
    await put()
    return parts
  }

  async read(parts: readonly Part[]): Promise<Uint8Array> {
    const contents: Uint8Array[] = []
    for (const { blob } of parts) contents.push(await this.#blobs.get(blob))
    return joinBytes(contents)
  }

  open(parts: readonly Part[]): FileReader {
    // The part that was read last: whoever reads goes from the beginning to the end.
    let last: { readonly blob: string; readonly content: Uint8Array } | null = null
    return {
      read: async (into, at) => {
        let start = 0
        let count = 0
        for (const { blob, bytes } of parts) {
          const from = at + count - start
          start += bytes
          if (from >= bytes || count === into.length) continue
          if (last?.blob !== blob) last = { blob, content: await this.#blobs.get(blob) }
          const piece = last.content.subarray(from, from + into.length - count)
          into.set(piece, count)
          count += piece.length
        }
        return count
      },
      close: async () => {
        last = null
      },
    }
  }

  async remove(parts: readonly Part[]): Promise<void> {
    for (const { blob } of parts) await this.#blobs.remove(blob)
  }
}
