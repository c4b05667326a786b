/** At least one request for every route of the API, in an order in which each finds what it needs. */
export interface ExampleRequest {
  /** The name in openapi.json. */
  readonly route: string
  /** A description for readers. */
  readonly title: string
  /** Values of `{names}` in the path; `$x` is a value from an earlier reply. */
  readonly params?: Readonly<Record<string, string>>
  readonly query?: string
  readonly body?: object
  /** The body is the file from an earlier reply. */
  readonly sendsFile?: true
  /** The body is a form with a file of this text, and `purpose` batch. */
  readonly form?: string
  /** Stores a field of the reply, found by its path, under a name for later requests. */
  readonly keeps?: Readonly<Record<string, string>>
  /**
   * The reply has figures of the machine or the moment, or a stream cut at random: only the format, or the text, is
   * compared.
   */
  readonly varies?: true
  /** Of lists in the reply only the first entry is shown. */
  readonly showsFirst?: true
  /** Repeated until the reply contains this text, because what it reports happens beside the request. */
  readonly until?: string
}

const QUESTION = { role: 'user', content: 'What is the capital of France?' }
const GREEDY = { temperature: 0, max_tokens: 24 }
const WEATHER = {
  name: 'weather',
  description: 'The weather of a city',
  parameters: { type: 'object', properties: { city: { type: 'string' } }, required: ['city'] },
}
const CAPITAL = {
  type: 'object',
  properties: { capital: { enum: ['Paris', 'Rome'] } },
  required: ['capital'],
  additionalProperties: false,
}
const RAW = 'User: What is the capital of Japan?\n\nAssistant:'

const OPENAI: readonly ExampleRequest[] = [
  { route: 'GET /v1/models', title: 'The models', varies: true },
  { route: 'GET /v1/models/{id}', title: 'One model', params: { id: 'demo' }, varies: true },
  {
    route: 'POST /v1/chat/completions',
    title: 'A question',
    body: { model: 'demo', messages: [QUESTION], ...GREEDY },
  },
  {
    route: 'POST /v1/chat/completions',
    title: 'As a stream',
    body: {
      messages: [QUESTION],
      ...GREEDY,
      stream: true,
      stream_options: { include_usage: true },
    },
    varies: true,
  },
  {
    route: 'POST /v1/chat/completions',
    title: 'In the form of a JSON schema',
    body: {
      messages: [QUESTION],
      ...GREEDY,
      response_format: {
        type: 'json_schema',
        json_schema: { name: 'capital', strict: true, schema: CAPITAL },
      },
    },
  },
  {
    route: 'POST /v1/chat/completions',
    title: 'A tool that must be called',
    body: {
      messages: [{ role: 'user', content: 'How is the weather in Paris?' }],
      temperature: 0,
      max_tokens: 64,
      tools: [
        {
          type: 'function',
          function: {
            ...WEATHER,
            strict: true,
            parameters: {
              ...WEATHER.parameters,
              properties: { city: { enum: ['Paris', 'Rome'] } },
              additionalProperties: false,
            },
          },
        },
      ],
      tool_choice: 'required',
    },
  },
  {
    route: 'POST /v1/chat/completions',
    title: 'In a session: the server keeps the state',
    body: { session_id: 'trip', messages: [QUESTION], ...GREEDY },
  },
  {
    route: 'POST /v1/completions',
    title: 'Text to continue',
    body: { prompt: RAW, stop: ['\n\n'], ...GREEDY },
  },
  {
    route: 'POST /v1/fim/completions',
    title: 'Fill in between two texts',
    body: { prompt: 'The capital of', suffix: 'is Rome.', temperature: 0, max_tokens: 8 },
  },
  {
    route: 'POST /infill',
    title: 'The same, as llama.cpp names it',
    body: {
      input_prefix: 'The capital of',
      input_suffix: 'is Rome.',
      temperature: 0,
      n_predict: 8,
    },
    varies: true,
  },
  { route: 'POST /tokenize', title: 'Text to tokens', body: { prompt: 'Hello' } },
  { route: 'POST /detokenize', title: 'Tokens to text', body: { tokens: [40, 69, 76, 76, 79] } },
  {
    route: 'DELETE /v1/requests/{id}',
    title: 'End a call that runs',
    params: { id: 'nobody-asked' },
  },
]

