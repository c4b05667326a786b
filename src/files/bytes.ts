/** Bytes and text with APIs that every platform has, including browsers. */

const ENCODER = new TextEncoder()
const DECODER = new TextDecoder('utf-8', { ignoreBOM: true })

export function utf8(text: string): Uint8Array<ArrayBuffer> {
  return ENCODER.encode(text)
}

/** Bytes that are not UTF-8 become U+FFFD. */
export function textOf(bytes: Uint8Array): string {
  return DECODER.decode(bytes)
}

/** Undefined where the text is no JSON. */
export function parsedJson(text: string): unknown {
  try {
    return JSON.parse(text)
  } catch {
    return undefined
  }
}

/** Whether a value of JSON is an object, and no list. */
export function isObject(value: unknown): value is Readonly<Record<string, unknown>> {
  return typeof value === 'object' && value !== null && !Array.isArray(value)
}

/** One character per byte; for short texts. */
export function latin1Of(bytes: Uint8Array): string {
  return String.fromCharCode(...bytes)
}

/** Negative if `a` comes first; a prefix comes before longer values. */
export function compareBytes(a: Uint8Array, b: Uint8Array): number {
  const length = Math.min(a.length, b.length)
  for (let i = 0; i < length; i++) {
    const difference = a[i]! - b[i]!
    if (difference !== 0) return difference
  }
  return a.length - b.length
}

export function joinBytes(parts: readonly Uint8Array[]): Uint8Array<ArrayBuffer> {
  return fill(new Uint8Array(lengthOf(parts)), parts)
}

/** Not by spreading: a prompt may have more tokens than a call may have arguments. */
export function concatTokens(parts: readonly ArrayLike<number>[]): Int32Array {
  return fill(new Int32Array(lengthOf(parts)), parts)
}

function lengthOf(parts: readonly ArrayLike<number>[]): number {
  return parts.reduce((sum, { length }) => sum + length, 0)
}

function fill<A extends Int32Array | Uint8Array>(joined: A, parts: readonly ArrayLike<number>[]): A {
  let at = 0
  for (const part of parts) {
    joined.set(part, at)
    at += part.length
  }
  return joined
}

export function viewOf({ buffer, byteOffset, byteLength }: Uint8Array): DataView {
  return new DataView(buffer, byteOffset, byteLength)
}
