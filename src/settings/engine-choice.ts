/** Turns the values of flags into a model's choices: which model, where and how to load it, which states to keep. */
import { homedir } from 'node:os'
import { join } from 'node:path'
import { SkeinError } from '../errors.ts'
import { modelPath } from '../host/checkpoints/model-path.ts'
import { DEVICES_TAKEN, type DeviceChoice, parseDevice } from '../host/device-choice.ts'
import type { EngineChoice, StateChoice } from '../host/model-choice.ts'
import type { AdapterChoice } from '../model/adapters.ts'
import type { ADAPTER_FLAGS, ENGINE_FLAGS, SETTINGS } from './table.ts'
import { refusal, type Values } from './values.ts'

const MEGABYTE = 2 ** 20

/** The engine choice that a command's flags describe. A flag that the command does not have counts as not given. */
export function engineChoice(
  given: Partial<Values<typeof ENGINE_FLAGS>> & { readonly model?: string | undefined },
): EngineChoice {
  const gigabytes = given['memory-gb']
  return {
    model: modelPath(given.model),
    adapters: adapterChoices(given),
    device: deviceChoice(given),
    ppDevices: ppDevices(given),
    memoryBytes: gigabytes === undefined ? undefined : Math.floor(gigabytes * 1e9),
    wkv: given.wkv,
    quant: given.quant,
    threads: given.threads,
    slots: given.slots,
    maxTokens: given['step-tokens'],
    itlTargetMs: given['itl-target'],
    prefillChunk: given['prefill-chunk'],
    speculate: given.speculate,
    draft: given.draft === undefined ? undefined : modelPath(given.draft),
    maxWaiting: given['max-waiting'],
    maxPromptTokens: given['max-prompt-tokens'],
    vocab: given.vocab,
  }
}

/** The adapters of `--lora` and `--lora-init`, in the order of merging. */
export function adapterChoices({
  lora = [],
  'lora-init': init,
}: Partial<Values<typeof ADAPTER_FLAGS>>): AdapterChoice[] {
  const choices = lora.filter((given) => given !== '')
  if (init !== undefined && choices.length !== 1)
    throw refusal('lora-init', 'the initial factors of the one adapter that --lora names')
  return choices.map((given) => {
    // A path may hold colons: the part after the last one is a scale only if it is a number.
    const [, path = given, scale] = /^(.+):(-?[\d.]+(?:e-?\d+)?)$/i.exec(given) ?? []
    if (scale !== undefined && !Number.isFinite(Number(scale)))
      throw refusal('lora', `FILE:SCALE with a number as scale, not "${given}"`)
    return { path, ...(scale === undefined ? {} : { scale: Number(scale) }), ...(init === undefined ? {} : { init }) }
  })
}

type Devices = Partial<Values<Pick<typeof SETTINGS, 'device' | 'backend' | 'pp-devices'>>>

export function deviceChoice({ device, backend }: Devices): DeviceChoice | undefined {
  if (device !== undefined && backend !== undefined && device !== backend)
    throw refusal('backend', `the same as --device (${device}), or leave one of them out`)
  const given = device ?? backend
  if (given === undefined) return undefined
  const choice = parseDevice(given)
  if (choice !== undefined) return choice
  throw refusal('device', `${DEVICES_TAKEN}, not "${given}"`)
}

/** The devices that --pp-devices names; a plain number is a GPU. */
function ppDevices(values: Devices): DeviceChoice[] | undefined {
  const given = values['pp-devices']
  if (given === undefined) return undefined
  const expected = `two devices or more with commas between, such as 0,1, not "${given.join(',')}"`
  const devices = given.map((name) => {
    const device = parseDevice(/^\d+$/.test(name) ? `cuda:${name}` : name)
    if (device === undefined || device === 'auto') throw refusal('pp-devices', expected)
    return device
  })
  if (devices.length < 2) throw refusal('pp-devices', expected)
  if (deviceChoice(values) !== undefined)
    throw refusal('pp-devices', 'every device of the model, so leave --device out')
  return devices
}

/** The states that a server keeps; it stores sessions unless told not to. */
export function stateChoice(given: Values<typeof SETTINGS>): StateChoice {
  return {
    dataDir: dataDir(given),
    durable: given.durable,
    importForeign: given['import-foreign'],
    slotStates: given['slot-states'],
    memoryStates: given['memory-states'],
    memoryStateBytes: bytesOf(given['memory-states-mb']),
    prefixCacheBytes: bytesOf(given['prefix-cache-mb']),
    preemptBytes: bytesOf(given['preempt-mb']),
    maxSessions: given['max-sessions'],
    maxSessionBytes: bytesOf(given['max-sessions-mb']),
    maxTurns: given['max-turns'],
    sessionTtlSeconds: given['session-ttl'],
  }
}

function dataDir(given: Values<typeof SETTINGS>): string | undefined {
  const folder = given['data-dir']
  const isOff = given['no-store']
  if (isOff && (folder !== undefined || given.durable)) {
    const message = '--no-store excludes --data-dir and --durable; drop one or the other'
    throw new SkeinError('invalid_request', message, { param: 'no-store' })
  }
  return isOff ? undefined : (folder ?? defaultDataDir())
}

function defaultDataDir(): string {
  const { XDG_DATA_HOME } = process.env
  return join(XDG_DATA_HOME || join(homedir(), '.local/share'), 'skein')
}

/** By default in the data folder, so that a server and `skein keys` use the same file. */
export function keyFilePath(given: {
  readonly keys?: string | undefined
  readonly 'data-dir'?: string | undefined
}): string {
  return given.keys ?? join(given['data-dir'] ?? defaultDataDir(), 'keys.json')
}

export function bytesOf(megabytes: number | undefined): number | undefined {
  return megabytes === undefined ? undefined : megabytes * MEGABYTE
}
