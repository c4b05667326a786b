/** `skein serve`: starts the server. Prints the models and devices, who may use it, and a first request to try. */
import { existsSync } from 'node:fs'
import { networkInterfaces } from 'node:os'
import { endLeasesOf } from '../cluster/lease.ts'
import type { SkeinError } from '../errors.ts'
import { packageVersion } from '../files/version.ts'
import { isLoopback, resolveAuth } from '../gateway/access/auth.ts'
import { KeyRing } from '../gateway/access/keys-file.ts'
import { shutDownOnSignals } from '../gateway/http/shutdown.ts'
import { DEMO_NAME, modelPath } from '../host/checkpoints/model-path.ts'
import { createLogger } from '../host/log.ts'
import type { ClusterChoice } from '../host/model-choice.ts'
import { type Server, startServer } from '../host/server.ts'
import { shortenSlice } from '../host/slice.ts'
import { openNotifier, watchEventLoop } from '../host/watchdog.ts'
import type { ConfigFile } from '../settings/config-file.ts'
import { bytesOf, engineChoice, keyFilePath, stateChoice } from '../settings/engine-choice.ts'
import { entriesOf, launchesOf, refuseFlagsOfOneModel } from '../settings/models.ts'
import { clusterChoice, networkChoice, refuseEmptyKeys } from '../settings/network.ts'
import { configPath, type ServeSettings, settleServe, valuesOf, withFields } from '../settings/serve-settings.ts'
import { MODEL_WORDS, SETTINGS } from '../settings/table.ts'
import { lowerHelpers } from '../threads/helpers.ts'
import { offerFirst, offerMissing } from './models/fetch.ts'
import { pullAll } from './models/pull.ts'
import { defineCommand } from './terminal/command.ts'
import { formatBytes, formatCount, progressBar } from './terminal/output.ts'

export const serve = defineCommand({
  examples: [
    ['skein serve', 'the demo model, for this machine only'],
    ['skein serve MODEL.pth --quant int8', 'half the memory'],
    ['skein serve a=A.pth b=B.pth', 'two models, called a and b'],
    ['skein serve MODEL.pth --host 0.0.0.0', 'reachable from other machines; a key is generated and shown'],
  ],
  words: {
    model: {
      description: `${MODEL_WORDS.model.description}; several models as FILE or NAME=FILE each`,
      hint: 'FILE|NAME',
      isMany: true,
    },
  },
  flags: SETTINGS,
  async run({ words, given }) {
    lowerHelpers()
    const path = configPath(given.get('config'), existsSync)
    const asked = settleServe({ given, words }, path)
    const { file, notes } = asked
    for (const note of notes) process.stderr.write(`skein: ${note}\n`)
    const settings = await withModel(asked)
    const { choice, options, access, logLevel, drainSeconds, keyFile } = withFields(settings, () => servePlan(settings))
    noteMissingFolder(options.modelDir)
    if (settings.raw.keys !== undefined && !existsSync(keyFile))
      process.stderr.write(
        `skein: --keys: there is no file ${keyFile}; skein keys add NAME --keys ${keyFile} makes it\n`,
      )
    const logger = createLogger(logLevel)
    const onProblem = (error: SkeinError) => {
      logger.error({ err: error }, 'the keys stay as they were')
    }
    const { cluster } = choice
    const membership = cluster === undefined ? null : await join(cluster, onProblem)
    const keyRing = membership?.keyRing ?? new KeyRing(keyFile, onProblem)
    const auth = resolveAuth({ ...access, numNamed: keyRing.keys.length })
    keyRing.follow()
    watchEventLoop()
    const server = await startServer(choice, {
      ...options,
      keys: auth.keys,
      keyRing,
      seal: membership?.seal,
      rates: membership?.rates.limits,
      batches: membership?.batches,
      onWorkerEnd: (node, pid) => {
        // If the database cannot be reached, the leases expire by themselves.
        if (membership !== null) endLeasesOf(membership.database, node, pid).catch(() => {})
      },
      logger,
      onProgress: progressBar('loading'),
      onListening: (listening) => {
        endOnSignals(listening, drainSeconds, cluster === undefined ? 0 : REFUSE_MS)
        tellStarter()
      },
    })
    if (server.drain.isDraining) return
    shortenSlice()
    const named = keyRing.keys.length > 0 ? ' (skein keys list shows the named ones)' : ''
    const needsKey = auth.keys.length + keyRing.keys.length > 0
    const { message, generatedKey } = auth
    // A generated key is shown together with the line that sets it.
    const isKeySet = generatedKey !== null || Boolean(process.env.SKEIN_API_KEY)
    greet(server, { file, access: message + named, needsKey, isKeySet, host: options.host })
  },
})

/**
 * Offers to download a model that is named but missing, or a first model if the demo model would be served otherwise.
 */
async function withModel(settings: ServeSettings): Promise<ServeSettings> {
  const { words, models, raw } = settings
  await offerMissing(words)
  const isForDemo = words.length === 0 && models.length === 0 && raw['without-model'] !== true
  if (!isForDemo || !isLoopback(valuesOf(settings, ['host']).host)) return settings
  const first = await offerFirst()
  if (first === null) return settings
  await pullAll(first)
  return { ...settings, words: [first] }
}

/** Only members of a cluster load the driver of its database. */
async function join(cluster: ClusterChoice, onProblem: (error: SkeinError) => void) {
  const { joinCluster, openClusterBatches } = await import('../host/membership.ts')
  const membership = await joinCluster(cluster, onProblem)
  return { ...membership, batches: openClusterBatches(membership, cluster.blobs) }
}

