/** A data folder on a disk of 6 MB that is filled and emptied: what still works meanwhile, and what reports it. */
// @module-tag night
import { spawnSync } from 'node:child_process'
import { rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout as delay } from 'node:timers/promises'
import { afterAll, expect, test } from 'vitest'
import { childrenOf, type RunningServer, serve } from '../helpers/cli.ts'
import { postJson } from '../helpers/post-json.ts'
import { IS_SLOW } from '../helpers/slow.ts'
import { temporaryFolder } from '../helpers/temporary-folder.ts'

const disk = temporaryFolder()
const isMounted = IS_SLOW && spawnSync('mount', ['-t', 'tmpfs', '-o', 'size=6m', 'tmpfs', disk]).status === 0
if (IS_SLOW && !isMounted) process.stdout.write('tests of a full disk are skipped: no tmpfs can be mounted\n')
afterAll(() => {
  if (isMounted) spawnSync('umount', [disk])
})

const filler = join(disk, 'filler')

function fill(): void {
  // Fills it to the last byte.
  for (const bytes of [2 ** 20, 4096])
    for (let i = 0; ; i++) {
      try {
        writeFileSync(`${filler}-${bytes}-${i}`, Buffer.alloc(bytes))
      } catch {
        break
      }
    }
}

function empty(): void {
  for (const bytes of [2 ** 20, 4096]) for (let i = 0; i < 2000; i++) rmSync(`${filler}-${bytes}-${i}`, { force: true })
}

async function ask({ url }: RunningServer, session_id?: string) {
  const reply = await postJson(`${url}/v1/completions`, { prompt: 'Once', max_tokens: 4, session_id })
  return { status: reply.status, body: (await reply.json()) as { error?: { message: string } } }
}

async function readiness({ url }: RunningServer) {
  const reply = await fetch(`${url}/readyz`)
  return (await reply.json()) as { status: string; reason?: string }
}

/** Waits as long as the test may take. */
async function until(server: RunningServer, status: string): Promise<void> {
  while ((await readiness(server)).status !== status) await delay(50)
}

test.runIf(isMounted)('with a full disk only what must be written fails', { timeout: 120_000 }, async () => {
  const server = await serve(['--data-dir', disk])
  await until(server, 'ok')
  expect((await ask(server, 'old')).status).toBe(200)
  fill()
  // They are answered before they are written, and there is no space to claim them.
  for (let i = 0; i < 20; i++) expect(await ask(server, `new ${i}`)).toMatchObject({ status: 200 })
  expect((await ask(server, 'new 1')).status).toBe(200)
  await until(server, 'degraded')
  expect((await readiness(server)).reason).toBe('demo: states cannot be written to the store; its log says why')
  const told = server.output.filter((line) => line.includes('states cannot be written'))
  expect(told).toEqual([expect.stringMatching(/kept in memory until they can: .*(?:disk|space)/)])

  const [worker] = await childrenOf(server.process.pid!)
  process.kill(worker!, 'SIGKILL')
  // The next worker has no store, and says so.
  while (!server.output.some((line) => line.includes('sessions are unavailable until'))) await delay(50)
  await until(server, 'degraded')
  expect((await ask(server)).status).toBe(200)
  const refused = await ask(server, 'old')
  expect(refused.status).toBe(507)
  expect(refused.body.error!.message).toMatch(/until the store can be opened/)
  expect(refused.body.error!.message).not.toContain(disk)

  empty()
  await until(server, 'ok')
  expect((await ask(server, 'old')).status).toBe(200)
  expect(await server.stop()).toBe(0)
})
