/**
 * The settings of `serve`, one per row, in the order and under the headings of its help. A row is a flag
 * ("--max-waiting"), a variable (SKEIN_MAX_WAITING) and a field of skein.config.json (maxWaiting).
 * docs/configuration.md and docs/skein.schema.json are generated from the rows.
 */
import { DEVICES_HELP, WKV_CHOICES } from '../host/device-choice.ts'
import { LOG_LEVELS } from '../host/log.ts'
import { EMBEDDINGS_CHOICES, QUANT_CHOICES, TOOL_TEMPLATE_CHOICES } from '../host/model-choice.ts'
import { SPECULATE_CHOICES } from '../model/run/speculate-choice.ts'
import { choice, type Flags, integers, list, number, path, pathList, paths, text, toggle, whole } from './flags.ts'

const ANY = Number.MAX_SAFE_INTEGER
const MOST_MEGABYTES = 2 ** 30
const megabytes = whole(0, MOST_MEGABYTES)
const tokens = whole(1, 1_000_000)

const NETWORK = {
  host: text('Address to listen on; addresses that other machines can reach need a key', { default: '127.0.0.1' }),
  port: whole(0, 65_535)('Port; 0 picks a free one', { default: '8000' }),
  'api-key': list('Key that requests must carry, or several separated by commas', {
    isSecret: true,
    silences: ['no-auth'],
  }),
  password: text('The same as --api-key', { isSecret: true, silences: ['no-auth'] }),
  keys: path('File of named keys (default: keys.json in the data folder; see skein keys)'),
  'no-auth': toggle('Serve a public address without any key', { silences: ['api-key', 'password'] }),
  'allow-origin': list('Web origins that may call this server, separated by commas'),
  'allow-host': list('Further host names that requests may use for this server, separated by commas'),
  'open-translate': toggle('Serve translation without a key (for browser extensions)'),
} satisfies Flags

const DEVICES = ['device', 'backend', 'gpus', 'pp-devices']
const othersThan = (flag: string) => DEVICES.filter((other) => other !== flag)

/** Adapters that are merged into the matrices when a checkpoint is read. */
export const ADAPTER_FLAGS = {
  lora: pathList('Adapters to merge: FILE[:SCALE], separated by commas (default scale 2)', { hint: 'FILE:SCALE,…' }),
  'lora-init': path('Initial factors of a PiSSA adapter, from before its training'),
} satisfies Flags

const MODEL = {
  'model-name': text('Name in the API (default: name of FILE)', { hint: 'NAME' }),
  device: text(DEVICES_HELP, { silences: othersThan('device') }),
  backend: text('Older name of --device', { isFlagOnly: true, silences: othersThan('backend') }),
  quant: choice(QUANT_CHOICES)('Weight format: file (as in the checkpoint), f32, f16, bf16, int8, q4, nf4, fp8 (GPU)', {
    default: 'file',
  }),
  wkv: choice(WKV_CHOICES)('Recurrent states on a GPU: fp32 (default), or fp16 in half the memory'),
  vocab: path('Vocabulary file (default: found beside the model)'),
  ...ADAPTER_FLAGS,
  embeddings: choice(EMBEDDINGS_CHOICES)(
    'Embeddings from a model that was not trained for them: off, the final hidden state of the last token (last), or the mean over all tokens (mean)',
    { default: 'off' },
  ),
  reranker: path('EmbeddingRWKV file that scores states of the model, for /v1/rerank'),
  'tool-template': choice(TOOL_TEMPLATE_CHOICES)(
    'Format of tool definitions and calls that the model was trained on: that of G1 models (g1), or Markdown (vllm-rwkv)',
    { default: 'g1' },
  ),
  state: paths('Tuned start states: NAME=FILE, separated by commas', { hint: 'NAME=FILE,…' }),
} satisfies Flags

const WORKERS = {
  replicas: whole(1, 256)('Workers per model (per GPU with --gpus); on the CPU they share the cores'),
  gpus: integers('GPUs that each run a worker of every model, such as 0,1,2; requests are spread over them', {
    hint: 'N,…',
    silences: othersThan('gpus'),
  }),
  'pp-devices': list(
    'Devices that the layers of the model are split over, in order: GPU numbers such as 0,1, or names',
    { hint: '0,1,…', silences: othersThan('pp-devices') },
  ),
  'without-model': toggle('Start without a model; POST /api/workers/start or /loadmodel loads one', {
    silences: ['model', 'models', 'model-name'],
  }),
  'model-dir': path('Folder of the models that may be loaded over HTTP (default: the folder of FILE, else models)', {
    hint: 'DIR',
  }),
  'max-worker-mb': whole(
    1,
    MOST_MEGABYTES,
  )('Replace a worker process that uses more memory than this, in MB (default: no limit)'),
} satisfies Flags

const LOAD = {
  slots: whole(
    1,
    65_536,
  )('Sequences that run at once, one recurrent state each (default: by memory, at most 64, or 256 on a GPU)'),
  'max-waiting': whole(1, 10_000_000)('Requests that may wait (default: 8 per slot, at least 512)'),
  'max-prompt-tokens': whole(1, 1_000_000_000)('Longest prompt (default 131072)'),
  'step-tokens': tokens('Token budget of one step (default 512, 2048 on a GPU)'),
  'itl-target': number(
    0.1,
    3_600_000,
  )(
    'Target time between the tokens of an answer while prompts are read in the same steps, in ms (default 25 on a GPU; on a CPU three times that of a step without prompts, up to 21, or twice if that is more; 5 to 200)',
  ),
  'prefill-chunk': tokens(
    'Prompt tokens per step while answers run, however long they take (default: by --itl-target)',
  ),
  speculate: choice(SPECULATE_CHOICES)(
    'Speculative decoding: guess the next tokens from the predictions of requests (prediction), also from what followed the same words before (lookup), or not at all (off). Answers stay the same, on a GPU within rounding; works on one CPU or one CUDA device',
    { default: 'prediction' },
  ),
  draft: text('Draft model for speculative decoding: a smaller model with the same vocabulary, by file or name', {
    hint: 'FILE|NAME',
  }),
  threads: whole(1, 1024)('CPU threads (default: all cores)'),
  'memory-gb': number(0.001, 1_000_000)('Maximum memory to use on each GPU, in GB (default: all that is free)'),
} satisfies Flags

