/** A worker that answers only different prompts does not grow, because what it keeps has a limit in bytes. */
// @module-tag night
import { fork } from 'node:child_process'
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { expect, test } from 'vitest'
import { channelToChild } from '../../src/engine/client/process-channel.ts'
import { RemoteEngineClient } from '../../src/engine/client/remote-client.ts'
import { requestOf } from '../engine/kit.ts'
import { DEMO } from '../helpers/cli.ts'

const WORKER = join(import.meta.dirname, '../../dist/host/worker.js')
const MIB = 2 ** 20
const PREFIX_BYTES = 8 * MIB

/** Resident memory of a process, in MiB. */
function residentOf(pid: number): number {
  const status = readFileSync(`/proc/${pid}/status`, 'utf8')
  return Number(/RssAnon:\s+(\d+)/.exec(status)![1]) / 1024
}

test.skipIf(process.platform !== 'linux')(
  'memory is flat over prompts that are never the same',
  async () => {
    const choice = { model: DEMO, slots: 8, threads: 2, prefixCacheBytes: PREFIX_BYTES }
    const child = fork(WORKER, [JSON.stringify(choice)], { serialization: 'advanced' })
    const client = await RemoteEngineClient.connect(channelToChild(child))
    let numAsked = 0
    const ask = async (last: number) => {
      while (numAsked < last) {
        numAsked++
        const seed = numAsked
        const prompt = Int32Array.from({ length: 90 }, (_, at) => 1 + ((seed * (at + 7) ** 2) % 997))
        const request = requestOf({ id: `r${seed}`, prompt, maxTokens: 2 })
        for await (const event of client.generate(request)) expect(event.type).not.toBe('error')
      }
    }
    const askAll = (last: number) => Promise.all(Array.from({ length: 8 }, () => ask(last)))
    await askAll(200)
    const before = residentOf(child.pid!)
    // Each leaves two or three states of a third of a MiB: more than ten times the limit.
    await askAll(500)
    const grown = residentOf(child.pid!) - before
    expect(grown).toBeLessThan(PREFIX_BYTES / MIB + 16)
    const { prefixBytes, prefixes } = client.stats.states!
    expect(prefixBytes).toBeLessThanOrEqual(PREFIX_BYTES)
    expect(prefixes).toBeGreaterThan(10)
    await client.close()
  },
  120_000,
)
