/** A real worker whose event loop never turns again, with the times of a real server. */
import { mkdtempSync, readFileSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as delay } from 'node:timers/promises'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { childrenOf, type RunningServer, serve } from '../helpers/cli.ts'
import { postJson } from '../helpers/post-json.ts'

// Every process of the server hangs at this signal, in what the variable says.
const HANGS = `process.on('SIGUSR2', () => {
  if (process.env.HANG_IN === 'javascript') for (;;) Math.sqrt(2)
  process.getBuiltinModule('crypto').pbkdf2Sync('a', 'b', 2 ** 31 - 1, 2 ** 20, 'sha512')
})`

const KNOWN_MS = 10_000

let server: RunningServer
let hook: string
beforeAll(() => {
  hook = join(mkdtempSync(join(tmpdir(), 'skein-hang-')), 'hang.mjs')
  writeFileSync(hook, HANGS)
})
afterAll(() => server.stop())

/** How long a process has waited for a core: time in which it does not hang. */
function waitedMs(pid: number): number {
  try {
    return Number(readFileSync(`/proc/${pid}/schedstat`, 'latin1').split(' ')[1]) / 1e6
  } catch {
    return 0
  }
}

const readiness = async () => (await fetch(`${server.url}/readyz`)).json() as Promise<{ status: string }>

function complete(body: object): Promise<Response> {
  return postJson(`${server.url}/v1/completions`, body)
}

// Where others have the cores, the loop's time in their line does not count, and everything takes longer.
const LONG = { timeout: 300_000 }

const onLinux = test.skipIf(process.platform !== 'linux')

onLinux('a worker that spins in JavaScript is known within ten seconds, and replaced', LONG, () =>
  isReplaced('javascript'),
)

onLinux('and so is one in a call of a library', { ...LONG, tags: 'night' }, () => isReplaced('a library'))

async function isReplaced(place: string): Promise<void> {
  await server?.stop()
  server = await serve([], 'serve', { HANG_IN: place, NODE_OPTIONS: `--import=${hook}` })
  expect((await complete({ prompt: 'Once', max_tokens: 5 })).status).toBe(200)
  const stream = await complete({ prompt: 'Once', stream: true, max_tokens: 60_000, ignore_eos: true })
  const [worker] = await childrenOf(server.process.pid!)
  const [began, waitedBefore] = [performance.now(), waitedMs(worker!)]
  let waited = 0
  process.kill(worker!, 'SIGUSR2')
  while ((await readiness()).status === 'ok') {
    waited = Math.max(waited, waitedMs(worker!) - waitedBefore)
    await delay(50)
  }
  expect(performance.now() - began - waited).toBeLessThan(KNOWN_MS)
  // Its stream has an end, and whoever asks now is answered by the next worker.
  expect(await stream.text()).toContain('"error"')
  while ((await readiness()).status !== 'ok') await delay(50)
  expect((await complete({ prompt: 'Once', max_tokens: 5 })).status).toBe(200)
  expect(server.output.join('\n')).toContain('the event loop has stood still')
}
