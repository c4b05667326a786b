/** `skein bench serve`: sends a load to a server, Skein or another, and reports its speed. */

import { readFileSync, writeFileSync } from 'node:fs'
import { benchServe, type Dataset, type ServeBench, type ServeBenchPlan } from '../../bench/serve/bench.ts'
import { ENDPOINTS, endpointOf } from '../../bench/serve/endpoints.ts'
import { htmlReport } from '../../bench/serve/page.ts'
import { parsePromptFile } from '../../bench/serve/prompts.ts'
import { figureRows, headline, settingOf, timeRows, warnings } from '../../bench/serve/report.ts'
import { SkeinError } from '../../errors.ts'
import { parsedJson } from '../../files/bytes.ts'
import { choice, number, path, text, toggle, whole } from '../../settings/flags.ts'
import { refusal, type Values } from '../../settings/values.ts'
import { serverUrl } from '../remote.ts'
import { defineCommand } from '../terminal/command.ts'
import { INTERRUPTED, printTable, progressBar } from '../terminal/output.ts'

const DEFAULT_INPUT_TOKENS = 512
const DEFAULT_OUTPUT_TOKENS = 256

const FLAGS = {
  url: text('Base URL of the server, without /v1', { default: 'http://127.0.0.1:8000', hint: 'URL' }),
  'api-key': text('Key of the server (default: $SKEIN_API_KEY)', { hint: 'KEY' }),
  model: text('Name in the API (default: the first of /v1/models)', { hint: 'NAME' }),
  endpoint: choice(ENDPOINTS)(`${ENDPOINTS.join(', ')} (the last two: lists of contents, as rwkv_lightning)`, {
    default: 'completions',
  }),
  'num-prompts': whole(1, 10_000_000)('Prompts to send', { default: '1000' }),
  batch: whole(1, 65_536)('Prompts per request, for lightning', { default: '1' }),
  'request-rate': text('Requests per second, at random (Poisson) times; inf sends all at once', {
    default: 'inf',
    hint: 'N|inf',
  }),
  concurrency: whole(1, 1_000_000)('Maximum requests in flight (default: no limit)'),
  dataset: text('random words, or a file: ShareGPT .json, .jsonl, or text with one prompt per line', {
    default: 'random',
    hint: 'random|FILE',
  }),
  'input-len': whole(1, 10_000_000)(`Tokens of a random prompt (default ${DEFAULT_INPUT_TOKENS})`),
  'output-len': whole(
    1,
    1_000_000,
  )(`Most tokens of an answer (default ${DEFAULT_OUTPUT_TOKENS}; of a file: as it says)`),
  'range-ratio': number(
    0,
    1,
  )('Random lengths lie between this share of the lengths above and the full lengths (default 0)'),
  'no-stream': toggle('Ask for whole answers instead of streams'),
  'ignore-eos': toggle('Generate answers to their full length'),
  temperature: number(0, 1000)('Sampling temperature; 0 is greedy', { default: '0' }),
  'extra-body': text('JSON fields to add to each request or to replace in it', { hint: 'JSON' }),
  seed: whole(0, 2 ** 31)('Seed of prompts, lengths and times', { default: '1' }),
  timeout: number(0.001, 1_000_000)('Seconds that a request may take', { default: '600' }),
  json: path('Write all measurements as JSON; - prints them'),
  html: path('Write a page with charts'),
}

type Given = Values<typeof FLAGS>

export const benchServeCommand = defineCommand({
  description: 'Send a load of requests to a server and time its answers',
  examples: [['skein bench serve --url http://127.0.0.1:8000', 'Skein, or any server with the OpenAI API']],
  flags: FLAGS,
  async run({ args }) {
    const interrupt = new AbortController()
    const onInterrupt = () => interrupt.abort()
    process.once('SIGINT', onInterrupt)
    const progress = progressBar('requests', String)
    const plan = planOf(args, progress, interrupt.signal)
    try {
      const bench = await benchServe(plan)
      report(bench, plan, { json: args.json, html: args.html })
      const isWhole = bench.summary.numSucceeded === bench.numPlanned
      if (!isWhole) process.exitCode = interrupt.signal.aborted ? INTERRUPTED : 1
    } finally {
      // Shows the terminal's cursor again, also after an error or an interrupt.
      progress(1, 1)
      process.off('SIGINT', onInterrupt)
    }
  },
})

function planOf(args: Given, onProgress: ServeBenchPlan['onProgress'], signal: AbortSignal): ServeBenchPlan {
  const { endpoint, batch } = args
  if (batch > 1 && !endpointOf(endpoint).takesBatch)
    throw invalid('batch', `--endpoint ${endpoint} takes one prompt a request; leave --batch out`)
  return {
    url: serverUrl(args.url),
    apiKey: args['api-key'] ?? process.env.SKEIN_API_KEY,
    endpoint,
    model: args.model,
    settings: {
      isStream: !args['no-stream'],
      ignoreEos: args['ignore-eos'],
      temperature: args.temperature,
      extra: extraBody(args['extra-body']),
    },
    dataset: datasetOf(args),
    numPrompts: args['num-prompts'],
    batch,
    requestRate: requestRate(args['request-rate']),
    concurrency: args.concurrency ?? Number.POSITIVE_INFINITY,
    timeoutMs: 1000 * args.timeout,
    seed: args.seed,
    onProgress,
    signal,
  }
}

function requestRate(given: string): number {
  const rate = given === 'inf' ? Number.POSITIVE_INFINITY : Number(given)
  if (given === 'inf' || (rate >= 0.0001 && rate <= 1_000_000)) return rate
  throw refusal('request-rate', `a number from 0.0001 to 1000000, or inf, not "${given}"`)
}

function extraBody(given: string | undefined): Readonly<Record<string, unknown>> {
  if (given === undefined) return {}
  const value = parsedJson(given)
  if (typeof value !== 'object' || value === null || Array.isArray(value))
    throw invalid('extra-body', `--extra-body takes a JSON object, not ${given}`)
  // A JSON object has string keys.
  return value as Record<string, unknown>
}

function datasetOf(args: Given): Dataset {
  const { dataset: name, 'output-len': outputTokens, 'input-len': inputTokens, 'range-ratio': rangeRatio } = args
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
      '--input-len and --range-ratio apply to random prompts, not to those of a file',
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
  if (files.html !== undefined) writeFileSync(files.html, htmlReport(bench, JSON.stringify(setting), date))
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

/** Clocks are no finer than this, and it makes files a third of the size. */
function thousandths(_key: string, value: unknown): unknown {
  return typeof value === 'number' ? Math.round(value * 1000) / 1000 : value
}
