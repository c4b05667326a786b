/**
 * The settings of `serve`, a row each, in the order and under the headings of its help. A row is a flag ("--max-waiting"), a
 * variable (SKEIN_MAX_WAITING) and a field of skein.config.json (maxWaiting); docs/configuration.md and docs/skein.schema.json
 * are made from the rows.
 */
import { WKV_CHOICES } from '../host/device-choice.ts'
import { LOG_LEVELS } from '../host/log.ts'
import { EMBEDDINGS_CHOICES, QUANT_CHOICES, TOOL_TEMPLATE_CHOICES } from '../host/model-choice.ts'
import { SPECULATE_CHOICES } from '../model/run/speculate-choice.ts'
import { choice, type Flags, integers, list, number, path, pathList, paths, text, toggle, whole } from './flags.ts'

const ANY = Number.MAX_SAFE_INTEGER
const MEGABYTES = 2 ** 30

const DOOR = {
  host: text('Address to listen on; any but this machine needs a key', { default: '127.0.0.1' }),
  port: whole(0, 65_535)('Port; 0 takes a free one', { default: '8000' }),
  'api-key': list('Key that requests must carry; several with commas', {
    isSecret: true,
    silences: ['no-auth'],
  }),
  password: text('The same as --api-key', { isSecret: true, silences: ['no-auth'] }),
  keys: path('File of named keys (default: keys.json in the data folder; see skein keys)'),
  'no-auth': toggle('Serve a public address without any key', {
    silences: ['api-key', 'password'],
  }),
  'allow-origin': list('Web origins that may call this server, with commas between'),
  'allow-host': list('More names this server may be addressed by, with commas between'),
  'open-translate': toggle('Translation needs no key (for browser extensions)'),
} satisfies Flags

const DEVICES = ['device', 'backend', 'gpus', 'pp-devices']
const othersThan = (flag: string) => DEVICES.filter((other) => other !== flag)

/** How matrices are merged with adapters when a checkpoint is read. */
export const ADAPTER_FLAGS = {
  lora: pathList('Adapters to merge: FILE[:SCALE], several with commas between (default scale 2)', {
    hint: 'FILE:SCALE,…',
  }),
  'lora-init': path('The factors that the training of a PiSSA adapter began with'),
} satisfies Flags

const MODEL = {
  'model-name': text('Name in the API (default: name of FILE)', { hint: 'NAME' }),
  device: text(
    'auto (default), cpu, cuda, cuda:N (or cuda:UUID), webgpu or webgpu:N (any GPU), or reference (plain float64, for checking)',
    { silences: othersThan('device') },
  ),
  backend: text('Older name of --device', { isFlagOnly: true, silences: othersThan('backend') }),
  quant: choice(QUANT_CHOICES)(
    "How matrices are held: file (the checkpoint's type), f32, f16, bf16, int8, q4, nf4, fp8 (GPU)",
    { default: 'file' },
  ),
  wkv: choice(WKV_CHOICES)('Recurrent states on cuda and webgpu: fp32 (default), or fp16 in half the memory'),
  vocab: path('Vocabulary file (default: found beside the model)'),
  ...ADAPTER_FLAGS,
  embeddings: choice(EMBEDDINGS_CHOICES)(
    'Embeddings of a model that was not trained to give them: off, or its final hidden state after the last token (last) or as the mean over all (mean)',
    { default: 'off' },
  ),
  reranker: path('A file of EmbeddingRWKV that scores the states of the model, for /v1/rerank'),
  'tool-template': choice(TOOL_TEMPLATE_CHOICES)(
    'How the model was taught to read of tools and to call them: as G1 models (g1), or in Markdown (vllm-rwkv)',
    { default: 'g1' },
  ),
  state: paths('Tuned start states: NAME=FILE, several with commas between', {
    hint: 'NAME=FILE,…',
  }),
} satisfies Flags

const WORKERS = {
  replicas: whole(1, 256)('Workers of every model (on each of --gpus); on the CPU they share the cores'),
  gpus: integers('GPUs with a worker each for every model, as 0,1,2; requests are spread over them', {
    hint: 'N,…',
    silences: othersThan('gpus'),
  }),
  'pp-devices': list('Devices that share the layers of the model, in order: 0,1,… as in cuda:N, or names', {
    hint: '0,1,…',
    silences: othersThan('pp-devices'),
  }),
  'without-model': toggle('Start without a model; POST /api/workers/start or /loadmodel loads one', {
    silences: ['model', 'models', 'model-name'],
  }),
  'model-dir': path('Folder whose files may be loaded over HTTP (default: that of FILE, else models)', {
    hint: 'DIR',
  }),
  'max-worker-mb': whole(1, MEGABYTES)('Memory of a worker process beyond which it is replaced (default: no limit)'),
} satisfies Flags

const LOAD = {
  slots: whole(
    1,
    65_536,
  )('Recurrent states kept = sequences that run at once (default: by memory, up to 64, 256 on a GPU)'),
  'max-waiting': whole(1, 10_000_000)('Requests that may wait (default: 8 for each slot, 512 at least)'),
  'max-prompt-tokens': whole(1, 1_000_000_000)('Longest prompt (default 131072)'),
  'step-tokens': whole(1, 1_000_000)('Token budget of one step (default 512, 2048 on a GPU)'),
  'itl-target': number(
    0.1,
    3_600_000,
  )(
    'Milliseconds that a step may take which reads prompts beside answers: the time between their tokens (default 25 on a GPU; on a CPU twice what a step without prompts takes, 8 to 200)',
  ),
  'prefill-chunk': whole(
    1,
    1_000_000,
  )('Prompt tokens of such a step, whatever time they take (default: by --itl-target)'),
  speculate: choice(SPECULATE_CHOICES)(
    'Guess what answers say next, so that they take fewer steps: what requests predict (prediction), also what followed the same words before (lookup), or nothing (off). The answers stay the same, on a GPU within rounding; on one CPU or one CUDA device',
    { default: 'prediction' },
  ),
  draft: text(
    'Draft model: a smaller one with the same vocabulary, by file or name, which guesses what answers say next',
    { hint: 'FILE|NAME' },
  ),
  threads: whole(1, 1024)('CPU threads (default: all cores)'),
  'memory-gb': number(0.001, 1_000_000)('Most memory of each GPU to use, in GB (default: all that is free)'),
} satisfies Flags

