import { afterAll, beforeAll, describe, expect, test, vi } from 'vitest'
import { type Batch, createBatch, SampleFloat } from '../../src/backend/batch.ts'
import { flightOf, landed } from '../../src/backend/flight.ts'
import { webgpuReport } from '../../src/backend/webgpu/adapter.ts'
import { WebgpuDevice } from '../../src/backend/webgpu/device.ts'
import { testBackend } from '../../src/backend/webgpu/self-test.ts'
import { measureWebgpu } from '../../src/backend/webgpu/speed.ts'
import { openWebgpuBackend, type WebgpuBackend } from '../../src/backend/webgpu/webgpu.ts'
import type { MatrixSource } from '../../src/backend/weight-types.ts'
import { benchEngine } from '../../src/bench/engine.ts'
import { DEMO_MODEL } from '../../src/host/checkpoints/model-path.ts'
import { adapterChosen, parseDevice, prepareDevice } from '../../src/host/device-choice.ts'
import { loadRunner, testedFor } from '../../src/host/load.ts'
import { load } from '../../src/index.ts'
import { ARCHITECTURES, someTokens, tinyModel, tinyRunner } from '../helpers/runner.ts'
import { IS_SLOW } from '../helpers/slow.ts'
import { IS_SOFTWARE_GPU, nextDeviceIsOwn, WEBGPU_PROBLEM, withBinding } from '../helpers/webgpu.ts'
import { capacityFor, normals, raggedBatch, randomSource, read, rmsRatio, run, runStep } from './kit.ts'

/** A matrix whose numbers are off by a twentieth. */
function spoiled({ quantised, ...source }: MatrixSource): MatrixSource {
  const readRows = (start: number, end: number) => {
    const values = new Float32Array(source.readRows(start, end).slice().buffer)
    return new Uint8Array(values.map((w) => 1.05 * w).buffer)
  }
  return { ...source, readRows }
}

/** Lines of kernels, and what a driver might make of them. */
const FAULTS = [
  ['halves of a word of weights', 'vec2u(word << 16u, word & 0xffff0000u)', 'vec2u(word & 0xffff0000u, word << 16u)'],
  ['the shift of a state', 'select(others, own.held, isFirst)', 'select(others, vec4f(), isFirst)'],
  ['decay', 'exp(-MAX_DECAY * sigmoid(w))', 'exp(-MAX_DECAY * sigmoid(0.9 * w))'],
  [
    'tokens of a prompt behind the first',
    't0 < end; t0 += TOKENS',
    't0 < min(end, row_start(row) + TOKENS); t0 += TOKENS',
  ],
  ['all products of a launch but the first', 'begun.x + begun.y + begun.z + begun.w - 1u', 'min(begun.x, 1u) - 1u'],
  ['penalties', 'presence + frequency * count', '0.0'],
] as const

test('values of --device webgpu', () => {
  expect(parseDevice('webgpu')).toBe('webgpu')
  expect(parseDevice('webgpu:1')).toBe('webgpu:1')
  for (const text of ['webgpu:', 'webgpu:x', 'webgpu:-1']) expect(parseDevice(text)).toBeUndefined()
})

test('a device is tested with the types and the architecture of the model that it will get', () => {
  expect(testedFor({ model: DEMO_MODEL })).toEqual({ architecture: 'rwkv7', large: 'bf16', plain: 'bf16' })
  for (const architecture of ARCHITECTURES) {
    const model = tinyModel(architecture)
    expect(testedFor({ model })).toEqual({ architecture, large: 'f32', plain: 'f32' })
    expect(testedFor({ model, quant: 'int8' })).toEqual({ architecture, large: 'i8', plain: 'f32' })
    expect(testedFor({ model, quant: 'f16' })).toEqual({ architecture, large: 'f16', plain: 'f16' })
  }
})

