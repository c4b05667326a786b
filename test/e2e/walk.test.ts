/**
 * A new user's first steps: the commands in README, getting-started and the pages about clients and clusters, in order,
 * through a shell in this clone with an empty home. The hub is local, and ports are free ones.
 */
import { type ChildProcess, execFile, spawn } from 'node:child_process'
import { readFileSync } from 'node:fs'
import { createServer } from 'node:net'
import { homedir, networkInterfaces } from 'node:os'
import { join } from 'node:path'
import { promisify } from 'node:util'
import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest'
import { DEMO } from '../helpers/cli.ts'
import { type FakeHub, startFakeHub } from '../helpers/fake-hub.ts'
import { NO_POSTGRES, startPostgres } from '../helpers/postgres.ts'
import { temporaryFolder } from '../helpers/temporary-folder.ts'

const ROOT = join(import.meta.dirname, '../..')
const MODEL = 'rwkv7-g1a-0.4b-20250905-ctx4096'
const SOON = { timeout: 90_000, interval: 200 }
const read = (page: string) => readFileSync(join(ROOT, page), 'utf8')

/** The shell commands of a page, one each, without comments. */
function commandsOf(page: string, until = /$(?!.)/s): string[] {
  const [text] = read(page).split(until) as [string]
  return [...text.matchAll(/^```sh\n(.*?)^```/gms)]
    .flatMap(([, block]) => block!.replaceAll('\\\n', ' ').trim().split('\n'))
    .map((line) => line.replace(/\s+# .*$/, '').replace(/\s+/g, ' '))
}

const home = temporaryFolder()
let hub: FakeHub
let port: number
/** A running command and its output so far. */
let running: { readonly child: ChildProcess; output: string; readonly ended: Promise<void> }[] = []

async function freePort(): Promise<number> {
  const server = createServer()
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  // A listening TCP server has an address object.
  const { port: free } = server.address() as { port: number }
  await new Promise((resolve) => server.close(resolve))
  return free
}

beforeAll(async () => {
  const file = { content: readFileSync(DEMO) }
  hub = await startFakeHub({ 'BlinkDL/rwkv7-g1': { [`${MODEL}.pth`]: file } })
  port = await freePort()
})
afterEach(() => stopAll())
afterAll(() => hub.close())

function environment(): NodeJS.ProcessEnv {
  const { SKEIN_API_KEY: _, ...rest } = process.env
  const folders = { HOME: home, XDG_DATA_HOME: join(home, 'data'), XDG_CACHE_HOME: join(home, 'cache') }
  // The released models' vocabulary is downloaded elsewhere; this one is the demo model's.
  const SKEIN_VOCAB = DEMO.replace('.pth', '.vocab.txt')
  // The npm configuration of this machine stays.
  const own = { npm_config_userconfig: join(homedir(), '.npmrc'), npm_config_cache: join(homedir(), '.npm') }
  return { ...rest, ...own, ...folders, SKEIN_VOCAB, SKEIN_PORT: String(port), HF_ENDPOINT: hub.url }
}

/** Commands name the default port, and mean it if they name none. */
function here(command: string): string {
  return command
    .replaceAll('127.0.0.1:8000', `127.0.0.1:${port}`)
    .replace(/^npx skein (chat|launch \S+)$/, `$& --url http://127.0.0.1:${port}`)
}

/** Runs a command to its end; `input`: text typed into it. */
async function run(command: string, input = ''): Promise<string> {
  const options = { cwd: ROOT, env: environment(), timeout: 120_000 }
  const done = promisify(execFile)('bash', ['-c', here(command)], options)
  done.child.stdin!.end(input)
  return (await done).stdout
}

/** Starts a command that runs until stopped; resolves when it has printed this text. */
async function start(command: string, until: RegExp, count = 1): Promise<string> {
  // A process group of its own, because npm and the shell are between us and the server.
  const child = spawn('bash', ['-c', here(command)], {
    cwd: ROOT,
    env: environment(),
    stdio: ['ignore', 'pipe', 'pipe'],
    detached: true,
  })
  const ended = new Promise<void>((resolve) => child.on('close', () => resolve()))
  const own = { child, output: '', ended }
  running.push(own)
  for (const stream of [child.stdout, child.stderr])
    stream.on('data', (text) => {
      own.output += text
    })
  const seen = () => own.output.match(new RegExp(until, 'g'))?.length ?? 0
  await expect.poll(seen, { ...SOON, message: command }).toBe(count)
  return own.output
}

async function stopAll(): Promise<void> {
  const all = running
  running = []
  for (const { child } of all)
    try {
      process.kill(-child.pid!, 'SIGTERM')
    } catch {
      // It has ended.
    }
  await Promise.all(all.map(({ ended }) => ended))
}

const isReady = async () => (await fetch(`http://127.0.0.1:${port}/readyz`)).status

/** Requests as from another machine: to the address of a network card, if there is one. */
function outsideAddress(): string {
  const cards = Object.values(networkInterfaces()).flatMap((card) => card ?? [])
  const card = cards.find(({ family, internal }) => family === 'IPv4' && !internal)
  return `http://${card?.address ?? '127.0.0.1'}:${port}`
}

const readme = commandsOf('README.md', /^## Choose/m)
const guide = commandsOf('docs/getting-started.md')
const [chat, ask, pull, serve, addKey, serveOthers] = guide as [...[string, string, string, string, string, string]]
const QUESTION = 'What is the capital of France?'

describe.sequential('from the README to a second machine', { timeout: 240_000 }, () => {
  test('the pages show the same walk', () => {
    expect(readme[0]).toBe('npm ci && npm start')
    expect(read('docs/getting-started.md')).toContain(`\`${readme[0]}\``)
    expect(guide).toEqual([
      'npx skein chat',
      expect.stringMatching(/^curl http:\/\/127\.0\.0\.1:8000\/v1\/chat\/completions /),
      'npx skein pull rwkv7-g1-0.4b',
      'npx skein serve rwkv7-g1-0.4b --quant int8',
      'npx skein keys add alice --rpm 60',
      'npx skein serve rwkv7-g1-0.4b --host 0.0.0.0',
    ])
    expect(commandsOf('docs/zh/getting-started.md')).toEqual(guide)
    for (const command of [chat, pull, serve]) expect(readme).toContain(command)
  })

  test('the first start gives an answer', async () => {
    await start(readme[0]!.replace('npm ci && ', ''), /Ctrl-C/)
    await expect.poll(isReady, SOON).toBe(200)
    const curl = readme.find((line) => line.startsWith('curl'))!
    for (const command of [curl, chat, ask]) expect(await run(command, QUESTION), command).toContain('Paris')
  })

  test('a custom model, and a client', { tags: 'night' }, async () => {
    expect(await run(pull)).toContain(`${MODEL}.pth`)
    await start(serve, /Ctrl-C/)
    await expect.poll(isReady, SOON).toBe(200)
    const { data } = await (await fetch(`http://127.0.0.1:${port}/v1/models`)).json()
    expect(data[0].id).toBe(MODEL)
    expect(await run(ask)).toContain('Paris')
    const program = await run('npx skein launch openai-js')
    const client = `node --input-type=module --eval "$PROGRAM"`
    expect((await run(`PROGRAM=$(cat); ${client}`, program)).trim()).not.toBe('')
  })

  test('a key for another user, who needs it', { tags: 'night' }, async () => {
    const key = /\bsk-\S+/.exec(await run(addKey))![0]
    const said = await start(serveOthers, /Ctrl-C/)
    expect(said).not.toContain(key)
    const headers = { authorization: `Bearer ${key}`, 'content-type': 'application/json' }
    const send = (with_: Record<string, string>) =>
      fetch(`${outsideAddress()}/v1/chat/completions`, {
        method: 'POST',
        headers: with_,
        body: JSON.stringify({ messages: [{ role: 'user', content: QUESTION }] }),
      })
    await expect.poll(async () => (await send(headers)).status, SOON).toBe(200)
    expect(await (await send(headers)).text()).toContain('Paris')
    expect((await send({ 'content-type': 'application/json' })).status).toBe(401)
  })

  test.skipIf(NO_POSTGRES !== null)('more machines, one of which fails', { tags: 'night' }, async () => {
    const postgres = await startPostgres()
    try {
      await walkCluster(postgres.newDatabase())
    } finally {
      await stopAll()
      postgres.remove()
    }
  })
})

/** "Three nodes on a laptop" with two nodes: a conversation continues after its node is killed. */
async function walkCluster(database: string): Promise<void> {
  const commands = commandsOf('docs/cluster.md')
  const [nodes, gateway, say, cluster] = commands as [string, string, string, string]
  const adapted = (command: string) =>
    command
      .replace('postgres://localhost/skein', database)
      .replace('file:///tmp/skein-states', `file://${temporaryFolder()}`)
      .replace('--port 8000', `--port ${port}`)
  const [, node] = /^for p in 8001 8002 8003; do (.* --port \$p .*) & done$/.exec(adapted(nodes))!
  const ports = [await freePort(), await freePort()]
  const groups = new Map<string, number>()
  for (const own of ports) {
    await start(node!.replace('$p', String(own)), /Ctrl-C/)
    groups.set(String(own), running.at(-1)!.child.pid!)
  }
  await start(adapted(gateway), /address/)

  const turn = async () => {
    const reply = await run(say.replace(/-i$/, '-si'))
    const [, status] = /^HTTP\S+ (\d+)/.exec(reply)!
    return { status, node: /^x-skein-node: (\S+)/m.exec(reply)?.[1] }
  }
  await expect.poll(async () => (await turn()).status, SOON).toBe('200')
  const owner = (await turn()).node!
  expect(JSON.parse(await run(cluster)).nodes).toHaveLength(2)
  process.kill(-groups.get(owner.split(':').at(-1)!)!, 'SIGKILL')
  await expect.poll(async () => (await turn()).status, SOON).toBe('200')
  const heir = (await turn()).node
  expect(heir).not.toBe(owner)
  const url = `http://127.0.0.1:${port}/v1/sessions/ada`
  const { turns } = (await (await fetch(url)).json()) as { turns: readonly unknown[] }
  expect(turns.length).toBeGreaterThanOrEqual(4)
}
