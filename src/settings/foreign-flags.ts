/**
 * Rewrites the flags of servers that Skein replaces into its own before anything is parsed, so that an old command line
 * starts `skein serve` with the same meaning. A flag with no meaning here prints a note; a flag that asks for a missing
 * feature is refused. docs/migration.md has the table.
 */
import { SkeinError } from '../errors.ts'
import type { Flags } from './flags.ts'
import { SETTINGS } from './table.ts'

interface Rewritten {
  readonly argv: readonly string[]
  /** Flags that were accepted without effect, one line each. */
  readonly notes: readonly string[]
}

/** Skein's words for a flag and its value, and perhaps a note. */
interface Meaning {
  readonly words: readonly string[]
  readonly note?: string
}

interface ForeignFlag {
  readonly flag: string
  readonly systems: string
  /** Whether it takes no value. */
  readonly isSwitch?: boolean
  /** Text for the table of the documentation. */
  readonly means: string
  meaning(value: string): Meaning
}

const as = (words: readonly string[]): Meaning => ({ words })
const noEffect = (note: string): Meaning => ({ words: [], note })

/** More than any machine serves at once. conRWKV's defaults mean "no limit". */
const UNBOUNDED = 65_536

export const FOREIGN_FLAGS: readonly ForeignFlag[] = [
  { flag: 'model-path', systems: 'rwkv_lightning, Albatross', means: 'FILE', meaning: (value) => as([value]) },
  {
    flag: 'served-model-name',
    systems: 'vLLM',
    means: '`--model-name`; of several the first, the others are `aliases` of the configuration file',
    meaning: (value) => as(['--model-name', value]),
  },
  { flag: 'model', systems: 'conRWKV', means: 'FILE', meaning: (value) => as([value]) },
  {
    flag: 'localhost',
    systems: 'RWKV-Infer',
    means: '`--host`; without FILE no model is loaded (`--without-model`)',
    meaning: (value) => as(['--host', value, '--without-model-unless-named']),
  },
  {
    flag: 'debug',
    systems: 'RWKV-Infer',
    means: '`True`: `--log-level debug`; `False`: nothing',
    meaning: (value) => as(isTrue('debug', value) ? ['--log-level', 'debug'] : []),
  },
  {
    flag: 'workers',
    systems: 'RWKV-Infer',
    means: 'nothing: one process takes all connections',
    meaning: () => noEffect('--workers has no effect: one process takes all connections'),
  },
  {
    flag: 'dynamic_state_cache_size',
    systems: 'RWKV-Infer',
    means: '0: `--prefix-cache-mb 0`; else nothing, the cache is bounded by its bytes',
    meaning: (value) =>
      whole('dynamic_state_cache_size', value) === 0
        ? as(['--prefix-cache-mb', '0'])
        : noEffect('--dynamic_state_cache_size has no effect: kept prefixes are bounded by --prefix-cache-mb'),
  },
  {
    flag: 'dynamic_state_cache_store',
    systems: 'RWKV-Infer',
    means: '`cpu`: nothing, that is where prefixes are; `gpu` is refused',
    meaning: (value) => {
      if (value === 'cpu') return as([])
      throw refusal('dynamic_state_cache_store', 'cpu: kept prefixes are in memory')
    },
  },
  {
    flag: 'max_batch_size',
    systems: 'conRWKV',
    means: '`--slots`; from 65536 on, no limit',
    meaning: (value) => bounded('max_batch_size', value, '--slots'),
  },
  {
    flag: 'max-batch-size',
    systems: 'Albatross',
    means: '`--slots`',
    meaning: (value) => bounded('max-batch-size', value, '--slots'),
  },
  {
    flag: 'max_queue_size',
    systems: 'conRWKV',
    means: '`--max-waiting`',
    meaning: (value) => as(['--max-waiting', String(whole('max_queue_size', value))]),
  },
  {
    flag: 'max-queue-size',
    systems: 'Albatross',
    means: '`--max-waiting`',
    meaning: (value) => as(['--max-waiting', String(whole('max-queue-size', value))]),
  },
  {
    flag: 'max_seq_len',
    systems: 'conRWKV',
    means: '`--step-tokens`; from 65536 on, no limit',
    meaning: (value) => bounded('max_seq_len', value, '--step-tokens'),
  },
  {
    flag: 'prefill-chunk-size',
    systems: 'Albatross',
    means: '`--step-tokens`',
    meaning: (value) => as(['--step-tokens', String(whole('prefill-chunk-size', value))]),
  },
  {
    flag: 'max-prefill-batch',
    systems: 'Albatross',
    means: 'nothing: prompts share the tokens of a step, however many they are',
    meaning: () => noEffect('--max-prefill-batch has no effect: prompts share the tokens of a step'),
  },
  {
    flag: 'pp-devices',
    systems: 'rwkv_lightning',
    means: '`[N]` or `N`: `--device cuda:N`; `[0,1]`: `--pp-devices 0,1`, the same flag here',
    meaning: (value) => as(pipelineDevices(value)),
  },
  {
    flag: 'max_completion_tokens',
    systems: 'conRWKV',
    means: 'nothing: a request says `max_tokens`, or has the default of its route',
    meaning: () =>
      noEffect('--max_completion_tokens has no effect: a request says max_tokens, or has the default of its route'),
  },
  {
    flag: 'wkv',
    systems: 'rwkv_lightning',
    means: '`fp32io16`: `--wkv fp32`; else the same flag here',
    meaning: (value) => as(['--wkv', value === 'fp32io16' ? 'fp32' : value]),
  },
  {
    flag: 'emb',
    systems: 'rwkv_lightning',
    means: 'nothing: the embedding is where the model is',
    meaning: () => noEffect('--emb has no effect: the embedding is where the model is'),
  },
  {
    flag: 'chunk-size',
    systems: 'rwkv_lightning_cuda',
    means: '`--step-tokens`',
    meaning: (value) => as(['--step-tokens', String(whole('chunk-size', value))]),
  },
  {
    flag: 'state-db-path',
    systems: 'rwkv_lightning_cuda',
    means: 'nothing: states are in the folder of `--data-dir`',
    meaning: () => noEffect('--state-db-path has no effect: states are in the folder of --data-dir'),
  },
  {
    flag: 'chunk-load',
    systems: 'rwkv_lightning_cuda',
    isSwitch: true,
    means: 'nothing: a checkpoint is always read in pieces',
    meaning: () => as([]),
  },
  {
    flag: 'vocab-path',
    systems: 'rwkv_lightning_cuda',
    means: '`--vocab`',
    meaning: (value) => as(['--vocab', value]),
  },
  { flag: 'tokenizer-path', systems: 'Albatross', means: '`--vocab`', meaning: (value) => as(['--vocab', value]) },
  {
    flag: 'wkv32',
    systems: 'rwkv_lightning_cuda',
    isSwitch: true,
    means: '`--wkv fp32`',
    meaning: () => as(['--wkv', 'fp32']),
  },
  {
    flag: 'enable-cuda-graph',
    systems: 'rwkv_lightning',
    isSwitch: true,
    means: 'nothing: decode steps are always replayed as graphs where the device can',
    meaning: () => as([]),
  },
  { flag: 'use-cuda-graph', systems: 'Albatross', isSwitch: true, means: 'the same', meaning: () => as([]) },
]

