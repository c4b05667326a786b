/** Sampling flags shared by `generate` and `chat`. */
import type { ArgsDef } from 'citty'
import { integer, number } from './args.ts'

export const samplingArgs = {
  'max-tokens': { type: 'string', description: 'Most tokens of an answer (default 512)' },
  temperature: { type: 'string', description: '0 is greedy (default 1)' },
  'top-p': { type: 'string', description: 'Keep the likeliest tokens of this mass (default 0.5)' },
  'top-k': { type: 'string', description: 'Keep the k likeliest tokens (default: all)' },
  'presence-penalty': { type: 'string', description: 'Against tokens already used (default 0)' },
  'frequency-penalty': { type: 'string', description: 'Against frequent tokens (default 0)' },
} as const satisfies ArgsDef

export function samplingOptions(args: { readonly [name: string]: unknown }) {
  return {
    temperature: number(args, 'temperature', 0, 100),
    topP: number(args, 'top-p', 0, 1),
    topK: integer(args, 'top-k', 0, 1_000_000),
    presencePenalty: number(args, 'presence-penalty', -10, 10),
    frequencyPenalty: number(args, 'frequency-penalty', -10, 10),
  }
}
