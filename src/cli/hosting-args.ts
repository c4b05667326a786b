/** Arguments of a server about which models it has and who may change them. */
import type { ArgsDef } from 'citty'
import { SkeinError } from '../errors.ts'
import type { EngineChoice } from '../load.ts'
import { engineChoice, text } from './args.ts'

export const hostingArgs = {
  'without-model': {
    type: 'boolean',
    description: 'Start without a model; POST /loadmodel loads one',
  },
  'model-dir': {
    type: 'string',
    description: 'Folder whose files may be loaded over HTTP (default: that of FILE, else models)',
    valueHint: 'DIR',
  },
  'open-translate': {
    type: 'boolean',
    description: 'Translation needs no key (for browser extensions)',
  },
} as const satisfies ArgsDef

type Given = { readonly [name: string]: unknown }

/** The choice of every worker; `model` is null on a server that begins without one. */
export function servedChoice(
  args: Given,
): Omit<EngineChoice, 'model'> & { readonly model: string | null } {
  if (args['without-model'] !== true) return engineChoice(args)
  if (text(args, 'model') !== undefined) {
    const message = '--without-model and a model exclude each other; give one'
    throw new SkeinError('invalid_request', message)
  }
  // The demo model stands in for the one that the other choices do not depend on.
  return { ...engineChoice(args), model: null }
}
