/** `skein bench serve`: sends a load to a server, ours or another's, and says how it fared. */
import { readFileSync, writeFileSync } from 'node:fs'
import { defineCommand } from 'citty'
import {
  benchServe,
  type Dataset,
  type ServeBench,
  type ServeBenchPlan,
} from '../bench/serve/bench.ts'
import { ENDPOINTS, endpointOf } from '../bench/serve/endpoints.ts'
import { htmlReport } from '../bench/serve/page.ts'
import { parsePromptFile } from '../bench/serve/prompts.ts'
import { figureRows, headline, settingOf, timeRows, warnings } from '../bench/serve/report.ts'
import { SkeinError } from '../errors.ts'
import { integer, number, oneOf, text } from './args.ts'
import { printTable, progressBar } from './output.ts'

const DEFAULT_INPUT_TOKENS = 512
const DEFAULT_OUTPUT_TOKENS = 256

type Given = { readonly [name: string]: unknown }

export const benchServeCommand = defineCommand({
  meta: { name: 'serve', description: 'Send a load of requests to a server and time its answers' },
  args: {
    url: {
      type: 'string',
      default: 'http://127.0.0.1:8000',
      description: 'Server, of any make; what stands before /v1',
    },
    'api-key': { type: 'string', description: 'Key of the server (default: $SKEIN_API_KEY)' },
    model: { type: 'string', description: 'Name in the API (default: the first of /v1/models)' },
    endpoint: {
      type: 'string',
      default: 'completions',
      description: `${ENDPOINTS.join(', ')} (the last two: lists of contents, as rwkv_lightning)`,
    },
    'num-prompts': { type: 'string', default: '1000', description: 'Prompts to send' },
    batch: { type: 'string', default: '1', description: 'Prompts of one request, for lightning' },
    'request-rate': {
      type: 'string',
      default: 'inf',
      description: 'Requests a second, at random (Poisson) moments; inf sends all at once',
    },
    concurrency: { type: 'string', description: 'Requests in flight at most (default: no limit)' },
    dataset: {
      type: 'string',
      default: 'random',
      description: 'random words, or a file: ShareGPT .json, .jsonl, or text with a prompt a line',
      valueHint: 'random|FILE',
    },
    'input-len': {
      type: 'string',
      description: `Tokens of a random prompt (default ${DEFAULT_INPUT_TOKENS})`,
    },
    'output-len': {
      type: 'string',
      description: `Most tokens of an answer (default ${DEFAULT_OUTPUT_TOKENS}; of a file: as it says)`,
    },
    'range-ratio': {
      type: 'string',
      description: 'Random lengths lie between this share of the above and all of it (default 0)',
    },
    stream: { type: 'boolean', default: true, description: 'Stream answers; --no-stream: whole' },
    'ignore-eos': { type: 'boolean', description: 'Answers go on to their full length' },
    temperature: { type: 'string', default: '0', description: '0 is greedy' },
    'extra-body': { type: 'string', description: 'JSON fields that join or replace those sent' },
    seed: { type: 'string', default: '1', description: 'Of prompts, lengths and moments' },
    timeout: { type: 'string', default: '600', description: 'Seconds that a request may take' },
    json: { type: 'string', description: 'Write everything measured as JSON; - prints it' },
    html: { type: 'string', description: 'Write a page with charts' },
  },
  async run({ args }) {
    const interrupt = new AbortController()
    const onInterrupt = () => interrupt.abort()
    process.once('SIGINT', onInterrupt)
    const progress = progressBar('requests', String)
    const plan = planOf(args, progress, interrupt.signal)
    try {
      const bench = await benchServe(plan)
      report(bench, plan, { json: text(args, 'json'), html: text(args, 'html') })
      const isWhole = bench.summary.numSucceeded === bench.numPlanned
      if (!isWhole) process.exitCode = 1
    } finally {
      // Gives the terminal's cursor back, also after an error or an interrupt.
      progress(1, 1)
      process.off('SIGINT', onInterrupt)
    }
  },
})

