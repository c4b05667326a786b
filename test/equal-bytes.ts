/**
 * Arrays of numbers with the same bytes are equal. Without this, `toEqual` compares them number by number, which takes
 * most of the time of the tests of logits and states. Differences are compared and printed as usual.
 */
import { expect } from 'vitest'

// Once per process: each of its files runs this, and every comparison asks all testers that were added.
const ADDED = Symbol.for('skein.equal-bytes')
if (!(ADDED in globalThis)) {
  Object.defineProperty(globalThis, ADDED, { value: true })
  expect.addEqualityTesters([equalBytes])
}

function equalBytes(a: unknown, b: unknown): true | undefined {
  if (!ArrayBuffer.isView(a) || !ArrayBuffer.isView(b)) return undefined
  if (a.constructor !== b.constructor || a.byteLength !== b.byteLength) return undefined
  return bytesOf(a).equals(bytesOf(b)) ? true : undefined
}

function bytesOf(view: ArrayBufferView): Buffer {
  return Buffer.from(view.buffer, view.byteOffset, view.byteLength)
}
