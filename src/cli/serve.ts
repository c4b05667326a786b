/** `skein serve`: the server itself. Says on start what runs where, who may use it, and what to try first. */
import { existsSync } from 'node:fs'
import { type ArgsDef, defineCommand } from 'citty'
import type { ConfigFile } from '../config/file.ts'
import { SkeinError } from '../errors.ts'
import { resolveAuth } from '../gateway/auth.ts'
import { KeyRing } from '../gateway/keys-file.ts'
import { shutDownOnSignals } from '../gateway/shutdown.ts'
import { DEMO_NAME } from '../load.ts'
import { engineArgs, integer, oneOf, startStates, stateArgs, text } from './args.ts'
import { launchesOf } from './config-models.ts'
import { hosted, hostingArgs } from './hosting-args.ts'
import { keyFileArgs, keyFilePath } from './key-file.ts'
import { createLogger, LOG_LEVELS } from './log.ts'
import { formatBytes, formatCount, progressBar } from './output.ts'
import { configPath, type ServeSettings, settleServe, withFields } from './serve-settings.ts'
import { type Server, startServer } from './server.ts'
import { sessionArgs, stateChoice } from './session-args.ts'
import { packageVersion } from './version.ts'

const DEFAULT_DRAIN_SECONDS = 30

export const serveArgs = {
  ...engineArgs,
  model: {
    ...engineArgs.model,
    description: `${engineArgs.model.description}; several models as FILE or NAME=FILE each`,
  },
  ...stateArgs,
  ...sessionArgs,
  ...hostingArgs,
  host: {
    type: 'string',
    default: '127.0.0.1',
    description: 'Address to listen on; any but this machine needs a key',
  },
  port: { type: 'string', default: '8000', description: 'Port; 0 takes a free one' },
  'model-name': { type: 'string', description: 'Name in the API (default: name of FILE)' },
  'api-key': {
    type: 'string',
    description: 'Key that requests must carry; several with commas',
  },
  password: { type: 'string', description: 'The same as --api-key' },
  ...keyFileArgs,
  'no-auth': { type: 'boolean', description: 'Serve a public address without any key' },
  'allow-origin': {
    type: 'string',
    description: 'Web origins that may call this server, with commas between',
  },
  'allow-host': {
    type: 'string',
    description: 'More names this server may be addressed by, with commas between',
  },
  'drain-seconds': {
    type: 'string',
    description: `How long streams may finish after SIGTERM (default ${DEFAULT_DRAIN_SECONDS})`,
  },
  'metrics-port': {
    type: 'string',
    description: 'Also serve /metrics on this port, without a key (default: only with one)',
  },
  'trace-endpoint': {
    type: 'string',
    description: 'Send traces to this OpenTelemetry collector (OTLP over HTTP)',
    valueHint: 'URL',
  },
  'log-level': {
    type: 'string',
    description: `${LOG_LEVELS.join(', ')} (default: warn on a terminal, else info)`,
  },
  config: {
    type: 'string',
    description:
      'File of settings (default: skein.config.json, if there is one; --no-config: none)',
    valueHint: 'FILE',
  },
} as const satisfies ArgsDef

/** Flags that stand alone, as they are written. Any may be denied: "--no-config". */
export const switchesOfServe: ReadonlySet<string> = new Set(
  Object.entries(serveArgs).flatMap(([name, { type }]) =>
    type === 'boolean' ? [`--${name}`, `--no-${name}`] : [`--no-${name}`],
  ),
)

export const serve = defineCommand({
  meta: { name: 'serve', description: 'Serve a model over HTTP (the demo model without FILE)' },
  args: serveArgs,
  async run({ args: parsed, rawArgs: words }) {
    const path = configPath(parsed, existsSync)
    const settings = settleServe(serveArgs, { args: parsed, words }, path)
    const { args, file, notes } = settings
    for (const note of notes) process.stderr.write(`skein: ${note}\n`)
    const { choice, options, access, logLevel, drainSeconds } = withFields(settings, () =>
      servePlan(settings),
    )
    noteMissingFolder(options.modelDir)
    const logger = createLogger(logLevel)
    const keyRing = new KeyRing(keyFilePath(args), (error) => {
      logger.error({ err: error }, 'the keys stay as they were')
    })
    const auth = resolveAuth({ ...access, numNamed: keyRing.keys.length })
    keyRing.follow()
    const server = await startServer(choice, {
      ...options,
      keys: auth.keys,
      keyRing,
      logger,
      onProgress: progressBar('loading'),
      onListening: (listening) => endOnSignals(listening, drainSeconds),
    })
    if (server.drain.isDraining) return
    const named = keyRing.keys.length > 0 ? ' (skein keys list shows the named ones)' : ''
    greet(server, file, auth.message + named, auth.keys.length + keyRing.keys.length > 0)
  },
})

