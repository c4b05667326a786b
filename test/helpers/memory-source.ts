/** A file in memory that records the largest requested read. */
import type { ByteSource } from '../../src/model/formats/byte-source.ts'

export function memorySource(bytes: Uint8Array): ByteSource & { readonly largestRead: number } {
  let largestRead = 0
  return {
    path: 'model.pth',
    size: bytes.byteLength,
    get largestRead() {
      return largestRead
    },
    readInto: (target, offset) => {
      largestRead = Math.max(largestRead, target.byteLength)
      if (offset < 0 || offset + target.byteLength > bytes.byteLength) {
        throw new RangeError(`read outside the file: ${offset} + ${target.byteLength}`)
      }
      target.set(bytes.subarray(offset, offset + target.byteLength))
    },
    close: () => {},
  }
}