const STATES = {
  'data-dir': path('Where sessions are stored (default: $XDG_DATA_HOME/skein, ~/.local/share/skein)', {
    hint: 'DIR',
    silences: ['no-store'],
  }),
  'no-store': toggle('Keep sessions in memory only', { silences: ['data-dir', 'durable'] }),
  durable: toggle('Report a turn of a session only when it is on disk', { silences: ['no-store'] }),
  'import-foreign': toggle('Accept states that were exported by other servers or for other keys'),
  'prefix-cache-mb': megabytes(
    'Memory for the prefix cache in MB; 0 turns it off (default: 10 % of free memory, at most 2048)',
  ),
  'preempt-mb': megabytes(
    'Memory in MB for the states of preempted answers; 0 turns preemption off (default: 5 % of free memory, at most 1024)',
  ),
  'slot-states': whole(0, 65_536)('Session states kept on the device (default 16)'),
  'memory-states': whole(0, ANY)('Session states kept in memory (default 32)', { silences: ['memory-states-mb'] }),
  'memory-states-mb': megabytes('The same as a size in MB', { silences: ['memory-states'] }),
  'max-sessions': whole(0, ANY)('Maximum sessions per key (default 10000)'),
  'max-sessions-mb': megabytes('Maximum size of their states, in MB (default 65536)'),
  'max-turns': whole(1, ANY)('Turns kept per session (default 16)'),
  'session-ttl': whole(1, ANY)('Seconds to keep a session after its last turn (default: forever)'),
} satisfies Flags

/** How a server finds the others of its cluster. `skein gateway` has some of these too. */
const CLUSTER = {
  cluster: text('PostgreSQL database of the cluster (docs/cluster.md)', { hint: 'postgres://…', isSecret: true }),
  blobs: text('Where the cluster stores states: s3://BUCKET/PREFIX, or file:///DIR for a shared folder', {
    hint: 'URL',
  }),
  'node-name': text('Name of this server in the cluster (default: host name and port)', { hint: 'NAME' }),
  'node-url': text('URL at which other nodes reach this server (default: http://HOST:PORT as it listens)', {
    hint: 'URL',
  }),
  'cluster-key': text('Secret shared by the members of the cluster (default: one kept in the database)', {
    isSecret: true,
  }),
} satisfies Flags

const RUNNING = {
  config: path('Configuration file (default: skein.config.json if it exists; --no-config: none)', {
    isFlagOnly: true,
    isDeniable: true,
  }),
  'log-level': choice(LOG_LEVELS)(`${LOG_LEVELS.join(', ')} (default: warn on a terminal, else info)`),
  'drain-seconds': whole(0, 86_400)('Seconds that running requests may take to finish after SIGTERM', {
    default: '30',
  }),
  'metrics-port': whole(0, 65_535)('Also serve /metrics on this port without a key (default: only on the main port)'),
  'trace-endpoint': text('Send traces to this OpenTelemetry collector (OTLP over HTTP)', { hint: 'URL' }),
} satisfies Flags

export const SETTINGS = {
  ...grouped('Network and access', NETWORK),
  ...grouped('The model', MODEL),
  ...grouped('Several models and workers', WORKERS),
  ...grouped('Load and memory', LOAD),
  ...grouped('Sessions and kept states (docs/states.md)', STATES),
  ...grouped('Cluster (docs/cluster.md)', CLUSTER),
  ...grouped('Operation', RUNNING),
}

function grouped<R extends Flags>(group: string, rows: R): R {
  // Same rows, with a heading.
  return Object.fromEntries(Object.entries(rows).map(([name, row]) => [name, { ...row, group }])) as R
}

/** A subset of the settings, for other commands that load a model. */
export function settingsCalled<const N extends keyof typeof SETTINGS>(
  ...names: readonly N[]
): Pick<typeof SETTINGS, N> {
  // One entry per name.
  return Object.fromEntries(names.map((name) => [name, SETTINGS[name]])) as Pick<typeof SETTINGS, N>
}

export const MODEL_FLAGS = {
  ...settingsCalled('device', 'backend', 'quant', 'wkv', 'lora', 'lora-init'),
  ...settingsCalled('pp-devices', 'threads', 'memory-gb'),
}

export const ENGINE_FLAGS = {
  ...MODEL_FLAGS,
  ...settingsCalled('vocab', 'slots', 'max-waiting', 'max-prompt-tokens', 'step-tokens'),
  ...settingsCalled('itl-target', 'prefill-chunk', 'speculate', 'draft'),
}

export const MODEL_WORD = {
  description:
    'Checkpoint (.pth, .safetensors, .st, .gguf, a Hugging Face directory), the name of a pulled model, or demo, the bundled one',
  hint: 'FILE|NAME',
}

export const MODEL_WORDS = { model: { ...MODEL_WORD, description: `${MODEL_WORD.description} (default: demo)` } }
