/** Which model a request without a model name means. */

import { expect, test } from 'vitest'
import { createRegistry, type EngineSource } from '../../../src/gateway/routing/registry.ts'
import { byteCodec, FAKE_INFO, FakeEngineClient, localSource } from '../../helpers/fake-engine.ts'

const ready = localSource(new FakeEngineClient())
const neverLoaded: EngineSource = {
  state: 'failed',
  reason: 'no such file',
  client: null,
  workers: { all: 0, ready: 0, failed: 1 },
}
const model = (id: string, source: EngineSource) => ({ id, tokenizer: byteCodec, source })

test('a worker that could never be loaded is not a candidate for the default model', () => {
  const models = createRegistry([model('broken', neverLoaded), model('works', ready)])
  expect(models.get(null).id).toBe('works')
  expect(models.get('rwkv7').id).toBe('works')
  // Albatross's name for it.
  expect(models.get('rwkv-7').id).toBe('works')
  expect(() => models.get('broken')).toThrow('no such file')
  expect(models.list().map(({ id }) => id)).toEqual(['broken', 'works'])
})

test('other names of a model are listed with it', () => {
  const [entry] = createRegistry([{ ...model('a', ready), aliases: ['b', 'b', 'c'] }]).list()
  expect(entry!.aliases).toEqual(['b', 'c'])
})

test('with two working models a request must name one; the only model says why it is not ready', () => {
  const two = createRegistry([model('a', ready), model('b', ready)])
  expect(() => two.get(null)).toThrow('2 models are served here')
  expect(() => createRegistry([model('broken', neverLoaded)]).get(null)).toThrow('no such file')
})

test('every name of a model with a start state refers to it', () => {
  const withStates = (...startStates: string[]) =>
    localSource(new FakeEngineClient(undefined, { ...FAKE_INFO, startStates }))
  const models = createRegistry([
    model('goose', withStates('base', 'base tuned')),
    model('goose base', withStates('tuned too')),
  ])
  for (const entry of models.list())
    for (const state of entry.client!.info.startStates!) {
      expect(models.get(`${entry.id}@${state}`).id).toBe(`${entry.id}@${state}`)
      // The name of a model has precedence over a state of another.
      if (state === 'base') continue
      expect(models.get(`${entry.id} ${state}`).id).toBe(`${entry.id}@${state}`)
    }
  expect(models.get('goose base').id).toBe('goose base')
  expect(() => models.get('goose base none')).toThrow('no start state of that name')
  expect(() => models.get('gander base')).toThrow('no model of that name')
})
