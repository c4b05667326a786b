/** Arguments of a server about which models it has and who may change them. */
import { existsSync } from 'node:fs'
import type { ArgsDef } from 'citty'
import { SkeinError } from '../errors.ts'
import { isLoopback } from '../gateway/auth.ts'
import { modelPath } from '../load.ts'
import { deviceChoice, engineChoice, integer, integers, text } from './args.ts'
import type { NamedModel, ServedChoice } from './server.ts'

export const hostingArgs = {
  'without-model': {
    type: 'boolean',
    description: 'Start without a model; POST /api/workers/start or /loadmodel loads one',
  },
  gpus: {
    type: 'string',
    description: 'GPUs with a worker each for every model, as 0,1,2; requests are spread over them',
    valueHint: 'N,…',
  },
  replicas: {
    type: 'string',
    description: 'Workers of every model (on each of --gpus); on the CPU they share the cores',
  },
  'max-worker-mb': {
    type: 'string',
    description: 'Memory of a worker process beyond which it is replaced (default: no limit)',
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

export interface Hosted {
  readonly choice: ServedChoice
  /** Name of the first model; absent: that of its file. */
  readonly modelId: string | undefined
  readonly moreModels: readonly NamedModel[]
  readonly gpus: readonly number[]
  readonly replicas: number | undefined
  readonly maxWorkerBytes: number | undefined
}

/** What a server begins with. Several files, each as FILE or NAME=FILE, are several models. */
export function hosted(args: Given): Hosted {
  // citty keeps all words that are no flags here.
  const words = (args._ as readonly string[] | undefined) ?? []
  const [first, ...others] = words.map(namedModel)
  const megabytes = integer(args, 'max-worker-mb', 1, 2 ** 30)
  return {
    choice: { ...engineChoice({ ...args, model: first?.model }), model: firstModel(args, first) },
    modelId: nameOfFirst(args, first, others.length),
    moreModels: others,
    gpus: gpusOf(args),
    replicas: integer(args, 'replicas', 1, 256),
    maxWorkerBytes: megabytes === undefined ? undefined : megabytes * 2 ** 20,
  }
}

function gpusOf(args: Given): number[] {
  const gpus = integers(args, 'gpus')
  const param = 'gpus'
  if (new Set(gpus).size < gpus.length)
    throw new SkeinError('invalid_request', '--gpus names one twice; --replicas adds workers', {
      param,
    })
  const device = deviceChoice(args) ?? 'auto'
  if (gpus.length > 0 && device !== 'auto' && device !== 'cuda')
    throw new SkeinError('invalid_request', `--gpus and --device ${device} exclude each other`, {
      param,
    })
  return gpus
}

/** Null: a control plane alone. A public address is no place for a demonstration that nobody asked for. */
function firstModel(args: Given, first: NamedModel | undefined): string | null {
  const isEmpty = args['without-model'] === true
  if (first !== undefined) {
    if (!isEmpty) return first.model
    const message = '--without-model and a model exclude each other; give one'
    throw new SkeinError('invalid_request', message)
  }
  if (!isEmpty && isLoopback(text(args, 'host')!)) return modelPath(undefined)
  for (const flag of ['lora', 'state', 'gpus', 'replicas'])
    if (text(args, flag) !== undefined)
      throw new SkeinError('invalid_request', `--${flag} needs a model: name its file`, {
        param: flag,
      })
  return null
}

function nameOfFirst(args: Given, first: NamedModel | undefined, numOthers: number) {
  const flag = text(args, 'model-name')
  if (flag !== undefined && first?.id !== undefined)
    throw new SkeinError('invalid_request', `--model-name and ${first.id}= both name the model`)
  if (numOthers === 0) return flag ?? first?.id
  for (const name of ['model-name', 'lora', 'state'])
    if (text(args, name) !== undefined)
      throw new SkeinError('invalid_request', `--${name} is for a server of one model`, {
        param: name,
      })
  return first?.id
}

/** "goose=models/demo.pth", unless that is itself a file. */
function namedModel(word: string): NamedModel {
  const [, id, path] = /^([^=/\\@]+)=(.+)$/s.exec(word) ?? []
  if (id === undefined || path === undefined || existsSync(word)) return { model: modelPath(word) }
  return { id, model: modelPath(path) }
}