const BY_FLAG = new Map(FOREIGN_FLAGS.map((foreign) => [foreign.flag, foreign]))

/** `argv` excludes the command's name. */
export function rewriteForeignFlags(argv: readonly string[]): Rewritten {
  const words: string[] = []
  const notes: string[] = []
  for (let i = 0; i < argv.length; i++) {
    const word = argv[i]!
    const [, flag, attached] = /^--([^=]+)(?:=(.*))?$/s.exec(word) ?? []
    const foreign = flag === undefined ? undefined : BY_FLAG.get(flag)
    if (foreign === undefined) {
      words.push(word)
      continue
    }
    const isSwitch = foreign.isSwitch === true
    // A switch may be followed by "true".
    if (isSwitch && attached === undefined && /^true$/i.test(argv[i + 1] ?? '')) i++
    const value = isSwitch ? '' : (attached ?? argv[++i])
    if (value === undefined) throw refusal(foreign.flag, 'a value')
    const { words: own, note } = foreign.meaning(value)
    words.push(...own)
    if (note !== undefined) notes.push(note)
  }
  return { argv: settleModel(words), notes }
}

const UNLESS_NAMED = '--without-model-unless-named'

/** RWKV-Infer starts without a model, unless the command line names a file. */
function settleModel(words: readonly string[]): string[] {
  const rest = words.filter((word) => word !== UNLESS_NAMED)
  if (rest.length === words.length) return rest
  const takesNext = (word = '') => word.startsWith('--') && !word.includes('=') && !isSwitch(word)
  const namesFile = rest.some((word, i) => !word.startsWith('--') && !takesNext(rest[i - 1]))
  return namesFile ? rest : [...rest, '--without-model']
}

/** Whether it is one of Skein's flags without a value; "--no-…" always is. */
function isSwitch(word: string): boolean {
  const rows: Flags = SETTINGS
  return word.startsWith('--no-') || rows[word.slice('--'.length)]?.kind.type === 'switch'
}

function bounded(flag: string, value: string, own: string): Meaning {
  const count = whole(flag, value)
  return as(count >= UNBOUNDED ? [] : [own, String(count)])
}

/** A count; conRWKV writes its defaults as 1e6. */
function whole(flag: string, value: string): number {
  const count = Number(value)
  if (value.trim() !== '' && Number.isInteger(count) && count >= 0) return count
  throw refusal(flag, `a whole number, not "${value}"`)
}

/** A flag that takes True or False as its value. */
function isTrue(flag: string, value: string): boolean {
  if (/^(true|1)$/i.test(value)) return true
  if (/^(false|0)$/i.test(value)) return false
  throw refusal(flag, `True or False, not "${value}"`)
}

/** A list as Python writes it. Items that are not numbers are left to Skein's own flag of that name. */
function pipelineDevices(value: string): string[] {
  const devices = value.replace(/^\[|\]$/g, '').replaceAll(' ', '')
  return /^\d+$/.test(devices) ? ['--device', `cuda:${devices}`] : ['--pp-devices', devices]
}

function refusal(flag: string, expected: string): SkeinError {
  return new SkeinError('invalid_request', `--${flag} takes ${expected}`, { param: flag })
}
