/**
 * How soon a request is to be answered: fields that a route has by naming them in its schema. They are read in one place
 * (gateway/access/urgency.ts), so no handler knows of them.
 */
import { type Static, Type } from '../files/schema-types.ts'
import { BoundedInteger, Maybe } from './schema.ts'

/** Least and greatest; a higher one is served before a lower one. */
export const PRIORITIES = [-100, 100] as const

/** Seconds, greater than 0. */
export const LONGEST_TIMEOUT = 86_400

export function urgencyFields() {
  return {
    priority: Maybe(BoundedInteger(...PRIORITIES)),
    timeout: Maybe(Type.Number({ exclusiveMinimum: 0, maximum: LONGEST_TIMEOUT })),
  }
}

export type UrgencyFields = Static<ReturnType<typeof Type.Object<ReturnType<typeof urgencyFields>>>>
