/** A signal while a model is still loading: answers of another model finish, and nothing stays behind. */
import { fork, spawn } from 'node:child_process'
import { once } from 'node:events'
import { copyFileSync, existsSync, openSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { setTimeout as delay } from 'node:timers/promises'
import { expect, test } from 'vitest'
import { childrenOf, DEMO, environment } from '../helpers/cli.ts'
import { postJson } from '../helpers/post-json.ts'
import { temporaryFolder } from '../helpers/temporary-folder.ts'

const MAIN = join(import.meta.dirname, '../../dist/cli/main.js')
const WORKER = join(import.meta.dirname, '../../dist/host/worker.js')
const folder = temporaryFolder()

/** Serves the demo model, and as "slow" one whose worker never finishes loading. */
function serveHalf() {
  const slow = join(folder, 'slow.pth')
  copyFileSync(DEMO, slow)
  copyFileSync(DEMO.replace(/pth$/, 'vocab.txt'), join(folder, 'slow.vocab.txt'))
  const hold = join(folder, 'hold.cjs')
  writeFileSync(
    hold,
    `if (process.argv[2]?.includes('slow.pth') && process.argv[1].endsWith('worker.js'))
      Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 60_000)`,
  )
  const flags = ['--port', '0', '--no-store', '--log-level', 'info']
  const child = spawn(process.execPath, [MAIN, 'serve', `demo=${DEMO}`, slow, ...flags], {
    stdio: ['ignore', 'ignore', 'pipe'],
    env: { ...environment(), NODE_OPTIONS: `--require ${hold}` },
  })
  const lines: string[] = []
  const url = new Promise<string>((resolve) => {
    createInterface({ input: child.stderr }).on('line', (line) => {
      lines.push(line)
      const found = /Server listening at (http:[^"]+)/.exec(line)?.[1]
      if (found !== undefined) resolve(found)
    })
  })
  return { child, url, lines }
}

function isAlive(pid: number): boolean {
  try {
    return process.kill(pid, 0)
  } catch {
    return false
  }
}

test('SIGTERM', async () => {
  const { child, url, lines } = serveHalf()
  const base = await url
  const isReady = async () => (await fetch(`${base}/readyz`)).status === 200
  while (!(await isReady())) await delay(20)
  const workers = await childrenOf(child.pid!)
  expect(workers).toHaveLength(2)
  const answer = await postJson(`${base}/v1/completions`, {
    model: 'demo',
    prompt: 'Once',
    stream: true,
    ignore_eos: true,
    max_tokens: 200,
  })
  child.kill('SIGTERM')
  const [text, [code]] = await Promise.all([answer.text(), once(child, 'close')])
  expect(text).toContain('[DONE]')
  expect(code).toBe(0)
  expect(workers.filter(isAlive)).toEqual([])
  expect(lines.filter((line) => line.startsWith('skein:'))).toEqual([
    'skein: waiting up to 30 s for 1 requests to finish; a second Ctrl-C or signal stops at once',
  ])
})

test('a worker whose gateway ended before it started ends, too', { tags: 'night' }, async () => {
  // The thread of the store would keep it alive.
  const choice = {
    model: DEMO,
    vocab: DEMO.replace(/pth$/, 'vocab.txt'),
    startStates: [],
    dataDir: join(folder, 'data'),
  }
  const worker = fork(WORKER, [JSON.stringify(choice)], { serialization: 'advanced', execArgv: [] })
  worker.disconnect()
  const late = setTimeout(() => worker.kill('SIGKILL'), 10_000)
  expect(await once(worker, 'exit')).toEqual([0, null])
  clearTimeout(late)
})

/** Serves the demo model; `ready` resolves with its address. The test decides what happens to its output. */
function serveDemo(dataFolder: string) {
  const flags = ['--port', '0', '--log-level', 'info', '--data-dir', dataFolder]
  const child = spawn(process.execPath, [MAIN, 'serve', DEMO, ...flags], { stdio: ['ignore', 'pipe', 'pipe'] })
  const ready = new Promise<string>((resolve) => {
    let base = ''
    const lines = createInterface({ input: child.stderr })
    lines.on('line', (line) => {
      base ||= /Server listening at (http:[^"]+)/.exec(line)?.[1] ?? ''
      if (line.includes('worker ready')) resolve(base)
    })
  })
  return { child, ready }
}

function longAnswer(base: string): Promise<Response> {
  const body = { prompt: 'Once', stream: true, ignore_eos: true, max_tokens: 400, session_id: 's' }
  return postJson(`${base}/v1/completions`, body)
}

test('if nobody reads its output, a server continues, and finishes its streams at the end', {
  tags: 'night',
}, async () => {
  const { child, ready } = serveDemo(join(folder, 'unread'))
  child.stdout.destroy()
  const base = await ready
  child.stderr.destroy()
  await delay(100)
  const answer = await longAnswer(base)
  child.kill('SIGTERM')
  const [text, [code]] = await Promise.all([answer.text(), once(child, 'exit')])
  expect(text).toContain('[DONE]')
  expect(code).toBe(0)
})

test('SIGHUP, to server and worker and twice: streams are finished and their turns saved', {
  tags: 'night',
}, async () => {
  const { child, ready } = serveDemo(join(folder, 'hung-up'))
  const base = await ready
  const answer = await longAnswer(base)
  for (const pid of [...(await childrenOf(child.pid!)), child.pid!, child.pid!]) process.kill(pid, 'SIGHUP')
  const [text, [code]] = await Promise.all([answer.text(), once(child, 'exit')])
  expect(text).toContain('[DONE]')
  expect(code).toBe(0)
  const again = serveDemo(join(folder, 'hung-up'))
  const session = await fetch(`${await again.ready}/v1/sessions/s`)
  expect(await session.json()).toMatchObject({ id: 's', version: 1 })
  again.child.kill('SIGTERM')
  await once(again.child, 'exit')
})

test.skipIf(!existsSync('/dev/full'))(
  'a log that cannot be written: requests are answered',
  { tags: 'night' },
  async () => {
    const flags = ['--port', '0', '--no-store', '--log-level', 'info']
    const child = spawn(process.execPath, [MAIN, 'serve', DEMO, ...flags], {
      stdio: ['ignore', 'pipe', openSync('/dev/full', 'w')],
    })
    const base = await new Promise<string>((resolve) => {
      createInterface({ input: child.stdout! }).on('line', (line) => {
        const found = /^address +(\S+)/.exec(line)?.[1]
        if (found !== undefined) resolve(found)
      })
    })
    for (let i = 0; i < 3; i++) expect((await fetch(`${base}/readyz`)).status).toBe(200)
    child.kill('SIGTERM')
    expect(await once(child, 'exit')).toEqual([0, null])
  },
)
