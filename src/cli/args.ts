/** Arguments that several commands share, and the rule that an unknown or malformed one is refused, never ignored. */
import { basename } from 'node:path'
import { type ArgsDef, type CommandDef, parseArgs } from 'citty'
import { type DeviceChoice, parseDevice, WKV_CHOICES, type WkvChoice } from '../device-choice.ts'
import { SkeinError } from '../errors.ts'
import {
  type EngineChoice,
  modelPath,
  QUANT_CHOICES,
  type QuantChoice,
  type StartStateFile,
} from '../load.ts'
import type { AdapterChoice } from '../model/adapters.ts'

export const adapterArgs = {
  lora: {
    type: 'string',
    description: 'Adapters to merge: FILE[:SCALE], several with commas between (default scale 2)',
    valueHint: 'FILE:SCALE,…',
  },
  'lora-init': {
    type: 'string',
    description: 'The factors that the training of a PiSSA adapter began with',
    valueHint: 'FILE',
  },
} as const satisfies ArgsDef

export const modelArgs = {
  model: {
    type: 'positional',
    required: false,
    description:
      'Checkpoint (.pth, .safetensors, .st, .gguf, a Hugging Face directory), the name of a pulled model, or demo (the bundled one, also when absent)',
    valueHint: 'FILE|NAME',
  },
  device: {
    type: 'string',
    description:
      'auto (default), cpu, cuda, cuda:N (or cuda:UUID), or reference (plain float64, for checking)',
  },
  backend: { type: 'string', description: 'Older name of --device' },
  'pp-devices': {
    type: 'string',
    description:
      'Devices that share the layers of the model, in order: 0,1,… as in cuda:N, or names',
    valueHint: '0,1,…',
  },
  'memory-gb': {
    type: 'string',
    description: 'Most memory of each GPU to use, in GB (default: all that is free)',
  },
  wkv: {
    type: 'string',
    description: 'Recurrent states on cuda: fp32 (default), or fp16 in half the memory',
  },
  quant: {
    type: 'string',
    default: 'file',
    description:
      "How matrices are held: file (the checkpoint's type), f32, f16, bf16, int8, q4, nf4, fp8 (GPU)",
  },
  threads: { type: 'string', description: 'CPU threads (default: all cores)' },
  ...adapterArgs,
} as const satisfies ArgsDef

export const stateArgs = {
  state: {
    type: 'string',
    description: 'Tuned start states: NAME=FILE, several with commas between',
    valueHint: 'NAME=FILE,…',
  },
} as const satisfies ArgsDef

export const engineArgs = {
  ...modelArgs,
  vocab: { type: 'string', description: 'Vocabulary file (default: found beside the model)' },
  slots: {
    type: 'string',
    description:
      'Recurrent states kept = sequences that run at once (default: by memory, up to 64, 256 on a GPU)',
  },
  'step-tokens': {
    type: 'string',
    description: 'Token budget of one step (default 512, 2048 on a GPU)',
  },
  'max-waiting': { type: 'string', description: 'Requests that may wait (default 1024)' },
  'max-prompt-tokens': { type: 'string', description: 'Longest prompt (default 131072)' },
} as const satisfies ArgsDef

/** What `--lora` and `--lora-init` say, in the order of merging. */
export function adapterChoices(args: Given): AdapterChoice[] {
  const choices = (text(args, 'lora') ?? '').split(',').filter((given) => given !== '')
  const init = text(args, 'lora-init')
  if (init !== undefined && choices.length !== 1)
    refuse('lora-init', 'the initial factors of the one adapter that --lora names')
  return choices.map((given) => {
    // A path may hold colons; what follows the last one is a scale only if it is a number.
    const [, path = given, scale] = /^(.+):(-?[\d.]+(?:e-?\d+)?)$/i.exec(given) ?? []
    if (scale !== undefined && !Number.isFinite(Number(scale)))
      refuse('lora', `FILE:SCALE with a number as scale, not "${given}"`)
    return {
      path,
      ...(scale === undefined ? {} : { scale: Number(scale) }),
      ...(init === undefined ? {} : { init }),
    }
  })
}

type Given = { readonly [name: string]: unknown }

/** The engine choice that parsed arguments describe. */
export function engineChoice(args: Given): EngineChoice {
  return {
    model: modelPath(text(args, 'model')),
    adapters: adapterChoices(args),
    device: deviceChoice(args),
    ppDevices: ppDevices(args),
    memoryBytes: bytesOf(number(args, 'memory-gb', 0.001, 1_000_000)),
    wkv: oneOf<WkvChoice>(args, 'wkv', WKV_CHOICES),
    quant: oneOf<QuantChoice>(args, 'quant', QUANT_CHOICES),
    threads: integer(args, 'threads', 1, 1024),
    slots: integer(args, 'slots', 1, 65_536),
    maxTokens: integer(args, 'step-tokens', 1, 1_000_000),
    maxWaiting: integer(args, 'max-waiting', 1, 10_000_000),
    maxPromptTokens: integer(args, 'max-prompt-tokens', 1, 1_000_000_000),
    vocab: text(args, 'vocab'),
  }
}

