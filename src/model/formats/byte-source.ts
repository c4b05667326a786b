/**
 * Random access to the bytes of an untrusted file. Every read is checked against the file's size before memory is
 * allocated, so a header cannot make a reader allocate more than the file holds.
 */
import { SkeinError } from '../../errors.ts'

export interface ByteSource {
  readonly path: string
  readonly size: number
  /** Fills the whole target from `offset` on. The range lies inside the file: callers check, or use readBytes. */
  readInto(target: Uint8Array, offset: number): void
  /** Memory that large ranges are read into fastest; null where there is none, or somebody has it. */
  takeBuffer?(): Uint8Array | null
  close(): void
}

/** A fresh copy of bytes [offset, offset + length); `what` names them if they lie outside the file. */
export function readBytes(source: ByteSource, offset: number, length: number, what: string): Uint8Array {
  checkRange(source, offset, length, what)
  const bytes = new Uint8Array(length)
  source.readInto(bytes, offset)
  return bytes
}

export function checkRange(source: ByteSource, offset: number, length: number, what: string): void {
  const isInside =
    Number.isSafeInteger(offset) &&
    Number.isSafeInteger(length) &&
    offset >= 0 &&
    length >= 0 &&
    length <= source.size &&
    offset <= source.size - length
  if (isInside) return
  throw corrupt(
    source,
    `${what} should be ${length} bytes at ${offset}, but the file ends at ${source.size}; it is truncated or damaged, download it again`,
  )
}

export function corrupt(source: Pick<ByteSource, 'path'>, problem: string): SkeinError {
  return new SkeinError('corrupt_weights', `${source.path}: ${problem}`)
}

export function unsupported(source: Pick<ByteSource, 'path'>, problem: string): SkeinError {
  return new SkeinError('unsupported_weights', `${source.path}: ${problem}`)
}

/** Text from a file as it may appear in a message: printable ASCII, and not much of it. */
export function quote(text: string): string {
  const printable = text.replace(/[^\x20-\x7e]/g, '?')
  return printable.length > 120 ? `${printable.slice(0, 117)}...` : printable
}
