/**
 * The models that a server starts with: arguments of the command line and entries of the configuration file become the
 * same entries, and each entry becomes its workers.
 */
import { existsSync } from 'node:fs'
import { availableParallelism } from 'node:os'
import { SkeinError } from '../errors.ts'
import { isLoopback } from '../gateway/access/auth.ts'
import type { WorkerSpec } from '../gateway/contract.ts'
import { DEFAULT_SPEC, type Launch, launchOf, refuseSharedNames } from '../gateway/fleet/launch.ts'
import { modelPath } from '../host/checkpoints/model-path.ts'
import { nameOf, realPath } from '../host/model-files.ts'
import type { ModelEntry } from './config-file.ts'
import { deviceChoice } from './engine-choice.ts'
import type { SETTINGS } from './table.ts'
import type { Values } from './values.ts'

type Given = Partial<Values<typeof SETTINGS>>

/** Models of the command line: FILE or NAME=FILE each. Without any, a server for this machine gets the demo model. */
export function entriesOf(words: readonly string[], given: Given): readonly ModelEntry[] {
  const entries = words.map(entryOf)
  const [first] = entries
  const isEmpty = given['without-model'] === true
  if (first === undefined && !isEmpty && isLoopback(given.host!))
    return [ofOneModel({ file: modelPath(undefined) }, given)]
  if (first === undefined) {
    for (const flag of ['lora', 'state', 'reranker', 'draft', 'gpus', 'replicas'] as const)
      if (given[flag] !== undefined) throw refusal(flag, `--${flag} needs a model: name its file`)
    return []
  }
  if (isEmpty) throw refusal('without-model', '--without-model and a model exclude each other; give one')
  const name = given['model-name']
  if (name !== undefined && first.name !== undefined)
    throw refusal('model-name', `--model-name and ${first.name}= both name the model`)
  if (entries.length === 1) return [ofOneModel(first, given)]
  for (const flag of ['model-name', 'lora', 'state', 'reranker', 'draft'] as const)
    if (given[flag] !== undefined) throw refusal(flag, `--${flag} is for a server of one model`)
  return entries
}

/** "goose=models/demo.pth", unless that is itself a file. */
function entryOf(word: string): ModelEntry {
  const [, name, path] = /^([^=/\\@]+)=(.+)$/s.exec(word) ?? []
  if (name === undefined || path === undefined || existsSync(word)) return { file: modelPath(word) }
  return { name, file: modelPath(path) }
}

function ofOneModel(entry: ModelEntry, { 'model-name': name, state = [] }: Given): ModelEntry {
  const states = Object.fromEntries(state.map((each) => [each.name, each.path]))
  return { ...(name === undefined ? {} : { name }), ...entry, states }
}

/** Flags that speak of one model have no place beside `models` of a file. */
export function refuseFlagsOfOneModel(given: Given): void {
  for (const flag of ['model-name', 'lora', 'state', 'vocab', 'reranker', 'draft'] as const) {
    if (given[flag] === undefined) continue
    const message = `--${flag} is for a server of one model; \`models\` are given with their own`
    throw refusal(flag, message)
  }
}

/** `given` say what an entry does not say itself. */
export function launchesOf(entries: readonly ModelEntry[], given: Given): readonly Launch[] {
  const gpus = gpusOf(given)
  const launches = entries.flatMap((entry, i) => workersOf(entry, `models[${i}]`, { ...given, gpus }))
  for (const [i, launch] of launches.entries()) refuseSharedNames(launch, launches.slice(0, i))
  return launches
}

function workersOf(entry: ModelEntry, field: string, given: Given): Launch[] {
  const { ppDevices, device, replicas = given.replicas ?? 1 } = entry
  const said = [entry.gpus, ppDevices, device].filter((each) => each !== undefined)
  if (said.length > 1) {
    const message = `gpus, ppDevices and device exclude each other; give one of them`
    throw refusal(`${field}.gpus`, message)
  }
  const path = modelPath(entry.file)
  const spec = {
    ...DEFAULT_SPEC,
    model_path: path,
    model_name: entry.name ?? nameOf(path),
    aliases: entry.aliases ?? [],
    device: device ?? null,
    pp_devices: ppDevices ?? null,
    quant: entry.quant ?? null,
    wkv: entry.wkv ?? null,
    tool_template: entry.toolTemplate ?? null,
    speculate: entry.speculate ?? null,
    draft_path: entry.draft === undefined ? null : modelPath(entry.draft),
    threads: entry.threads ?? null,
    max_batch_size: entry.slots ?? null,
    tokenizer_path: entry.vocab ?? null,
    states: Object.entries(entry.states ?? {}).map(([name, at]) => ({ name, path: at })),
  } satisfies WorkerSpec
  const gpus = said.length === 0 ? (given.gpus ?? []) : (entry.gpus ?? [])
  const places: Partial<Pick<WorkerSpec, 'gpu_id'>>[] = gpus.length === 0 ? [{}] : gpus.map((gpu_id) => ({ gpu_id }))
  // On the host they would all start as many threads as there are cores.
  const isCrowded = gpus.length === 0 && replicas > 1 && (spec.threads ?? given.threads) == null
  const share = Math.max(1, Math.floor(availableParallelism() / replicas))
  const own = isCrowded ? { threads: share } : {}
  const all = Array.from({ length: replicas }, () => places).flat()
  return all.map((place) => launchOf({ ...spec, ...own, ...place }, { file: realPath(path) }))
}

function gpusOf(given: Given): readonly number[] {
  const { gpus = [] } = given
  if (gpus.length === 0) return gpus
  if (new Set(gpus).size < gpus.length) throw refusal('gpus', '--gpus names one twice; --replicas adds workers')
  const device = deviceChoice(given) ?? 'auto'
  if (device !== 'auto' && device !== 'cuda') throw refusal('gpus', `--gpus and --device ${device} exclude each other`)
  if (given['pp-devices'] !== undefined) throw refusal('gpus', '--gpus and --pp-devices exclude each other')
  return gpus
}

function refusal(param: string, message: string): SkeinError {
  return new SkeinError('invalid_request', message, { param })
}
