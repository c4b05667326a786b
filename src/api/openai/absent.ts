/** Routes of OpenAI's API that this server does not have: refused by name, so that a client's user sees why. */
import { SkeinError } from '../../errors.ts'
import type { Route } from '../route.ts'

/** Path → what there is no such thing of, and what to do instead. */
const ABSENT: Readonly<Record<string, string>> = {
  '/v1/audio/speech': 'speech; its models read and write text',
  '/v1/audio/transcriptions': 'transcriptions; its models read and write text',
  '/v1/images/generations': 'images; its models read and write text',
  '/v1/moderations': 'moderations',
}

export function absentRoutes(): Route[] {
  return Object.entries(ABSENT).map(([path, what]) => ({
    method: 'POST',
    path,
    summary: 'Refused: OpenAI has it, this server does not',
    body: null,
    handle: () => Promise.reject(new SkeinError('not_found', `this server has no ${what}`)),
  }))
}
