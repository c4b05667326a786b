/**
 * One long session: node scripts/long-session.mjs [turns] [prompt tokens per turn], with the built files and the demo
 * model on a CPU. Runs the same turns twice: saved and read back from the disk every turn (no state stays in memory or
 * in a slot), and never saved. All answers must be equal, and the first token of the last turns must come as soon as
 * that of the first.
 */
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { quantile, startServer } from './server.mjs'

const [turns = 1000, count = 1000] = process.argv.slice(2).map(Number)

/** Its answers, and the milliseconds of every turn. */
async function run(flags) {
  const { url, stop } = await startServer(['--device', 'cpu', '--prefix-cache-mb', '0', ...flags])
  const post = async (body) => {
    const reply = await fetch(`${url}/v1/completions`, {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify({ max_tokens: 4, temperature: 0, ignore_eos: true, logprobs: 2, ...body }),
    })
    const read = await reply.json()
    if (reply.status !== 200) throw new Error(JSON.stringify(read))
    return read
  }
  const [answers, times] = [[], []]
  try {
    for (let turn = 0; turn < turns; turn++) {
      const prompt = Array.from({ length: count }, (_, i) => 1 + ((i * 7919 + turn * 104_729) % 250))
      const began = performance.now()
      const { choices, session } = await post({ prompt, session_id: 'long' })
      times.push(performance.now() - began)
      const [{ text: said, logprobs }] = choices
      if (session.turn !== turn + 1) throw new Error(`turn ${turn + 1} became ${session.turn}`)
      answers.push(JSON.stringify([said, logprobs.token_logprobs]))
    }
    const { head, turns: all } = await (await fetch(`${url}/v1/sessions/long`)).json()
    console.log(`the state of turn ${head} is in: ${all.find(({ turn }) => turn === head).tier}`)
  } finally {
    await stop()
  }
  return { answers, times }
}

function median(times) {
  return quantile(times, 0.5).toFixed(1)
}

const data = mkdtempSync(join(tmpdir(), 'skein-long-session-'))
const saved = await run(['--data-dir', data, '--durable', '--slot-states', '0', '--memory-states', '0'])
rmSync(data, { recursive: true, force: true })
const kept = await run(['--no-store'])
const other = saved.answers.findIndex((answer, i) => answer !== kept.answers[i])
const tenth = Math.ceil(turns / 10)
for (const [name, { times }] of Object.entries({ saved, kept }))
  console.log(
    `${name}: ms of a turn, median of the first tenth ${median(times.slice(0, tenth))}, of the last ${median(times.slice(-tenth))}`,
  )
const different = new Set(saved.answers).size
console.log(
  `${turns} turns of ${count} tokens, ${different} different answers: ${other < 0 ? 'all the same, saved or not' : `turn ${other + 1} differs`}`,
)
process.exit(other < 0 ? 0 : 1)