/** Two spellings of one route have one example each. */
const EMBEDDINGS: readonly ExampleRequest[] = [
  ...[
    '/v1/embeddings',
    '/embeddings',
    ...['/v1', ''].map((at) => `${at}/engines/text-embedding-ada-002/embeddings`),
  ].map((path) => ({
    route: `POST ${path}`,
    title: 'Texts to vectors (a server with --embeddings mean)',
    body: { input: ['Paris', 'Tokyo'], dimensions: 4 },
    varies: true as const,
  })),
  ...['/v1/rerank', '/rerank', '/v2/rerank'].map((path) => ({
    route: `POST ${path}`,
    title: 'Documents by how near they are to a query',
    body: {
      query: 'the capital of France',
      documents: ['Tokyo is in Japan.', 'Paris is in France.'],
    },
    varies: true as const,
  })),
]

const BATCH = { custom_id: 'a', method: 'POST', url: '/v1/chat/completions' }

const BATCHES: readonly ExampleRequest[] = [
  {
    route: 'POST /v1/files',
    title: 'A file of requests, one a line',
    form: `${JSON.stringify({ ...BATCH, body: { model: 'demo', messages: [QUESTION], ...GREEDY } })}\n`,
    keeps: { file: 'id' },
  },
  { route: 'GET /v1/files', title: 'The files' },
  { route: 'GET /v1/files/{id}', title: 'One file', params: { id: '$file' } },
  { route: 'GET /v1/files/{id}/content', title: 'What is in it', params: { id: '$file' } },
  {
    route: 'POST /v1/batches',
    title: 'Run them',
    body: { input_file_id: '$file', endpoint: '/v1/chat/completions', completion_window: '24h' },
    keeps: { batch: 'id' },
    varies: true,
  },
  {
    route: 'GET /v1/batches/{id}',
    title: 'How far it is',
    params: { id: '$batch' },
    until: '"status":"completed"',
    varies: true,
  },
  { route: 'GET /v1/batches', title: 'The batches', varies: true },
  {
    route: 'POST /v1/batches/{id}/cancel',
    title: 'Run no more of it',
    params: { id: '$batch' },
    varies: true,
  },
  { route: 'DELETE /v1/files/{id}', title: 'Forget a file', params: { id: '$file' } },
]

const SESSIONS: readonly ExampleRequest[] = [
  { route: 'GET /v1/sessions', title: 'The sessions', query: 'limit=10', varies: true },
  { route: 'GET /v1/sessions/{id}', title: 'One session', params: { id: 'trip' }, varies: true },
  {
    route: 'GET /v1/sessions/{id}/transcript',
    title: 'Its words, from the tokens that its state has read',
    params: { id: 'trip' },
  },
  {
    route: 'POST /v1/sessions/{id}/fork',
    title: 'A second way on from turn 1',
    params: { id: 'trip' },
    body: { new_id: 'other-trip', turn: 1 },
    varies: true,
  },
  {
    route: 'POST /v1/sessions/{id}/rewind',
    title: 'Back to a turn',
    params: { id: 'other-trip' },
    body: { turn: 1 },
    varies: true,
  },
  {
    route: 'POST /v1/sessions/{id}/share',
    title: 'A token for a copy of turn 1',
    params: { id: 'trip' },
    body: { turn: 1 },
    keeps: { token: 'token' },
    varies: true,
  },
  {
    route: 'POST /v1/sessions/{id}/open',
    title: 'A copy, by that token, for anybody with a key',
    params: { id: 'shared-trip' },
    body: { token: '$token' },
    varies: true,
  },
  {
    route: 'GET /v1/sessions/{id}/export',
    title: 'The state as a file',
    params: { id: 'trip' },
  },
  {
    route: 'POST /v1/sessions/{id}/import',
    title: 'A session from that file',
    params: { id: 'copy' },
    sendsFile: true,
    varies: true,
  },
  {
    route: 'POST /v1/sessions/{id}/undo',
    title: 'Take the last turn back',
    params: { id: 'other-trip' },
    body: {},
    varies: true,
  },
  {
    route: 'DELETE /v1/sessions/{id}',
    title: 'Forget a session',
    params: { id: 'other-trip' },
  },
  { route: 'GET /v1/states', title: 'How many states are where', varies: true },
]