/** What --device (or --backend) asks for. */
export function deviceChoice(args: Given): DeviceChoice | undefined {
  const [device, backend] = [text(args, 'device'), text(args, 'backend')]
  if (device !== undefined && backend !== undefined && device !== backend)
    refuse('backend', `the same as --device (${device}), or leave one of them out`)
  const given = device ?? backend
  if (given === undefined) return undefined
  return (
    parseDevice(given) ?? refuse('device', `auto, cpu, cuda, cuda:N or reference, not "${given}"`)
  )
}

/** What --pp-devices asks for; a plain number is a GPU. */
function ppDevices(args: Given): DeviceChoice[] | undefined {
  const given = text(args, 'pp-devices')
  if (given === undefined) return undefined
  const expected = `two devices or more with commas between, such as 0,1, not "${given}"`
  const devices = given.split(',').map((part) => {
    const name = part.trim()
    const device = parseDevice(/^\d+$/.test(name) ? `cuda:${name}` : name)
    return device === undefined || device === 'auto' ? refuse('pp-devices', expected) : device
  })
  if (devices.length < 2) refuse('pp-devices', expected)
  if (deviceChoice(args) !== undefined)
    refuse('pp-devices', 'all devices of the model; leave --device out')
  return devices
}

function bytesOf(gigabytes: number | undefined): number | undefined {
  return gigabytes === undefined ? undefined : Math.floor(gigabytes * 1e9)
}

export function text(args: Given, name: string): string | undefined {
  const value = args[name]
  return value === undefined || value === '' ? undefined : String(value)
}

/** A whole number within [min, max], or undefined when the flag was not given. */
export function integer(args: Given, name: string, min: number, max: number): number | undefined {
  const value = number(args, name, min, max)
  if (value !== undefined && !Number.isInteger(value)) refuse(name, `a whole number, not ${value}`)
  return value
}

export function number(args: Given, name: string, min: number, max: number): number | undefined {
  const given = text(args, name)
  if (given === undefined) return undefined
  const value = Number(given)
  if (!(value >= min && value <= max))
    refuse(name, `a number from ${min} to ${max}, not "${given}"`)
  return value
}

/** Comma-separated whole numbers: "1,8,32". */
export function integers(args: Given, name: string): number[] {
  const given = text(args, name)
  if (given === undefined) return []
  return given.split(',').map((part) => {
    const value = Number(part)
    if (part.trim() === '' || !Number.isInteger(value) || value < 0)
      refuse(name, `whole numbers with commas between, not "${given}"`)
    return value
  })
}

export function oneOf<T extends string>(
  args: Given,
  name: string,
  choices: readonly T[],
): T | undefined {
  const given = text(args, name)
  if (given === undefined) return undefined
  const choice = choices.find((candidate) => candidate === given)
  return choice ?? refuse(name, `one of ${choices.join(', ')}, not "${given}"`)
}

function refuse(name: string, expected: string): never {
  throw new SkeinError('invalid_request', `--${name} takes ${expected}`, { param: name })
}

/** "poet=poet.pth,tale.pth": files with names; without one it is called as its file is, here "tale". */
export function startStates(args: Given): StartStateFile[] {
  const given = text(args, 'state')
  if (given === undefined) return []
  return given.split(',').map((part) => {
    const [, name, path = ''] = /^(?:([^=]*)=)?(.*)$/s.exec(part) ?? []
    if (path === '' || name === '') refuse('state', `NAME=FILE pairs, not "${part}"`)
    return { name: name ?? basename(path).replace(/\.[^.]*$/, ''), path }
  })
}

/** citty keeps flags it does not know; a mistyped flag must not be silently without effect. */
export function refuseUnknownFlags(command: CommandDef<never>, argv: readonly string[]): void {
  const defined = (command.args ?? {}) as ArgsDef
  const known = new Set(Object.keys(defined))
  const seen = new Set<string>()
  for (const [i, word] of argv.entries()) {
    if (word === '--') return
    const flag = /^--(?:no-)?([^=]+)/.exec(word)?.[1]
    if (flag === undefined) continue
    // citty takes the default then.
    if (word === `--${flag}` && defined[flag]?.type === 'string' && lacksValue(argv[i + 1]))
      throw new SkeinError('invalid_request', `${word} needs a value; see --help`, { param: flag })
    if (!known.has(flag) && !known.has(`no-${flag}`))
      throw new SkeinError('invalid_request', `unknown flag ${word}; see --help`, { param: flag })
    // citty keeps the last of several; the others would be without effect.
    if (seen.has(flag))
      throw new SkeinError(
        'invalid_request',
        `--${flag} is given twice; where several values are taken, put commas between`,
        { param: flag },
      )
    seen.add(flag)
  }
}

function lacksValue(next: string | undefined): boolean {
  return next === undefined || next.startsWith('--')
}

/** A word that no argument takes is without effect, too: `skein generate FILE "Once upon"`, where --prompt was meant. */
export function refuseStrayWords(command: CommandDef<never>, words: readonly string[]): void {
  const defined = (command.args ?? {}) as ArgsDef
  const numTaken = Object.values(defined).filter(({ type }) => type === 'positional').length
  const stray = parseArgs([...words], defined)._[numTaken]
  if (stray !== undefined)
    throw new SkeinError('invalid_request', `nothing takes the word "${stray}"; see --help`)
}
