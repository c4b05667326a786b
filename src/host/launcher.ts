/**
 * Makes workers: turns a `WorkerSpec` into a supervised process. Only this file knows both the fields of a spec and the
 * choices of a worker process.
 */
import { statSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import type { Logger } from 'pino'
import { invalid, SkeinError } from '../errors.ts'
import { onlyGiven } from '../files/given.ts'
import type { WorkerSpec } from '../gateway/contract.ts'
import type { Launch, Launcher } from '../gateway/fleet/launch.ts'
import { Supervisor, type SupervisorOptions } from '../gateway/fleet/supervisor.ts'
import { SPECULATE_CHOICES } from '../model/run/speculate-choice.ts'
import type { Tokenizer } from '../tokenizer/tokenizer.ts'
import { checkModelFile, loadTokenizer, vocabularyPath } from './checkpoints/open-model.ts'
import { DEVICES_TAKEN, type DeviceChoice, parseDevice, WKV_CHOICES } from './device-choice.ts'
import { type EngineChoice, QUANT_CHOICES, TOOL_TEMPLATE_CHOICES } from './model-choice.ts'

/** Choices of a worker for fields that its spec leaves out. */
type WorkerDefaults = Omit<EngineChoice, 'model'>

interface LauncherOptions {
  /** Its adapters, reranker and draft model apply only to `adaptedFile`. */
  readonly defaults: WorkerDefaults
  readonly adaptedFile: string | null
  readonly logger: Logger
  readonly supervision?: Pick<SupervisorOptions, 'timing' | 'maxBytes' | 'onEnd'> | undefined
  readonly onProgress?: ((doneBytes: number, totalBytes: number) => void) | undefined
}

export function createLauncher(options: LauncherOptions): Launcher {
  const tokenizers = new TokenizerCache()
  return (launch, { onLine, onChange }) => {
    const { id, spec } = launch()
    const choiceNow = () => engineChoiceOf(launch(), options)
    const choice = choiceNow()
    checkModelFile(choice)
    const vocab = vocabularyPath(choice)
    for (const note of notesOn(spec)) onLine(`skein: ${note}`)
    const { onProgress } = options
    const handle = new Supervisor({
      worker: () => ({ entry: WORKER, args: [JSON.stringify({ ...choiceNow(), vocab })] }),
      name: id,
      logger: options.logger,
      onLine,
      onChange,
      ...options.supervision,
      ...(onProgress === undefined ? {} : { onProgress }),
    })
    return { handle, tokenizer: tokenizerOf(launch(), () => tokenizers.get(vocab, choice)) }
  }
}

const WORKER = fileURLToPath(new URL('./worker.js', import.meta.url))

/** Throws for a field that this server does not support, with its name. */
export function engineChoiceOf(
  { id, file, quant, startStates, adapters, vocab, draft, spec }: Launch,
  { defaults, adaptedFile }: Pick<LauncherOptions, 'defaults' | 'adaptedFile'>,
): EngineChoice {
  const place = placeOf(spec)
  return {
    ...defaults,
    // A spec that names one device means only that one.
    ...(Object.keys(place).length === 0 ? {} : { device: undefined, ppDevices: undefined }),
    ...place,
    ...onlyGiven({
      quant: oneOf('quant', quant, QUANT_CHOICES),
      wkv: oneOf('wkv', spec.wkv, WKV_CHOICES),
      toolTemplate: oneOf('tool_template', spec.tool_template, TOOL_TEMPLATE_CHOICES),
      speculate: oneOf('speculate', spec.speculate, SPECULATE_CHOICES),
      threads: spec.threads,
      slots: spec.max_batch_size,
      // Every generating row takes one token of a step; the chunk is what is left for prompts.
      maxTokens: spec.prefill_chunk_size === null ? null : spec.prefill_chunk_size + (spec.max_batch_size ?? 0),
      maxWaiting: spec.max_queue_size,
      vocab,
    }),
    ...(adaptedFile === file && adapters === undefined ? {} : { adapters }),
    ...(adaptedFile === file ? {} : { reranker: undefined, draft: undefined }),
    ...onlyGiven({ draft: draft ?? null }),
    ...(defaults.cluster === undefined ? {} : { cluster: { ...defaults.cluster, model: id, aliases: spec.aliases } }),
    model: file,
    startStates,
  }
}

function placeOf(spec: WorkerSpec): { device?: DeviceChoice; ppDevices?: DeviceChoice[] } {
  const { gpu_id, device, pp_devices } = spec
  const named = device === null ? undefined : deviceOf(device)
  if (pp_devices !== null) {
    if (gpu_id !== null || named !== undefined)
      throw invalid('pp_devices', 'names the devices; leave gpu_id and device out')
    const devices = pp_devices.map((index): DeviceChoice => `cuda:${index}`)
    return devices.length === 1 ? { device: devices[0]! } : { ppDevices: devices }
  }
  if (gpu_id === null) return named === undefined ? {} : { device: named }
  const pinned: DeviceChoice = `cuda:${gpu_id}`
  if (named !== undefined && named !== pinned && named !== 'cuda')
    throw invalid('device', `${device} is not GPU ${gpu_id} of gpu_id; give one of the two`)
  return { device: pinned }
}

function deviceOf(text: string): DeviceChoice {
  const device = parseDevice(text)
  if (device !== undefined) return device
  throw invalid('device', `expected ${DEVICES_TAKEN}`)
}

function oneOf<T extends string>(field: string, value: string | null, choices: readonly T[]): T | null {
  if (value === null) return null
  const found = choices.find((choice) => choice === value)
  if (found !== undefined) return found
  throw invalid(field, `expected one of ${choices.join(', ')}`)
}

/** An error in a named vocabulary is reported for that file, not for the model. */
function tokenizerOf({ vocab }: Launch, read: () => Tokenizer): Tokenizer {
  try {
    return read()
  } catch (thrown) {
    if (vocab === null) throw thrown
    const { code, message } = SkeinError.from(thrown)
    throw new SkeinError(code, message, { param: 'tokenizer_path', cause: thrown })
  }
}

/** Notes on fields that have no effect here. */
function notesOn({ max_prefill_batch, use_cuda_graph }: WorkerSpec): string[] {
  return [
    max_prefill_batch === null ? [] : ['max_prefill_batch has no effect: prompts share the tokens of a step'],
    use_cuda_graph === null ? [] : ['use_cuda_graph has no effect: steps are replayed as graphs where the device can'],
  ].flat()
}

/** Shared by replicas, because reading a vocabulary takes longer than starting a worker. */
class TokenizerCache {
  readonly #known = new Map<string, { readonly changedAt: number; readonly tokenizer: Tokenizer }>()

  get(path: string, choice: EngineChoice): Tokenizer {
    const changedAt = statSync(path).mtimeMs
    const known = this.#known.get(path)
    if (known?.changedAt === changedAt) return known.tokenizer
    const tokenizer = loadTokenizer({ ...choice, vocab: path })
    this.#known.set(path, { changedAt, tokenizer })
    return tokenizer
  }
}