const RESPONSES: readonly ExampleRequest[] = [
  {
    route: 'POST /v1/responses',
    title: 'An answer',
    body: { input: 'What is the capital of France?', temperature: 0, max_output_tokens: 24 },
    keeps: { response: 'id' },
  },
  {
    route: 'POST /v1/responses/input_tokens',
    title: 'How long the prompt is',
    body: { input: 'What is the capital of France?' },
  },
  {
    route: 'GET /v1/responses/{id}',
    title: 'It is kept',
    params: { id: '$response' },
  },
  {
    route: 'GET /v1/responses/{id}/input_items',
    title: 'What was asked',
    params: { id: '$response' },
  },
  {
    route: 'DELETE /v1/responses/{id}',
    title: 'Forget it',
    params: { id: '$response' },
  },
]

const ANTHROPIC: readonly ExampleRequest[] = [
  {
    route: 'POST /v1/messages',
    title: 'A message',
    body: { model: 'demo', messages: [QUESTION], ...GREEDY },
  },
  {
    route: 'POST /v1/messages',
    title: 'As a stream',
    body: { model: 'demo', messages: [QUESTION], ...GREEDY, stream: true },
    varies: true,
  },
  {
    route: 'POST /v1/messages/count_tokens',
    title: 'How long the prompt is',
    body: { model: 'demo', messages: [QUESTION] },
  },
]

const OLLAMA: readonly ExampleRequest[] = [
  {
    route: 'POST /api/chat',
    title: 'A question',
    body: {
      model: 'demo',
      messages: [QUESTION],
      stream: false,
      options: { temperature: 0, num_predict: 24 },
    },
  },
  {
    route: 'POST /api/generate',
    title: 'One prompt',
    body: {
      model: 'demo',
      prompt: 'What is the capital of Japan?',
      stream: false,
      options: { temperature: 0, num_predict: 24 },
    },
  },
  { route: 'GET /api/version', title: 'The version that is spoken' },
  { route: 'GET /api/tags', title: 'The models', varies: true },
  { route: 'GET /api/ps', title: 'Those that are loaded', varies: true },
  { route: 'POST /api/show', title: 'One model', body: { model: 'demo' }, varies: true },
  {
    route: 'POST /api/pull',
    title: 'A model that is there already',
    body: { model: 'demo', stream: false },
  },
]

const OLLAMA_EMBEDDINGS: readonly ExampleRequest[] = [
  {
    route: 'POST /api/embed',
    title: 'Texts to vectors',
    body: { model: 'demo', input: ['Paris'], dimensions: 4 },
    varies: true,
  },
  {
    route: 'POST /api/embeddings',
    title: 'One text to a vector',
    body: { model: 'demo', prompt: 'Paris' },
    varies: true,
    showsFirst: true,
  },
]

const LLAMA: readonly ExampleRequest[] = [
  {
    route: 'POST /completion',
    title: 'Text to continue',
    body: { prompt: RAW, temperature: 0, n_predict: 8 },
    varies: true,
  },
  {
    route: 'POST /apply-template',
    title: 'The prompt of a conversation',
    body: { messages: [QUESTION] },
  },
  { route: 'GET /props', title: 'What is served', varies: true },
  { route: 'GET /slots', title: 'How many slots are busy', varies: true, showsFirst: true },
  { route: 'GET /v1/health', title: 'Readiness' },
]

const AI00: readonly ExampleRequest[] = ['', '/v1'].flatMap((version) => [
  { route: `GET /api/oai${version}/models`, title: 'The models', varies: true as const },
  {
    route: `POST /api/oai${version}/chat/completions`,
    title: 'A question',
    body: { messages: [QUESTION], ...GREEDY },
  },
  {
    route: `POST /api/oai${version}/completions`,
    title: 'Text to continue',
    body: { prompt: RAW, stop: ['\n\n'], ...GREEDY },
  },
  {
    route: `POST /api/oai${version}/embeddings`,
    title: 'Texts to vectors',
    body: { input: 'Paris', dimensions: 4 },
    varies: true as const,
  },
])

const CONTENTS = {
  contents: [RAW, RAW.replace('Japan', 'Italy')],
  max_tokens: 8,
  temperature: 0,
  top_k: 1,
}

