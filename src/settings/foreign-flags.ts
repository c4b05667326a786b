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

/** Of a flag's value; the second is the flag itself, for complaints. */
type Meant = (value: string, flag: string) => Meaning

interface ForeignFlag {
  readonly flag: string
  readonly systems: string
  /** Text for the table of the documentation. */
  readonly means: string
  readonly meaning: Meant
  /** Whether it takes no value. */
  readonly isSwitch?: boolean
}

const as = (words: readonly string[]): Meaning => ({ words })
const row = (flag: string, systems: string, means: string, meaning: Meant): ForeignFlag => {
  return { flag, systems, means, meaning }
}
const toggle = (flag: string, systems: string, means: string, words: readonly string[] = []): ForeignFlag => {
  return { flag, systems, means, meaning: () => as(words), isSwitch: true }
}
/** Accepted, with a note that says why it has no effect. */
const ignored = (flag: string, systems: string, why: string): ForeignFlag => {
  return row(flag, systems, `nothing: ${why}`, () => withoutEffect(flag, why.replaceAll('`', '')))
}
const withoutEffect = (flag: string, why: string): Meaning => ({ words: [], note: `--${flag} has no effect: ${why}` })

const to =
  (own: string): Meant =>
  (value) =>
    as([own, value])
const counted =
  (own: string): Meant =>
  (value, flag) =>
    as([own, String(whole(flag, value))])
/** More than any machine serves at once. conRWKV's defaults mean "no limit". */
const UNBOUNDED = 65_536
const bounded = (own: string): Meant => {
  return (value, flag) => (whole(flag, value) >= UNBOUNDED ? as([]) : counted(own)(value, flag))
}

const INFER = 'RWKV-Infer'
const LIGHTNING = 'rwkv_lightning'
const CUDA = 'rwkv_lightning_cuda'

export const FOREIGN_FLAGS: readonly ForeignFlag[] = [
  row('model-path', `${LIGHTNING}, Albatross`, 'FILE', (value) => as([value])),
  row(
    'served-model-name',
    'vLLM',
    '`--model-name`; of several the first, the others are `aliases` of the configuration file',
    to('--model-name'),
  ),
  row('model', 'conRWKV', 'FILE', (value) => as([value])),
  row('localhost', INFER, '`--host`; without FILE no model is loaded (`--without-model`)', (value) =>
    as(['--host', value, '--without-model-unless-named']),
  ),
  row('debug', INFER, '`True`: `--log-level debug`; `False`: nothing', (value, flag) =>
    as(isTrue(flag, value) ? ['--log-level', 'debug'] : []),
  ),
  ignored('workers', INFER, 'one process takes all connections'),
  row(
    'dynamic_state_cache_size',
    INFER,
    '0: `--prefix-cache-mb 0`; else nothing, the cache is bounded by its bytes',
    (value, flag) =>
      whole(flag, value) === 0
        ? as(['--prefix-cache-mb', '0'])
        : withoutEffect(flag, 'kept prefixes are bounded by --prefix-cache-mb'),
  ),
  row(
    'dynamic_state_cache_store',
    INFER,
    '`cpu`: nothing, that is where prefixes are; `gpu` is refused',
    (value, flag) => {
      if (value === 'cpu') return as([])
      throw refusal(flag, 'cpu: kept prefixes are in memory')
    },
  ),
  row('max_batch_size', 'conRWKV', '`--slots`; from 65536 on, no limit', bounded('--slots')),
  row('max-batch-size', 'Albatross', '`--slots`', bounded('--slots')),
  row('max_queue_size', 'conRWKV', '`--max-waiting`', counted('--max-waiting')),
  row('max-queue-size', 'Albatross', '`--max-waiting`', counted('--max-waiting')),
  row('max_seq_len', 'conRWKV', '`--step-tokens`; from 65536 on, no limit', bounded('--step-tokens')),
  row('prefill-chunk-size', 'Albatross', '`--step-tokens`', counted('--step-tokens')),
  ignored('max-prefill-batch', 'Albatross', 'prompts share the tokens of a step, however many they are'),
  row(
    'pp-devices',
    LIGHTNING,
    '`[N]` or `N`: `--device cuda:N`; `[0,1]`: `--pp-devices 0,1`, the same flag here',
    (value) => as(pipelineDevices(value)),
  ),
  ignored('max_completion_tokens', 'conRWKV', 'a request says `max_tokens`, or has the default of its route'),
  row('wkv', LIGHTNING, '`fp32io16`: `--wkv fp32`; else the same flag here', (value) =>
    as(['--wkv', value === 'fp32io16' ? 'fp32' : value]),
  ),
  ignored('emb', LIGHTNING, 'the embedding is where the model is'),
  row('chunk-size', CUDA, '`--step-tokens`', counted('--step-tokens')),
  ignored('state-db-path', CUDA, 'states are in the folder of `--data-dir`'),
  toggle('chunk-load', CUDA, 'nothing: a checkpoint is always read in pieces'),
  row('vocab-path', CUDA, '`--vocab`', to('--vocab')),
  row('tokenizer-path', 'Albatross', '`--vocab`', to('--vocab')),
  toggle('wkv32', CUDA, '`--wkv fp32`', ['--wkv', 'fp32']),
  toggle('enable-cuda-graph', LIGHTNING, 'nothing: decode steps are always replayed as graphs where the device can'),
  toggle('use-cuda-graph', 'Albatross', 'the same'),
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
    const { words: own, note } = foreign.meaning(value, foreign.flag)
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