/** Tells systemd, if it started us: it waits for READY, and restarts a server that stops sending WATCHDOG. */
function tellStarter(): void {
  const { send, watchdogMs } = openNotifier()
  send('READY=1')
  if (watchdogMs !== null) setInterval(() => send('WATCHDOG=1'), watchdogMs / 3).unref()
}

/** How long a node refuses requests before it stops. Gateways notice within seconds and then skip the node. */
const REFUSE_MS = 3000

function endOnSignals({ app, drain, models }: Server, drainSeconds: number, refuseMs: number): void {
  shutDownOnSignals(
    {
      app,
      drain,
      stopWorkers: () => models.stop(),
      timeoutMs: 1000 * drainSeconds,
      refuseMs,
      onWait: (count) =>
        process.stderr.write(
          `skein: waiting up to ${drainSeconds} s for ${count} requests to finish; a second Ctrl-C or signal stops at once\n`,
        ),
    },
    (code) => process.exit(code),
  )
}

/** Only a note: the folder may be mounted later. */
function noteMissingFolder(path: string | undefined): void {
  if (path === undefined || existsSync(path)) return
  process.stderr.write(
    `skein: --model-dir: there is no folder ${path}; no models can be loaded over HTTP until it exists\n`,
  )
}

export function servePlan(settings: ServeSettings) {
  const { file, models, raw, words } = settings
  refuseEmptyKeys(raw)
  const args = valuesOf(settings)
  if (models.length > 0) refuseFlagsOfOneModel(args)
  const entries = models.length > 0 ? models : entriesOf(words, args)
  const model = entries[0] === undefined ? null : modelPath(entries[0].file)
  const network = networkChoice(args)
  return {
    choice: {
      ...engineChoice({ ...args, model: entries[0]?.file }),
      ...stateChoice(args),
      embeddings: args.embeddings,
      reranker: args.reranker,
      toolTemplate: args['tool-template'],
      cluster: clusterChoice(args),
      model,
    },
    options: {
      launches: launchesOf(entries, args),
      maxWorkerBytes: bytesOf(args['max-worker-mb']),
      ...network.options,
      metricsPort: args['metrics-port'],
      traceEndpoint: args['trace-endpoint'],
      modelDir: args['model-dir'],
      limits: file?.limits ?? {},
    },
    access: network.access,
    logLevel: network.logLevel,
    drainSeconds: network.drainSeconds,
    keyFile: keyFilePath(args),
  }
}

const SET_KEY = "with     export SKEIN_API_KEY='a key of this server'\n"

interface Greeting {
  readonly file: ConfigFile | null
  readonly access: string
  readonly needsKey: boolean
  /** Whether the reader has the key in $SKEIN_API_KEY. */
  readonly isKeySet: boolean
  readonly host: string
}

function greet({ url, models }: Server, { file, access, needsKey, isKeySet, host }: Greeting): void {
  const config = file === null ? '' : `config   ${file.path}\n`
  const list = models.registry.list()
  const elsewhere = networkUrls(url, host).map((one) => `         ${one}  (from other machines)\n`)
  process.stdout.write(`skein ${packageVersion()}
${config}${describeModels(list)}
address  ${url}  (the dashboard, in a browser)
${elsewhere.join('')}access   ${access}

${needsKey && !isKeySet ? SET_KEY : ''}${suggest(url, list, needsKey)}

Ctrl-C stops it.
`)
}

/** The addresses of the network cards, for a server that listens on every address. */
function networkUrls(url: string, host: string): string[] {
  if (host !== '0.0.0.0' && host !== '::') return []
  return Object.values(networkInterfaces())
    .flatMap((card = []) => card)
    .filter(({ internal, family }) => !internal && family === 'IPv4')
    .map(({ address }) => url.replace(/\/\/.*:/, `//${address}:`))
}

type ModelEntry = ReturnType<Server['models']['registry']['list']>[number]

function suggest(url: string, models: readonly ModelEntry[], needsKey: boolean): string {
  // In double quotes, so that the shell inserts the key.
  const key = needsKey ? ' -H "authorization: Bearer $SKEIN_API_KEY"' : ''
  const post = (path: string, body: object) =>
    `try      curl ${url}${path}${key} -H 'content-type: application/json' \\\n           -d '${JSON.stringify(body)}'`
  const [first, second] = models
  if (first === undefined)
    return `${post('/api/workers/start', { model_path: DEMO_NAME })}\nor       start one on the page Models of the dashboard`
  const model = second === undefined ? {} : { model: first.id }
  const messages = [{ role: 'user', content: 'What is the capital of France?' }]
  const at = url === 'http://127.0.0.1:8000' ? '' : ` --url ${url}`
  const named = second === undefined ? '' : ` --model-name ${first.id}`
  return `${post('/v1/chat/completions', { ...model, messages })}\nor       npx skein chat${at}${named}`
}

function describeModels(models: readonly ModelEntry[]): string {
  if (models.length === 0)
    return 'model    none: name one on the command line (demo is the bundled one), or start one as below'
  return models.map(describeModel).join('\n')
}

function describeModel({ id, client }: ModelEntry): string {
  if (client === null) return `model    ${id}: not ready`
  const { model, numSlots } = client.info
  const { architecture, numParameters, weightType, weightBytes, device } = model
  return `model    ${id}: ${architecture}, ${formatCount(numParameters)} parameters, ${weightType}, ${formatBytes(weightBytes)}
device   ${device}; ${numSlots} sequences at once`
}