function endOnSignals({ app, drain, models }: Server, drainSeconds: number): void {
  shutDownOnSignals(
    {
      app,
      drain,
      stopWorkers: () => models.stop(),
      timeoutMs: 1000 * drainSeconds,
      onWait: (count) =>
        process.stderr.write(
          `skein: waiting up to ${drainSeconds} s for ${count} requests to end; once more ends at once\n`,
        ),
    },
    (code) => process.exit(code),
  )
}

/** It may come later, as one that is mounted does. */
function noteMissingFolder(path: string | undefined): void {
  if (path === undefined || existsSync(path)) return
  process.stderr.write(
    `skein: --model-dir: there is no folder ${path}; until there is, no models can be loaded over HTTP\n`,
  )
}

/** Everything that the settings say, read. Throws for the first that is wrong. */
export function servePlan({ args, file, models }: ServeSettings) {
  const host = text(args, 'host')!
  const { choice, ...hosting } = hosted(args)
  return {
    choice: { ...choice, ...stateChoice(args), startStates: startStates(args) },
    options: {
      ...hosting,
      host,
      port: integer(args, 'port', 0, 65_535),
      metricsPort: integer(args, 'metrics-port', 0, 65_535),
      traceEndpoint: text(args, 'trace-endpoint'),
      modelDir: text(args, 'model-dir'),
      openTranslate: args['open-translate'] === true,
      allowedOrigins: list(text(args, 'allow-origin')),
      allowedHosts: list(text(args, 'allow-host')),
      limits: file?.limits ?? {},
      ...(models.length === 0 ? {} : { launches: launchesOf(models, args) }),
    },
    access: {
      host,
      apiKey: secret(args, 'api-key'),
      password: secret(args, 'password'),
      // citty reads --no-auth as the negation of a flag `auth`.
      noAuth: args['no-auth'] === true || args.auth === false,
    },
    logLevel: oneOf(args, 'log-level', LOG_LEVELS),
    drainSeconds: integer(args, 'drain-seconds', 0, 86_400) ?? DEFAULT_DRAIN_SECONDS,
  }
}

/** Empty is most often a variable of the shell that is not set; to serve without a key for that would open what was meant closed. */
function secret(args: Readonly<Record<string, unknown>>, name: string): string | undefined {
  const given = args[name]
  if (given === undefined || /[^\s,]/.test(String(given))) return text(args, name)
  throw new SkeinError('invalid_request', `--${name} is empty; give a key, or leave it out`, {
    param: name,
  })
}

function list(given: string | undefined): string[] {
  return given === undefined ? [] : given.split(',').map((part) => part.trim())
}

function greet(
  { url, models }: Server,
  file: ConfigFile | null,
  access: string,
  needsKey: boolean,
): void {
  const config = file === null ? '' : `config   ${file.path}\n`
  const list = models.registry.list()
  process.stdout.write(`skein ${packageVersion()}
${config}${describeModels(list)}
address  ${url}  (the dashboard, in a browser)
access   ${access}

${suggest(url, list, needsKey)}

Ctrl-C stops it.
`)
}

type ModelEntry = ReturnType<Server['models']['registry']['list']>[number]

/** What to type first, as it can be pasted into a shell. */
function suggest(url: string, models: readonly ModelEntry[], needsKey: boolean): string {
  // In double quotes: the shell puts the key there.
  const key = needsKey ? ' -H "authorization: Bearer $SKEIN_API_KEY"' : ''
  const post = (path: string, body: object) =>
    `try      curl ${url}${path}${key} -H 'content-type: application/json' \\\n           -d '${JSON.stringify(body)}'`
  const [first, second] = models
  if (first === undefined)
    return `${post('/api/workers/start', { model_path: DEMO_NAME })}\nor       start one on the page Workers of the dashboard`
  const model = second === undefined ? {} : { model: first.id }
  const messages = [{ role: 'user', content: 'What is the capital of France?' }]
  const at = url === 'http://127.0.0.1:8000' ? '' : ` --url ${url}`
  const named = second === undefined ? '' : ` --model-name ${first.id}`
  return `${post('/v1/chat/completions', { ...model, messages })}\nor       npx skein chat${at}${named}`
}

function describeModels(models: readonly ModelEntry[]): string {
  if (models.length === 0) return 'model    none; POST /api/workers/start starts one'
  const isOnly = models.length === 1
  return models.map((model) => describeModel(model, isOnly)).join('\n')
}

function describeModel({ id, client }: ModelEntry, isOnly: boolean): string {
  const name = isOnly ? '' : `${id}: `
  if (client === null) return `model    ${name}not ready`
  const { model, numSlots } = client.info
  const { architecture, numParameters, weightType, weightBytes, device } = model
  return `model    ${name}${architecture}, ${formatCount(numParameters)} parameters, ${weightType}, ${formatBytes(weightBytes)}
device   ${device}; ${numSlots} sequences at once`
}
