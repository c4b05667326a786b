/** Arrays of 4-byte numbers one after the other in a buffer. Knows nothing of what they hold. */

/** Every array starts on a boundary that suits vector loads. */
export const ALIGNMENT = 16

/** Where an array lies in its buffer, in bytes, and how many numbers it has. */
export interface Section {
  readonly at: number
  readonly length: number
}

export class Layout {
  bytes = 0

  section(length: number): Section {
    const at = this.bytes
    this.bytes = Math.ceil((at + 4 * length) / ALIGNMENT) * ALIGNMENT
    return { at, length }
  }
}