const LIGHTNING: readonly ExampleRequest[] = [
  ...['/v2/chat/completions', '/big_batch/completions'].map((path) => ({
    route: `POST ${path}`,
    title: 'Several prompts at once',
    body: { ...CONTENTS, stream: false },
  })),
  {
    route: 'POST /v1/batch/completions',
    title: 'Several prompts at once, each choice an event',
    body: { ...CONTENTS, contents: [RAW], stream: true },
    varies: true,
  },
  {
    route: 'POST /v3/chat/completions',
    title: 'Questions, each its own conversation',
    body: {
      contents: ['What is the capital of Japan?'],
      max_tokens: 8,
      temperature: 0,
      top_k: 1,
      stream: false,
    },
  },
  {
    route: 'POST /FIM/v1/batch-FIM',
    title: 'Fill in between',
    body: {
      prefix: ['The capital of'],
      suffix: ['is Rome.'],
      max_tokens: 8,
      temperature: 0,
      top_k: 1,
      stream: false,
    },
  },
  {
    route: 'POST /openai/v1/chat/completions',
    title: 'A conversation, with the defaults of rwkv_lightning',
    body: { messages: [QUESTION], ...GREEDY },
  },
  { route: 'GET /openai/v1/models', title: 'The models', varies: true },
  {
    route: 'POST /state/chat/completions',
    title: 'A session continued with a raw prompt',
    body: { ...CONTENTS, contents: [RAW], session_id: 'lightning', stream: false },
  },
  {
    route: 'POST /multi_state/chat/completions',
    title: 'A new turn after turn 0',
    body: {
      ...CONTENTS,
      contents: [RAW],
      session_id: 'tree',
      dialogue_idx: 0,
      stream: false,
    },
  },
  { route: 'POST /state/status', title: 'Where the states are', body: {}, varies: true },
  { route: 'POST /state/delete', title: 'Forget one', body: { session_id: 'lightning' } },
  { route: 'POST /v1/tokens/count', title: 'How long a text is', body: { text: 'Hello' } },
  { route: 'GET /v1/server/status', title: 'What runs', varies: true },
  ...['stop', 'pause', 'resume'].map((word) => ({
    route: `POST /v1/server/${word}`,
    title: `A request of one's own: ${word}`,
    body: { request_id: 'none-such' },
  })),
  {
    route: 'POST /translate/v1/batch-translate',
    title: 'Texts to another language',
    body: { source_lang: 'en', target_lang: 'zh-CN', text_list: ['Good morning'] },
  },
]

const INFER: readonly ExampleRequest[] = [
  {
    route: 'POST /loadmodel',
    title: 'Serve a file of the model folder',
    body: { model_filename: 'demo.pth', model_viewname: 'second', model_strategy: 'int8' },
  },
  { route: 'GET /models', title: 'The models and their start states' },
  {
    route: 'POST /chat/completions',
    title: 'A question',
    body: { model: 'second', messages: [QUESTION], temperature: 0, top_p: 0, max_tokens: 24 },
  },
  {
    route: 'POST /loadstatemodel',
    title: 'A tuned start state',
    body: { state_filename: 'poet.pth', state_viewname: 'poet' },
  },
  {
    route: 'POST /mrss_loadstatemodel',
    title: 'Several that answer together',
    body: {
      state_viewname: 'both',
      state_filenames: ['poet.pth', 'clerk.pth'],
      state_gatingweight: [0.5, 0.5],
    },
  },
  {
    route: 'POST /mrss_set_gatingweight',
    title: 'Other weights',
    body: { state_viewname: 'both', state_gatingweight: [0.3, 0.7] },
  },
  { route: 'POST /removestatemodel', title: 'None of them any more', body: {} },
  { route: 'POST /removemodel', title: 'Remove a model', body: { model_viewname: 'second' } },
  {
    route: 'POST /switch-model',
    title: 'RWKV-Runner: another model instead',
    body: { model: 'demo.pth', strategy: 'cpu fp32' },
  },
  { route: 'GET /status', title: 'RWKV-Runner: 3 is working', varies: true },
]

