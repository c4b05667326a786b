import { expect, test } from 'vitest'
import { StateMemory } from '../../src/engine/state-memory.ts'
import { fakeInfo } from '../helpers/fake-runner.ts'

const stateOf = (layers: number) => ({
  shift: new Float32Array(4 * layers),
  wkv: new Float32Array(4 * layers),
})

test('what was dropped is had again when no state is on its way into a slot', () => {
  const memory = new StateMemory(fakeInfo(10, 3))
  const first = memory.take()
  memory.drop(first)
  expect(memory.hasFree).toBe(false)
  expect(memory.take()).not.toBe(first)
  memory.settle()
  expect(memory.take()).toBe(first)
  expect(memory.hasFree).toBe(false)
})

test('two states are kept; views and states of other shapes are not', () => {
  const memory = new StateMemory(fakeInfo(10, 3))
  const view = stateOf(6).wkv.subarray(0, 12)
  memory.drop({ shift: new Float32Array(12), wkv: view })
  memory.drop(stateOf(2))
  memory.settle()
  expect(memory.hasFree).toBe(false)
  for (let i = 0; i < 5; i++) memory.drop(stateOf(3))
  memory.settle()
  for (const isFree of [true, true, false]) {
    expect(memory.hasFree).toBe(isFree)
    memory.take()
  }
})