function planOf(
  args: Given,
  onProgress: ServeBenchPlan['onProgress'],
  signal: AbortSignal,
): ServeBenchPlan {
  const endpoint = oneOf(args, 'endpoint', ENDPOINTS) ?? 'completions'
  const batch = integer(args, 'batch', 1, 65_536) ?? 1
  if (batch > 1 && !endpointOf(endpoint).takesBatch)
    throw invalid('batch', `--endpoint ${endpoint} takes one prompt a request; leave --batch out`)
  return {
    url: serverUrl(text(args, 'url')!),
    apiKey: text(args, 'api-key') ?? process.env.SKEIN_API_KEY,
    endpoint,
    model: text(args, 'model'),
    settings: {
      isStream: args.stream !== false,
      ignoreEos: args['ignore-eos'] === true,
      temperature: number(args, 'temperature', 0, 1000) ?? 0,
      extra: extraBody(text(args, 'extra-body')),
    },
    dataset: datasetOf(args),
    numPrompts: integer(args, 'num-prompts', 1, 10_000_000) ?? 1000,
    batch,
    requestRate: requestRate(args),
    concurrency: integer(args, 'concurrency', 1, 1_000_000) ?? Number.POSITIVE_INFINITY,
    timeoutMs: 1000 * (number(args, 'timeout', 0.001, 1_000_000) ?? 600),
    seed: integer(args, 'seed', 0, 2 ** 31) ?? 1,
    onProgress,
    signal,
  }
}

/** People paste the base that OpenAI clients want, which ends with /v1. */
function serverUrl(given: string): string {
  const isUrl = URL.canParse(given) && /^https?:$/.test(new URL(given).protocol)
  if (!isUrl) throw invalid('url', `--url takes a URL like http://127.0.0.1:8000, not "${given}"`)
  return given.replace(/\/+$/, '').replace(/\/v1$/, '')
}

function requestRate(args: Given): number {
  if (text(args, 'request-rate') === 'inf') return Number.POSITIVE_INFINITY
  return number(args, 'request-rate', 0.0001, 1_000_000) ?? Number.POSITIVE_INFINITY
}

function extraBody(given: string | undefined): Readonly<Record<string, unknown>> {
  if (given === undefined) return {}
  let value: unknown
  try {
    value = JSON.parse(given)
  } catch {
    value = null
  }
  if (typeof value !== 'object' || value === null || Array.isArray(value))
    throw invalid('extra-body', `--extra-body takes a JSON object, not ${given}`)
  // A JSON object has string keys.
  return value as Record<string, unknown>
}

function datasetOf(args: Given): Dataset {
  const name = text(args, 'dataset') ?? 'random'
  const outputTokens = integer(args, 'output-len', 1, 1_000_000)
  const inputTokens = integer(args, 'input-len', 1, 10_000_000)
  const rangeRatio = number(args, 'range-ratio', 0, 1)
  if (name === 'random') {
    const lengths = {
      inputTokens: inputTokens ?? DEFAULT_INPUT_TOKENS,
      outputTokens: outputTokens ?? DEFAULT_OUTPUT_TOKENS,
      rangeRatio: rangeRatio ?? 0,
    }
    return { kind: 'random', lengths }
  }
  if (inputTokens !== undefined || rangeRatio !== undefined)
    throw invalid(
      inputTokens === undefined ? 'range-ratio' : 'input-len',
      '--input-len and --range-ratio shape random prompts; those of a file are as they are',
    )
  return { kind: 'file', prompts: parsePromptFile(name, readDataset(name)), outputTokens }
}

function readDataset(name: string): string {
  try {
    return readFileSync(name, 'utf8')
  } catch (cause) {
    const { code } = cause as NodeJS.ErrnoException
    throw new SkeinError('not_found', `--dataset ${name} cannot be read (${code})`, { cause })
  }
}

function invalid(param: string, message: string): SkeinError {
  return new SkeinError('invalid_request', message, { param })
}

function report(
  bench: ServeBench,
  plan: ServeBenchPlan,
  files: { readonly json: string | undefined; readonly html: string | undefined },
): void {
  const setting = settingOf(plan)
  const date = new Date()
  const everything = { date, setting, ...JSON.parse(JSON.stringify(bench, thousandths)) }
  const json = `${JSON.stringify(everything, null, 1)}\n`
  if (files.html !== undefined)
    writeFileSync(files.html, htmlReport(bench, JSON.stringify(setting), date))
  if (files.json === '-') {
    process.stdout.write(json)
    return
  }
  if (files.json !== undefined) writeFileSync(files.json, json)
  process.stdout.write(`${headline(bench)}\n\n`)
  printTable(timeRows(bench))
  process.stdout.write('\n')
  for (const [name, value] of figureRows(bench)) process.stdout.write(`${name}: ${value}\n`)
  for (const warning of warnings(bench)) process.stderr.write(`${warning}\n`)
}

/** Clocks are not finer than that, and files are a third of the size. */
function thousandths(_key: string, value: unknown): unknown {
  return typeof value === 'number' ? Math.round(value * 1000) / 1000 : value
}