const SERVER: readonly ExampleRequest[] = [
  { route: 'GET /livez', title: 'The process answers' },
  { route: 'GET /readyz', title: 'A model can answer', varies: true },
  { route: 'GET /health', title: 'Readiness and load', varies: true },
  { route: 'GET /version', title: 'The version' },
  { route: 'GET /v1/queue/status', title: 'How full it is', varies: true },
  { route: 'GET /v1/stats', title: 'Counters', varies: true },
  { route: 'GET /v1/me', title: 'Whose key this is', varies: true },
  { route: 'GET /api/system', title: 'The machine', varies: true },
  { route: 'GET /api/models', title: 'Files that a worker can be started with', varies: true },
  { route: 'GET /api/models/hub', title: 'Search the hub', query: 'search=rwkv7' },
  {
    route: 'GET /api/models/hub/files',
    title: 'The models of a repository',
    query: 'repository=someone/rwkv7-tiny',
  },
  {
    route: 'POST /api/models/pulls',
    title: 'Fetch one',
    body: { name: 'someone/rwkv7-tiny:tiny.pth' },
    varies: true,
  },
  {
    route: 'GET /api/models/pulls',
    title: 'How far it is',
    until: '"done"',
    varies: true,
  },
  {
    route: 'DELETE /api/models/{name}',
    title: 'Delete what was fetched',
    params: { name: 'tiny' },
  },
  {
    route: 'POST /api/models/quantise',
    title: 'Write a smaller file',
    body: { model_path: 'demo', quant: 'int8' },
    varies: true,
  },
  {
    route: 'POST /api/workers/start',
    title: 'Start a worker',
    body: { model_path: 'demo', model_name: 'extra' },
    keeps: { worker: 'worker_id' },
    varies: true,
  },
  { route: 'GET /api/workers', title: 'The workers', varies: true, showsFirst: true },
  {
    route: 'GET /api/workers/{id}/proxy/{path}',
    title: 'Any route of one worker',
    params: { id: '$worker', path: 'v1/models' },
    varies: true,
  },
  {
    route: 'GET /api/requests',
    title: 'The last requests, without their words',
    showsFirst: true,
    varies: true,
  },
  {
    route: 'GET /api/workers/{id}',
    title: 'One worker',
    params: { id: '$worker' },
    until: '"ready"',
    varies: true,
  },
  {
    route: 'GET /api/workers/{id}/logs',
    title: 'What it has printed',
    params: { id: '$worker' },
    query: 'tail=2',
    varies: true,
  },
  {
    route: 'POST /api/workers/{id}/restart',
    title: 'Start it again',
    params: { id: '$worker' },
    varies: true,
  },
  {
    route: 'POST /api/workers/{id}/stop',
    title: 'Let it finish and end',
    params: { id: '$worker' },
  },
  {
    route: 'DELETE /api/workers/{id}',
    title: 'Forget it',
    params: { id: '$worker' },
    until: '"ok"',
  },
  { route: 'GET /api/keys', title: 'The named keys' },
  {
    route: 'POST /api/keys',
    title: 'The first key: it closes the server',
    body: { name: 'root', role: 'admin' },
    keeps: { key: 'secret' },
  },
  {
    route: 'POST /api/keys/{name}',
    title: 'Thirty more days, and no more than 600 requests a minute',
    params: { name: 'root' },
    body: { expires_in_seconds: 2_592_000, limits: { requests_per_minute: 600 } },
  },
  {
    route: 'POST /api/keys/{name}/rotate',
    title: 'A new secret, the old one good for an hour',
    params: { name: 'root' },
    body: { grace_seconds: 3600 },
  },
  { route: 'DELETE /api/keys/{name}', title: 'Revoke a key', params: { name: 'nobody' } },
]

/** Chapters of the reference page. */
export const CHAPTERS: Readonly<Record<string, readonly ExampleRequest[]>> = {
  OpenAI: OPENAI,
  'Embeddings and ranking': EMBEDDINGS,
  'Files and batches': BATCHES,
  Sessions: SESSIONS,
  Responses: RESPONSES,
  Anthropic: ANTHROPIC,
  Ollama: [...OLLAMA, ...OLLAMA_EMBEDDINGS],
  'llama.cpp': LLAMA,
  ai00: AI00,
  'rwkv_lightning and translation': LIGHTNING,
  'RWKV-Infer and RWKV-Runner': INFER,
  'The server itself': SERVER,
}

/** Routes without an example, and why. */
export const WITHOUT: Readonly<Record<string, string>> = {
  'GET /metrics': 'Prometheus’ text; operations.md lists every figure',
  'GET /openapi.json': 'the description of all of these',
  'GET /api/events': 'events for as long as one listens',
  'GET /api/workers/{id}/logs/stream': 'events for as long as one listens',
}
