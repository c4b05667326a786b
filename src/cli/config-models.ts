/** The models of a configuration file as workers to launch. */
import { existsSync, realpathSync } from 'node:fs'
import { basename, resolve } from 'node:path'
import { withoutCheckpointSuffix } from '../checkpoint-suffix.ts'
import type { ModelEntry } from '../config/file.ts'
import { SkeinError } from '../errors.ts'
import { DEFAULT_SPEC, type Launch, refuseSharedNames } from '../gateway/launch.ts'
import { modelPath } from '../load.ts'
import { integer, integers, text } from './args.ts'

type Given = { readonly [name: string]: unknown }

/**
 * One for each worker: a model has as many as it has devices, times its replicas. `args` say where a model is that does not
 * say so itself.
 */
export function launchesOf(models: readonly ModelEntry[], args: Given): readonly Launch[] {
  for (const flag of ['model-name', 'lora', 'state', 'vocab']) {
    if (text(args, flag) === undefined) continue
    const message = `--${flag} is for a server of one model; \`models\` are given with their own`
    throw new SkeinError('invalid_request', message, { param: flag })
  }
  const launches = models.flatMap((model, i) => workersOf(model, `models[${i}]`, args))
  for (const [i, launch] of launches.entries()) refuseSharedNames(launch, launches.slice(0, i))
  return launches
}

function workersOf(entry: ModelEntry, field: string, args: Given): Launch[] {
  const { file: given, ppDevices, device } = entry
  const said = [entry.gpus, ppDevices, device].filter((each) => each !== undefined)
  if (said.length > 1) {
    const message = `gpus, ppDevices and device exclude each other; give one of them`
    throw new SkeinError('invalid_request', message, { param: `${field}.gpus` })
  }
  const gpus = said.length === 0 ? integers(args, 'gpus') : (entry.gpus ?? [])
  const replicas = entry.replicas ?? integer(args, 'replicas', 1, 256) ?? 1
  const path = modelPath(given)
  const file = existsSync(path) ? realpathSync(path) : resolve(path)
  const id = entry.name ?? withoutCheckpointSuffix(basename(path))
  const states = Object.entries(entry.states ?? {}).map(([name, at]) => ({ name, path: at }))
  const launch = {
    id,
    file,
    quant: entry.quant ?? null,
    startStates: states,
    vocab: entry.vocab ?? null,
  }
  const spec = {
    ...DEFAULT_SPEC,
    model_path: path,
    model_name: id,
    aliases: entry.aliases ?? [],
    device: device ?? null,
    pp_devices: ppDevices ?? null,
    quant: launch.quant,
    wkv: entry.wkv ?? null,
    threads: entry.threads ?? null,
    max_batch_size: entry.slots ?? null,
    tokenizer_path: launch.vocab,
    states,
  }
  const places = gpus.length === 0 ? [{}] : gpus.map((gpu_id) => ({ gpu_id }))
  const all = Array.from({ length: replicas }, () => places).flat()
  return all.map((place) => ({ ...launch, spec: { ...spec, ...place } }))
}