const STATES = {
  'data-dir': path('Where sessions are stored (default: $XDG_DATA_HOME/skein, ~/.local/share/skein)', {
    hint: 'DIR',
    silences: ['no-store'],
  }),
  'no-store': toggle('Keep sessions in memory only', { silences: ['data-dir', 'durable'] }),
  durable: toggle('Report a turn of a session only when it is on disk', {
    silences: ['no-store'],
  }),
  'import-foreign': toggle('Take states that other servers exported, or for other keys'),
  'prefix-cache-mb': whole(
    0,
    MEGABYTES,
  )('Memory for prompt prefixes in MB; 0: none (default: 10 % of what is free, ≤ 2048)'),
  'preempt-mb': whole(
    0,
    MEGABYTES,
  )(
    'Memory in MB for answers that give their slots to others for a while; 0: none does (default: 5 % of what is free, ≤ 1024)',
  ),
  'slot-states': whole(0, 65_536)('Sessions whose state stays on the device (default 16)'),
  'memory-states': whole(0, ANY)('Session states in memory (default 32)', {
    silences: ['memory-states-mb'],
  }),
  'memory-states-mb': whole(0, MEGABYTES)('The same in MB, instead of a number', {
    silences: ['memory-states'],
  }),
  'max-sessions': whole(0, ANY)('Sessions of one key (default 10000)'),
  'max-sessions-mb': whole(0, MEGABYTES)('Their states in MB (default 65536)'),
  'max-turns': whole(1, ANY)('Turns of a session that are kept (default 16)'),
  'session-ttl': whole(1, ANY)('Seconds after its last turn that a session is kept (default: for ever)'),
} satisfies Flags

/** How a server finds the others of its cluster; `skein gateway` has the same. */
const CLUSTER = {
  cluster: text('PostgreSQL of the cluster this server belongs to (docs/cluster.md)', {
    hint: 'postgres://…',
    isSecret: true,
  }),
  blobs: text('Where the cluster keeps states: s3://BUCKET/PREFIX, or file:///DIR that all share', {
    hint: 'URL',
  }),
  'node-name': text('Name of this server in the cluster (default: host name and port)', {
    hint: 'NAME',
  }),
  'node-url': text('Where the others reach it (default: http://HOST:PORT as it listens)', {
    hint: 'URL',
  }),
  'cluster-key': text('What members trust each other by (default: a secret in the database)', {
    isSecret: true,
  }),
} satisfies Flags

const RUNNING = {
  config: path('File of settings (default: skein.config.json, if there is one; --no-config: none)', {
    isFlagOnly: true,
    isDeniable: true,
  }),
  'log-level': choice(LOG_LEVELS)(`${LOG_LEVELS.join(', ')} (default: warn on a terminal, else info)`),
  'drain-seconds': whole(0, 86_400)('How long streams may finish after SIGTERM', { default: '30' }),
  'metrics-port': whole(0, 65_535)('Also serve /metrics on this port, without a key (default: only with one)'),
  'trace-endpoint': text('Send traces to this OpenTelemetry collector (OTLP over HTTP)', {
    hint: 'URL',
  }),
} satisfies Flags

/** Every flag of `serve`. */
export const SETTINGS = {
  ...grouped('Where and for whom', DOOR),
  ...grouped('The model', MODEL),
  ...grouped('Several models and workers', WORKERS),
  ...grouped('How much at once', LOAD),
  ...grouped('Sessions and kept states (docs/states.md)', STATES),
  ...grouped('Many machines (docs/cluster.md)', CLUSTER),
  ...grouped('Running it', RUNNING),
}

function grouped<R extends Flags>(group: string, rows: R): R {
  // The same rows, with a heading.
  return Object.fromEntries(Object.entries(rows).map(([name, row]) => [name, { ...row, group }])) as R
}

/** Some of them, for other commands that load a model. */
export function settingsCalled<const N extends keyof typeof SETTINGS>(
  ...names: readonly N[]
): Pick<typeof SETTINGS, N> {
  // An entry for each name.
  return Object.fromEntries(names.map((name) => [name, SETTINGS[name]])) as Pick<typeof SETTINGS, N>
}

/** What loads a model and no more. */
export const MODEL_FLAGS = {
  ...settingsCalled('device', 'backend', 'quant', 'wkv', 'lora', 'lora-init'),
  ...settingsCalled('pp-devices', 'threads', 'memory-gb'),
}

/** What an engine runs with. */
export const ENGINE_FLAGS = {
  ...MODEL_FLAGS,
  ...settingsCalled('vocab', 'slots', 'max-waiting', 'max-prompt-tokens', 'step-tokens'),
  ...settingsCalled('itl-target', 'prefill-chunk', 'speculate', 'draft'),
}

export const MODEL_WORDS = {
  model: {
    description:
      'Checkpoint (.pth, .safetensors, .st, .gguf, a Hugging Face directory), the name of a pulled model, or demo (the bundled one, also when absent)',
    hint: 'FILE|NAME',
  },
}
