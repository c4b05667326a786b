/**
 * How much of the engine's speed a batch of translations gets: starts `skein serve` from dist, sends texts of some 60
 * tokens in one call, and compares the time with what the engine alone needs for as many tokens (`skein bench engine` in
 * the same run). The first text waits for the model; then the call is made three times.
 *
 *   node scripts/bench-translate.js MODEL [TEXTS] [DEVICE] [serve's flags …]
 */
import { execFileSync } from 'node:child_process'
import { question } from './questions.mjs'
import { MAIN, startServer } from './server.mjs'

const [model = 'demo', texts = '512', device = 'cpu', ...flags] = process.argv.slice(2)
const count = Number(texts)
const bench = ['bench', 'engine', model, '--device', device, '--decode', texts, '--prefill', '8x64', '--seconds', '1']
const output = execFileSync(process.execPath, [MAIN, ...bench, '--json'], {
  encoding: 'utf8',
  stdio: ['ignore', 'pipe', 'inherit'],
})
const { rows } = JSON.parse(output.slice(output.indexOf('{')))
/** Milliseconds of a token. @param {string} kind */
const alone = (kind) => 1000 / rows.find((/** @type {{kind: string}} */ row) => row.kind === kind).step.tokensPerSecond
const [decodeMs, prefillMs] = [alone('decode'), alone('prefill')]

const words = [model, '--device', device, '--slots', texts, '--no-store', '--log-level', 'warn', ...flags]
const { url, stop } = await startServer(words, { stderr: 'inherit' })

/** @param {string[]} list */
async function translate(list) {
  const body = JSON.stringify({ source_lang: 'English', target_lang: 'Chinese', text_list: list })
  const reply = await fetch(`${url}/translate/v1/batch-translate`, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body,
  })
  if (!reply.ok) throw new Error(`${reply.status} ${await reply.text()}`)
  return reply.json()
}

/** @param {string} name */
async function metric(name) {
  const text = await (await fetch(`${url}/metrics`)).text()
  const line = text.split('\n').find((each) => each.startsWith(`${name}{`))
  return Number(line?.split(' ').at(-1) ?? 0)
}

const used = () => Promise.all(['skein_prompt_tokens_total', 'skein_generation_tokens_total'].map(metric))

try {
  await translate([question(30).prompt])
  for (let round = 0; round < 3; round++) {
    // 50 to 64 words of the demo model's, each text another.
    const list = Array.from({ length: count }, (_, i) => question(60 * (round * count + i) + 45 + (i % 15)).prompt)
    const before = await used()
    const begun = performance.now()
    const { translations } = await translate(list)
    const ms = performance.now() - begun
    const [prompt, generated] = (await used()).map((tokens, i) => tokens - (before[i] ?? 0))
    const least = (prompt ?? 0) * prefillMs + (generated ?? 0) * decodeMs
    console.log(
      `${translations.length} texts, ${prompt} tokens read, ${generated} written in ${(ms / 1000).toFixed(2)} s; ` +
        `the engine alone ${(least / 1000).toFixed(2)} s: ${((100 * least) / ms).toFixed(1)} %`,
    )
  }
} finally {
  await stop()
}