describe.skipIf(WEBGPU_PROBLEM !== null)('webgpu', () => {
  let backend: WebgpuBackend
  beforeAll(async () => {
    backend = await openWebgpuBackend()
  })
  afterAll(() => backend.dispose())

  test('the report names the adapters, and an index beyond them is refused', async () => {
    const { adapters, problem } = await webgpuReport()
    expect(problem).toBeNull()
    expect(adapters[0]!.name.length).toBeGreaterThan(0)
    await expect(openWebgpuBackend(adapters.length)).rejects.toThrow(/counted from 0/)
  })

  test('the self-test accepts a correct device, and refuses a faulty one', { tags: 'night' }, async () => {
    // Tests loads with subgroups as well, which most devices have.
    const plain = await openWebgpuBackend(0, { without: ['subgroups', 'matrices'] })
    expect(plain.device.hasSubgroups).toBe(false)
    await testBackend(plain)
    // The model gets all of it.
    expect(plain.device.bytes).toBe(1 << 20)
    expect(plain.device.arenaBytes).toBe(0)
    plain.dispose()
    const wrong: WebgpuBackend = {
      ...backend,
      readTensor: (...args) =>
        flightOf(landed(backend.readTensor(...args)).then((values) => values.map((x) => 1.001 * x))),
      dispose() {},
    }
    await expect(testBackend(wrong)).rejects.toThrow(/computes wrong answers \(error \d/)
  })

  // Each compiles a kernel anew.
  test.each(IS_SLOW ? FAULTS : FAULTS.slice(0, 1))(
    'the self-test refuses a device whose kernels are wrong: %s',
    async (...fault) => {
      const [, right, wrong] = fault
      const other = await openWebgpuBackend()
      const { gpu } = other.device
      const compile = gpu.createShaderModule.bind(gpu)
      let numChanged = 0
      gpu.createShaderModule = (module) => {
        const code = module.code.replaceAll(right, wrong)
        if (code !== module.code) numChanged++
        return compile({ ...module, code })
      }
      try {
        await expect(testBackend(other)).rejects.toThrow(/computes wrong answers/)
      } finally {
        // The device may be that of all backends.
        gpu.createShaderModule = compile
      }
      expect(numChanged).toBeGreaterThan(0)
    },
  )

  test('the self-test accepts every architecture and type, and refuses what is wrong with one alone', {
    tags: 'night',
  }, async () => {
    for (const [architecture, large, plain] of [
      ['rwkv7', 'bf16', 'bf16'],
      ['rwkv7a', 'q4', 'f16'],
      ['rwkv6', 'nf4', 'bf16'],
      ['rwkv7', 'i8', 'f32'],
      ['rwkv7', 'Q4_K', 'f16'],
    ] as const) {
      await testBackend(backend, { architecture, large, plain })
      const wrong: WebgpuBackend = {
        ...backend,
        matrix: (source, type) => backend.matrix(type === large ? spoiled(source) : source, type),
        dispose() {},
      }
      const held = testBackend(wrong, { architecture, large, plain })
      // Held as f16 here, which is not wrong.
      if (large === 'Q4_K') await held
      else await expect(held, `${architecture} ${large}`).rejects.toThrow(/computes wrong answers/)
    }
  })

  test('the self-test refuses a device that mixes up rows or states, or draws without masks, biases or penalties', {
    tags: 'night',
  }, async () => {
    const faults: Record<string, (batch: Batch) => void> = {
      'states of each other': (batch) => batch.slots.set(batch.numRows > 1 ? [1, 0] : [0]),
      'logits of another row': (batch) => batch.logitRows.copyWithin(1, 0, 1),
      masks: (batch) => batch.masks.fill(0xff_ff_ff_ff),
      biases: (batch) => batch.biasValues.fill(0),
      'presence and frequency': (batch) => batch.sampleFloats.set([0, 0], 16 + SampleFloat.presencePenalty),
      repetition: (batch) => batch.sampleFloats.set([1], 24 + SampleFloat.repetitionPenalty),
    }
    for (const [name, fault] of Object.entries(faults)) {
      const wrong: WebgpuBackend = {
        ...backend,
        record: (...args) => {
          const program = backend.record(...args)
          const flights = program.flights!
          const launch = (batch: Batch) => {
            fault(batch)
            return flights.launch(batch)
          }
          return { ...program, dispose: () => program.dispose(), flights: { ...flights, launch } }
        },
        dispose() {},
      }
      await expect(testBackend(wrong), name).rejects.toThrow(/computes wrong answers/)
    }
  })

  test('tensors keep their values when the arena grows, and programs find them', async () => {
    const x = backend.tensor([2, 64], normals(128, 1))
    const y = backend.tensor([2, 64])
    const weight = backend.matrix(randomSource(64, 64, 'f32', 3), 'f32')
    const capacity = { tokens: 2, rows: 1, logits: 1, samples: 0 }
    const program = backend.record(capacity, (ops) => ops.linear([{ y, x, weight }]))
    const batch = createBatch(capacity)
    batch.numTokens = 2
    batch.numRows = 1
    batch.starts[1] = 2
    await run(program, batch)
    const before = await read(backend, y)
    const large = backend.tensor([1 << 21], normals(1 << 21, 2))
    backend.writeTensor(y, new Float32Array(128))
    await run(program, batch)
    expect(await read(backend, y)).toEqual(before)
    expect(await read(backend, x)).toEqual(normals(128, 1))
    expect(await read(backend, large, (1 << 21) - 3)).toEqual(normals(1 << 21, 2).slice(-3))
  })

  test('products have the same bits with the kernels for GPUs and with those for processors', {
    tags: 'night',
  }, async () => {
    const asGpu = await openWebgpuBackend()
    Object.defineProperty(asGpu.device, 'isSoftware', { value: false })
    const multiply = async (own: WebgpuBackend, tokens: number, rows: number) => {
      const capacity = capacityFor(tokens)
      const x = own.tensor([capacity.tokens, 64], normals(capacity.tokens * 64, 1))
      const y = own.tensor([capacity.tokens, rows])
      const weight = own.matrix(randomSource(rows, 64, 'bf16', rows), 'bf16')
      await runStep(own, capacity, raggedBatch(capacity, [tokens], [0], 1), (ops) => ops.linear([{ y, x, weight }]))
      return read(own, y, 0, tokens * rows)
    }
    // Few and many outputs: they are distributed differently.
    for (const [tokens, rows] of [
      [1, 80],
      [1, 8192],
      [1, 16_384],
      [3, 80],
      [9, 80],
      [9, 2048],
    ] as const) {
      const expected = await multiply(backend, tokens, rows)
      expect(await multiply(asGpu, tokens, rows), `${tokens} × ${rows}`).toEqual(expected)
    }
    asGpu.dispose()
  })

  test('a device that binds little at once has fewer slots and smaller steps, and the same logits', {
    tags: 'night',
  }, async () => {
    // The self-test of a GPU has larger products.
    const [least, model] = [IS_SOFTWARE_GPU ? 1 << 20 : 1 << 22, tinyModel()]
    const logits = async (device: 'cpu' | 'webgpu', size = {}) => {
      const runner = loadRunner({ model, device, ...size })
      const { numSlots, maxTokens } = runner
      const rows = []
      for (const count of [9, 1])
        rows.push(
          ...(await landed(
            runner.launch([{ slot: 0, tokens: someTokens(count, count), samples: [], allLogits: true }]),
          )),
        )
      const [bytes, values] = [runner.heldBytes?.(), rows.map((row) => Float32Array.from(row.logits!))]
      runner.dispose()
      return { numSlots, maxTokens, bytes, values }
    }
    await withBinding(least, () => prepareDevice({ device: 'webgpu' }))
    const actual = await logits('webgpu')
    if (IS_SOFTWARE_GPU) expect(actual).toMatchObject({ numSlots: 29, maxTokens: 62 })
    expect(actual.maxTokens).toBeLessThan(512)
    expect(actual.bytes).toBeGreaterThan(least)
    const expected = await logits('cpu')
    const tolerance = backend.device.matrices === null ? 1e-4 : 5e-3
    for (const [i, values] of actual.values.entries())
      expect(rmsRatio(values, expected.values[i]!)).toBeLessThan(tolerance)
    for (const size of [{ slots: 200 }, { maxTokens: 1024 }]) {
      await withBinding(least, () => prepareDevice({ device: 'webgpu' }))
      await expect(logits('webgpu', size)).rejects.toThrow(/(binds|has) (1048576|4194304) at most/)
    }
  })

  test('a lost device is reported at the next call', async () => {
    nextDeviceIsOwn()
    const other = await openWebgpuBackend()
    const tensor = other.tensor([4], normals(4, 1))
    other.device.gpu.destroy()
    await other.device.lost
    await expect(landed(other.readTensor(tensor))).rejects.toThrow(
      expect.objectContaining({ code: 'kernel_failed', message: expect.stringMatching(/lost/) }),
    )
    other.dispose()
  })

  test('an engine on it gives the answers of the cpu', async () => {
    const answer = async (device: 'cpu' | 'webgpu') => {
      const llm = await load({ model: DEMO_MODEL, device, slots: 2, maxTokens: 32 })
      const one = async (options: object) => {
        let text = ''
        for await (const piece of llm.generate('The capital of France is', options)) text += piece
        return text
      }
      const options = { maxTokens: IS_SLOW ? 10 : 4, frequencyPenalty: 0.4 }
      const texts = [{ temperature: 0 }, { temperature: 1, topP: 0.8, seed: 5 }]
      const both = await Promise.all(texts.map((own) => one({ ...options, ...own })))
      await llm.close()
      return both
    }
    expect(await answer('webgpu')).toEqual(await answer('cpu'))
  })

  test('RWKV-7a, with its tables on the host, has the logits of the cpu', { tags: 'night' }, async () => {
    const logits = async (device: 'cpu' | 'webgpu') => {
      await prepareDevice({ device })
      const options = { architecture: 'rwkv7a', slots: 2, maxTokens: 8 } as const
      const runner = tinyRunner(device, options)
      const rows = []
      for (const count of [5, 1])
        rows.push(
          ...(await landed(
            runner.launch([{ slot: 0, tokens: someTokens(count, count), samples: [], allLogits: true }]),
          )),
        )
      const { feedsDraws } = runner
      runner.dispose()
      return { values: rows.map((row) => Float32Array.from(row.logits!)), feedsDraws }
    }
    const [expected, actual] = [await logits('cpu'), await logits('webgpu')]
    for (const [i, values] of actual.values.entries()) expect(rmsRatio(values, expected.values[i]!)).toBeLessThan(1e-4)
    expect(actual.feedsDraws).toBe(false)
  })

  test('a long prompt, with which the device begins while its step is recorded, has the logits of the cpu', {
    tags: 'night',
  }, async () => {
    const logits = async (device: 'cpu' | 'webgpu') => {
      await prepareDevice({ device })
      const runner = tinyRunner(device, { slots: 2, maxTokens: 80 })
      const prompt = runner.launch([{ slot: 0, tokens: someTokens(70, 1), samples: [], allLogits: false }])
      const next = runner.launch([{ slot: 0, tokens: someTokens(1, 2), samples: [], allLogits: true }])
      await landed(prompt)
      const values = Float32Array.from((await landed(next))[0]!.logits!)
      runner.dispose()
      return values
    }
    const tolerance = backend.device.matrices === null ? 1e-4 : 5e-3
    expect(rmsRatio(await logits('webgpu'), await logits('cpu'))).toBeLessThan(tolerance)
  })

  test('after the warm-up no step compiles a kernel', async () => {
    await prepareDevice({ device: 'webgpu' })
    const runner = tinyRunner('webgpu', { slots: 6, maxTokens: 80 })
    const asked = vi.spyOn(WebgpuDevice.prototype, 'kernel')
    await runner.compile()
    runner.warmUp()
    expect(asked).toHaveBeenCalled()
    asked.mockClear()
    for (const lengths of [[1], [1, 1, 1, 1, 1, 1], [70], [3, 1, 40]]) {
      const rows = lengths.map((length, slot) => ({
        slot,
        tokens: someTokens(length, 1),
        samples: [],
        allLogits: length < 9,
      }))
      await landed(runner.launch(rows))
    }
    expect(asked).not.toHaveBeenCalled()
    runner.dispose()
  })

  const moved = IS_SLOW ? ARCHITECTURES : (['rwkv7'] as const)
  test.each(moved)(
    '%s: a session with f16 states moves from the cpu to webgpu and back',
    { tags: 'night' },
    async (name) => {
      await prepareDevice({ device: 'webgpu', wkv: 'fp16' })
      const webgpu = tinyRunner('webgpu', { architecture: name, wkv: 'fp16', slots: 3 })
      const cpu = tinyRunner('cpu', { architecture: name, slots: 3 })
      const step = async (runner: typeof cpu, slot: number, tokens: Int32Array) => {
        const [result] = await landed(runner.launch([{ slot, tokens, samples: [], allLogits: true }]))
        return result!.logits!.slice(-runner.info.vocabSize)
      }
      for (const runner of [cpu, webgpu]) runner.clearSlot(0)
      await step(cpu, 0, someTokens(20, 5))
      await landed(webgpu.writeState(1, await landed(cpu.readState(0))))
      const [expected, got] = await Promise.all([step(cpu, 0, someTokens(9, 6)), step(webgpu, 1, someTokens(9, 6))])
      expect(rmsRatio(got, expected)).toBeLessThan(2e-3)
      // A state continues with the same bits on the device that read it, and close to them elsewhere.
      const saved = await landed(webgpu.readState(1))
      await landed(webgpu.writeState(2, saved))
      await landed(cpu.writeState(2, saved))
      const next = someTokens(18, 7)
      const own = await step(webgpu, 1, next)
      expect(await step(webgpu, 2, next)).toEqual(own)
      expect(rmsRatio(await step(cpu, 2, next), own)).toBeLessThan(2e-3)
      for (const runner of [cpu, webgpu]) runner.dispose()
    },
  )

  test('the limits that a bench compares with', { tags: 'night' }, async () => {
    const { bytesPerSecond, operationsPerSecond } = await measureWebgpu(0)
    expect(bytesPerSecond).toBeGreaterThan(1e6)
    expect(operationsPerSecond).toBeGreaterThan(1e6)
  })

  test('the bench of a runner on it', { tags: 'night' }, async () => {
    const choice = { model: DEMO_MODEL, device: 'webgpu', slots: 2, maxTokens: 16 } as const
    await prepareDevice(choice)
    expect(adapterChosen(choice)).toBe(0)
    const runner = loadRunner(choice)
    const prefill = [{ prompts: 1, tokens: 2 }]
    const plan = { decode: [1], mixed: [], prefill, minRepeats: 2, minSeconds: 0 }
    const rows = await benchEngine(runner, plan)
    runner.dispose()
    expect(rows.map(({ kind }) => kind)).toEqual(['decode', 'prefill'])
    for (const { step } of rows) expect(step.tokensPerSecond).toBeGreaterThan(0)
  })
})
