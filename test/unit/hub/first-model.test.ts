/** The offer at the first start of Skein, with a local hub. */
import { randomBytes } from 'node:crypto'
import { rmSync } from 'node:fs'
import { join } from 'node:path'
import { afterAll, beforeAll, beforeEach, expect, test } from 'vitest'
import { firstModel, offerFirst } from '../../../src/cli/models/fetch.ts'
import { modelsFolder } from '../../../src/hub/model-cache.ts'
import { pullModel } from '../../../src/hub/pull.ts'
import { type FakeHub, startFakeHub } from '../../helpers/fake-hub.ts'
import { temporaryFolder } from '../../helpers/temporary-folder.ts'

const environment = { XDG_CACHE_HOME: temporaryFolder() }
const file = (bytes: number) => ({ content: randomBytes(bytes) })
const NEWEST = 'rwkv7-g1d-0.4b-20260210-ctx8192.pth'

let hub: FakeHub
beforeAll(async () => {
  hub = await startFakeHub({
    'BlinkDL/rwkv7-g1': {
      'rwkv7-g1a-0.1b-20250728-ctx4096.pth': file(200),
      'rwkv7-g1a-0.4b-20250905-ctx4096.pth': file(900),
      [NEWEST]: file(900),
      'rwkv7-g1c-1.5b-20260110-ctx8192.pth': file(3000),
      'rwkv7-g1c-13.3b-20260110-ctx8192.pth': file(100),
    },
  })
})
afterAll(() => hub.close())
beforeEach(() => rmSync(join(modelsFolder(environment), '..'), { recursive: true, force: true }))

/** Bytes of memory → the offered model. */
test.each([
  [7501, 'rwkv7-g1-1.5b'],
  [7499, 'rwkv7-g1-0.4b'],
  [600, 'rwkv7-g1-0.1b'],
  [400, undefined],
])('with a memory of %d bytes: %s', async (memoryBytes, name) => {
  expect((await firstModel(hub.hub, memoryBytes))?.name).toBe(name)
})

function offer(answer: string, given = hub.hub) {
  const questions: string[] = []
  const ask = async (question: string) => {
    questions.push(question)
    return answer
  }
  return { questions, reply: offerFirst({ hub: given, memoryBytes: 3000, ask, environment }) }
}

test('the offer says what it costs; a no is remembered', async () => {
  const { questions, reply } = offer('n')
  expect(await reply).toBeNull()
  expect(questions[0]).toContain(NEWEST)
  expect(questions[0]).toMatch(/900 B.*about 1 min.*licence apache-2\.0/)
  const again = offer('y')
  expect(await again.reply).toBeNull()
  expect(again.questions).toEqual([])
})

test('return means yes; with a model already there, nothing is asked', async () => {
  expect(await offer('').reply).toBe('rwkv7-g1-0.4b')
  await pullModel('rwkv7-g1-0.4b', { hub: hub.hub, isOffline: false, environment })
  const { questions, reply } = offer('y')
  expect(await reply).toBeNull()
  expect(questions).toEqual([])
})

test('without a network nothing is asked, and nothing fails', async () => {
  const gone = { ...hub.hub, fetch: () => Promise.reject(new Error('offline')) }
  const { questions, reply } = offer('y', gone)
  expect(await reply).toBeNull()
  expect(questions).toEqual([])
})
