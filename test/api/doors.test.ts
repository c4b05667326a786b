/** The way to one worker: what is said there while it serves, ends and has ended, over scripted workers. */
import type { FastifyInstance } from 'fastify'
import { expect, test } from 'vitest'
import { buildApp } from '../../src/gateway/app.ts'
import { DEFAULT_SPEC } from '../../src/gateway/launch.ts'
import { createRegistry } from '../../src/gateway/registry.ts'
import { hosted, managementOf } from './hosted.ts'
import { postTo } from './kit.ts'

const COMMON = { keys: [], host: '127.0.0.1', version: '1' }

function withDoors() {
  const { fleet, host, keepers } = hosted()
  const doors: FastifyInstance[] = []
  const launch = { id: 'm', file: 'a.pth', quant: null, startStates: [], vocab: null }
  const management = managementOf(
    fleet,
    (spec) => ({ ...launch, spec }),
    (worker) => {
      const { tokenizer } = worker
      const models = createRegistry([{ id: 'm', tokenizer, source: fleet.routerTo(worker) }])
      const door = buildApp({ ...COMMON, models })
      doors.push(door)
      return door
    },
  )
  const app = buildApp({ ...COMMON, models: host.registry, admin: host, management })
  return { app, management, doors, keepers }
}

test('a worker that has ended has no way to it', async () => {
  const { app, management, doors } = withDoors()
  const { worker_id: id } = await management.start(DEFAULT_SPEC)
  const at = `/api/workers/${id}/proxy`
  const ask = () => postTo(app, `${at}/v1/completions`, { prompt: 'x' })
  const isReady = async () => (await app.inject({ url: `${at}/readyz` })).statusCode
  await expect.poll(isReady).toBe(200)
  expect((await ask()).statusCode).toBe(200)

  management.stop(id)
  await expect.poll(() => management.fleet.find(id).hasEnded).toBe(true)
  expect(doors).toHaveLength(1)
  const late = await ask()
  expect([late.statusCode, late.json().code]).toEqual([503, 'model_not_loaded'])
  expect(doors).toHaveLength(1)
  await app.close()
})
