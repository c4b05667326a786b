/** `skein serve`: the server itself. Says on start what runs where, who may use it, and what to try first. */
import { defineCommand } from 'citty'
import type { EngineClient } from '../engine/client.ts'
import { resolveAuth } from '../gateway/auth.ts'
import { KeyRing } from '../gateway/keys-file.ts'
import { shutDownOnSignals } from '../gateway/shutdown.ts'
import { engineArgs, integer, oneOf, startStates, stateArgs, text } from './args.ts'
import { hostingArgs, servedChoice } from './hosting-args.ts'
import { keyFileArgs, keyFilePath } from './key-file.ts'
import { createLogger, LOG_LEVELS } from './log.ts'
import { formatBytes, formatCount, progressBar } from './output.ts'
import { type Server, startServer } from './server.ts'
import { sessionArgs, stateChoice } from './session-args.ts'
import { packageVersion } from './version.ts'

const DEFAULT_DRAIN_SECONDS = 30

export const serve = defineCommand({
  meta: { name: 'serve', description: 'Serve a model over HTTP (the demo model without FILE)' },
  args: {
    ...engineArgs,
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
      description: 'Key that requests must carry; several with commas (also $SKEIN_API_KEY)',
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
    'log-level': {
      type: 'string',
      description: `${LOG_LEVELS.join(', ')} (default: warn on a terminal, else info)`,
    },
  },
  async run({ args }) {
    const host = text(args, 'host')!
    const logger = createLogger(oneOf(args, 'log-level', LOG_LEVELS))
    const keyRing = new KeyRing(keyFilePath(args), (error) => {
      logger.error({ err: error }, 'the keys stay as they were')
    })
    const auth = resolveAuth({
      host,
      apiKey: text(args, 'api-key') ?? process.env.SKEIN_API_KEY,
      password: text(args, 'password'),
      // citty reads --no-auth as the negation of a flag `auth`.
      noAuth: args['no-auth'] === true || args.auth === false,
      numNamed: keyRing.keys.length,
    })
    keyRing.follow()
    const server = await startServer(
      { ...servedChoice(args), ...stateChoice(args), startStates: startStates(args) },
      {
        host,
        port: integer(args, 'port', 0, 65_535),
        keys: auth.keys,
        keyRing,
        modelId: text(args, 'model-name'),
        modelDir: text(args, 'model-dir'),
        openTranslate: args['open-translate'] === true,
        allowedOrigins: list(text(args, 'allow-origin')),
        allowedHosts: list(text(args, 'allow-host')),
        logger,
        onProgress: progressBar('loading'),
      },
    )
    greet(server, auth.message, auth.keys.length + keyRing.keys.length > 0)
    const drainSeconds = integer(args, 'drain-seconds', 0, 86_400) ?? DEFAULT_DRAIN_SECONDS
    const { app, drain, models } = server
    shutDownOnSignals(
      { app, drain, stopWorkers: () => models.stop(), timeoutMs: 1000 * drainSeconds },
      (code) => process.exit(code),
    )
  },
})

function list(given: string | undefined): string[] {
  return given === undefined ? [] : given.split(',').map((part) => part.trim())
}

function greet({ url, models }: Server, access: string, needsKey: boolean): void {
  const key = needsKey ? " -H 'authorization: Bearer $SKEIN_API_KEY'" : ''
  process.stdout.write(`skein ${packageVersion()}
${describeModel(models.registry.list()[0]?.client ?? null)}
address  ${url}
access   ${access}

try      curl ${url}/v1/chat/completions${key} -H 'content-type: application/json' \\
           -d '{"messages":[{"role":"user","content":"What is the capital of France?"}]}'
or       npx skein chat${url === 'http://127.0.0.1:8000' ? '' : ` --url ${url}`}

Ctrl-C stops it.
`)
}

function describeModel(client: EngineClient | null): string {
  if (client === null) return 'model    none; POST /loadmodel loads one'
  const { model, numSlots } = client.info
  const { architecture, numParameters, weightType, weightBytes, device } = model
  return `model    ${architecture}, ${formatCount(numParameters)} parameters, ${weightType}, ${formatBytes(weightBytes)}
device   ${device}; ${numSlots} sequences at once`
}
