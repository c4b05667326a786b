/** A model over several GPUs, or over one GPU used twice if there is no other. */
import { afterAll, expect, test } from 'vitest'
import { createCudaBackend } from '../../src/backend/cuda/cuda.ts'
import { PeerLink } from '../../src/backend/cuda/peer.ts'
import { cudaReport } from '../../src/backend/cuda/report.ts'
import type { DeviceChoice } from '../../src/host/device-choice.ts'
import { loadRunner } from '../../src/host/load.ts'
import type { BatchRow, Runner } from '../../src/model/runner.ts'
import { draw, someTokens, tinyModel } from '../helpers/runner.ts'
import { describeCuda, randomNumbers } from './kit.ts'

const runnerOn = (...devices: DeviceChoice[]) =>
  loadRunner({ model: tinyModel('rwkv7'), device: devices[0], ppDevices: devices, slots: 12, maxTokens: 64 })

describeCuda('several GPUs', () => {
  const last = Math.max(0, cudaReport().devices.length - 1)
  const other: DeviceChoice = `cuda:${last}`

  test.each(['direct', 'host'] as const)('rows arrive, %s, in order and no others', (path) => {
    const [a, b] = [createCudaBackend(), createCudaBackend({ device: last })]
    const shape = [50, 24]
    const [x, h] = [a.tensor(shape), a.activation(shape)]
    const [there, thereHalf] = [b.tensor(shape), b.activation(shape)]
    const pairs = [[x, there] as const, [h, thereHalf] as const]
    const link = new PeerLink(a.device, b.device, pairs, 2, path)
    for (let round = 1; round <= 5; round++) {
      const numbers = randomNumbers(50 * 24, round)
      a.writeTensor(x, numbers)
      a.writeTensor(h, numbers)
      b.writeTensor(there, new Float32Array(50 * 24).fill(7))
      b.writeTensor(thereHalf, new Float32Array(50 * 24).fill(7))
      link.send(9 * round)
      const count = 9 * round * 24
      expect(b.readTensor(there, 0, count).result()).toEqual(numbers.subarray(0, count))
      expect(b.readTensor(thereHalf, 0, count).result()).toEqual(a.readTensor(h, 0, count).result())
      expect(
        b
          .readTensor(there, count)
          .result()
          .every((value) => value === 7),
      ).toBe(true)
    }
    link.dispose()
    a.dispose()
    b.dispose()
  })

  test('the path between GPUs is direct if the driver supports it', () => {
    const [a, b] = [createCudaBackend(), createCudaBackend({ device: last })]
    const link = new PeerLink(a.device, b.device, [[a.tensor([1, 8]), b.tensor([1, 8])]], 1)
    console.info(`from cuda:0 to ${other}: ${link.path}`)
    link.dispose()
    a.dispose()
    b.dispose()
  })

  const runners: Runner[] = []
  afterAll(() => {
    for (const runner of runners) runner.dispose()
  })

  /**
   * Greedy answers of `count` rows over some steps; `inAir` groups of rows alternate. No step has more than 16 tokens:
   * up to there the bits of a row do not depend on the others (docs/dev/kernels.md).
   */
  function answers(runner: Runner, count: number, inAir: number): number[][] {
    const slots = Array.from({ length: count }, (_, slot) => slot)
    const groups = Array.from({ length: inAir }, (_, g) => slots.filter((s) => s % inAir === g))
    const tokens = slots.map(() => [] as number[])
    for (const slot of slots) runner.clearSlot(slot)
    for (let position = 0; position < 10; position++) {
      const flights = groups.map((group) =>
        runner.launch(
          group.map(
            (slot): BatchRow => ({
              slot,
              tokens: position === 0 ? someTokens(1, slot) : Int32Array.of(tokens[slot]!.at(-1)!),
              samples: [draw(slot, { temperature: 0, position })],
            }),
          ),
        ),
      )
      for (const [g, flight] of flights.entries())
        for (const [i, { drawn }] of flight.result().entries()) tokens[groups[g]![i]!]!.push(drawn[0]!.token)
    }
    return tokens
  }

  test('stages give the answers of one GPU, with every step in flight', () => {
    const [one, two, three] = [runnerOn('cuda:0'), runnerOn('cuda:0', other), runnerOn('cuda:0', other, 'cuda:0')]
    runners.push(one, two, three)
    const expected = answers(one, 12, 1)
    expect(answers(two, 12, 1)).toEqual(expected)
    expect(answers(two, 12, 2)).toEqual(expected)
    expect(answers(three, 12, 3)).toEqual(expected)
    expect(three.readState(7).result()).toEqual(one.readState(7).result())
  })

  test('a state moves from two GPUs to the CPU and back', () => {
    const [two, cpu] = [runnerOn('cuda:0', other), runnerOn('reference')]
    runners.push(two, cpu)
    const tokens = someTokens(40, 3)
    const row = (from: number, to: number, allLogits = false): BatchRow[] => [
      { slot: 1, tokens: tokens.subarray(from, to), samples: [], allLogits },
    ]
    for (const runner of [two, cpu]) runner.clearSlot(1)
    two.step(row(0, 20))
    const state = two.readState(1).result()
    two.poisonSlot(1)
    cpu.step(row(0, 20))
    const expected = cpu.step(row(20, 21, true))[0]!.logits!
    two.writeState(1, state).result()
    const back = two.step(row(20, 21, true))[0]!.logits!
    cpu.writeState(1, state).result()
    const moved = cpu.step(row(20, 21, true))[0]!.logits!
    const largest = expected.reduce((max, x) => Math.max(max, Math.abs(x)), 0)
    for (const logits of [back, moved])
      expect(Math.max(...logits.map((x, i) => Math.abs(x - expected[i]!))) / largest).toBeLessThan(3e-3)
  })

  test('a missing device is refused by name', () => {
    expect(() => runnerOn('cuda:0', 'cuda:99')).toThrow('cuda:99 is not here')
  })
})
