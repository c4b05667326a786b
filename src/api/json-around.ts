/** JSON around values that were written elsewhere. */
import { randomUUID } from 'node:crypto'

/** Stands for such a value. No text has it, since nobody is ever told it. */
export const WRITTEN = `\u0000${randomUUID()}`
const QUOTED = JSON.stringify(WRITTEN)

/** What is before, between and behind such values. */
export function jsonAround(value: object): string[] {
  return JSON.stringify(value).split(QUOTED)
}
