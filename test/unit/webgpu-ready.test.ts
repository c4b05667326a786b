/** What the host does for a step: on a GPU that only counts, in the forms of a GPU with matrices, for layers of real sizes. */
import { expect, test } from 'vitest'
import { maskWords } from '../../src/backend/batch.ts'
import { landed } from '../../src/backend/flight.ts'
import { numScales, valueBytes } from '../../src/backend/quantised.ts'
import type { Quantise } from '../../src/backend/webgpu/resources.ts'
import { openWebgpuBackend } from '../../src/backend/webgpu/webgpu.ts'
import type { WeightType } from '../../src/backend/weight-types.ts'
import { plainRequest } from '../../src/bench/plain-request.ts'
import { type RandomModelSize, shapesOnly } from '../../src/bench/random-model.ts'
import { LocalEngineClient } from '../../src/engine/client/local-client.ts'
import { Engine } from '../../src/engine/engine.ts'
import type { GenerateRequest } from '../../src/engine/messages.ts'
import { DEFAULT_STATE_OPTIONS } from '../../src/engine/states.ts'
import { loadModel } from '../../src/model/run/load-model.ts'
import { ModelRunner } from '../../src/model/run/model-runner.ts'
import { useFakeGpu } from '../helpers/fake-gpu.ts'
import { draw, someTokens } from '../helpers/runner.ts'

const callsSince = useFakeGpu()
const LAYERS = 2

const zeros: Quantise = (type, { columns }, start, end) => ({
  values: new Uint8Array((end - start) * valueBytes(type, columns)),
  scales: new Uint8Array(2 * (end - start) * numScales(type, columns)),
})

async function openRunner(size: RandomModelSize, type: WeightType, slots: number, maxTokens: number) {
  const backend = await openWebgpuBackend(0, { quantise: zeros })
  const { tensors, ...rest } = shapesOnly(size)
  const isKept = (name: string) => Number(/^blocks\.(\d+)/.exec(name)?.[1] ?? 0) < LAYERS
  const kept = new Map([...tensors].filter(([name]) => isKept(name)))
  const model = loadModel({ ...rest, tensors: kept }, backend, { weightType: type })
  return new ModelRunner(model, backend, { numSlots: slots, maxTokens, fingerprint: '' })
}

/** Rows of a step of so many tokens: the last has those that are too many. */
function rowsOf(numTokens: number, numRows: number, fields: { draws?: boolean; allLogits?: boolean } = {}) {
  const { draws = false, allLogits = false } = fields
  return Array.from({ length: numRows }, (_, slot) => ({
    slot,
    tokens: new Int32Array(slot === numRows - 1 ? numTokens - slot : 1).fill(7),
    samples: draws ? [draw(slot)] : [],
    allLogits,
  }))
}

/** What makes a step wait for the driver. */
const MAKES = /^create(?!CommandEncoder)/

test.each([
  ['1.5b', 'bf16', 33, 300],
  ['1.5b', 'i8', 8, 140],
  ['7a-0.1b', 'q4', 64, 100],
  ['0.1b', 'nf4', 20, 520],
] as const)('%s in %s: after the warm-up no step of any size compiles, binds or allocates', async (...choice) => {
  const [size, type, slots, maxTokens] = choice
  const runner = await openRunner(size, type, slots, maxTokens)
  expect(callsSince()).not.toHaveProperty('createComputePipeline')
  await runner.compile()
  runner.warmUp()
  const compiled = callsSince()
  // All side by side.
  expect(compiled.createComputePipelineAsync).toBeGreaterThan(20)
  expect(compiled).not.toHaveProperty('createComputePipeline')
  await landed(runner.launch(rowsOf(1, 1)))
  callsSince()
  const made = () => Object.keys(callsSince()).filter((name) => MAKES.test(name))
  for (let tokens = 1; tokens <= maxTokens; tokens++) {
    const most = Math.min(tokens, slots)
    // A step is a prompt's from 16 tokens beyond one a row on.
    const counts = [1, 2, tokens - 17, tokens - 16, tokens - 15, most].filter((rows) => rows >= 1 && rows <= most)
    for (const rows of new Set(counts)) await landed(runner.launch(rowsOf(tokens, rows, { draws: true })))
  }
  expect(made()).toEqual([])
  // States and small reads come by way of buffers that are there.
  const states = () => Array.from({ length: 4 }, (_, slot) => landed(runner.readState(slot)))
  await Promise.all(states())
  await landed(runner.launch(rowsOf(3, 1, { allLogits: true })))
  await Promise.all(states())
  expect(made()).toEqual([])
  for (let tokens = 1; tokens <= runner.maxLogits; tokens++)
    await landed(runner.launch(rowsOf(tokens, 1, { allLogits: true })))
  // One of more bytes is made when the most that was read is exceeded.
  expect(made()).toEqual(['createBuffer'])
  await landed(runner.launch(rowsOf(runner.maxLogits, 1, { allLogits: true })))
  expect(made()).toEqual([])
  runner.dispose()
})

test('nothing that a request may ask for compiles a kernel after the warm-up', async () => {
  const runner = await openRunner('0.1b', 'bf16', 3, 64)
  await runner.compile()
  runner.warmUp()
  callsSince()
  const limits = { prefillChunk: 40, embeddings: 'mean', preemptBytes: 2 ** 30 } as const
  const bytes = { bytesOf: () => Uint8Array.of(0x61), encode: () => Int32Array.of(1) }
  const client = new LocalEngineClient(new Engine(runner, bytes, limits, DEFAULT_STATE_OPTIONS))
  let id = 0
  const ask = async (parts: Partial<GenerateRequest>) => {
    const types = new Set<string>()
    for await (const { type } of client.generate(plainRequest({ id: `${id++}`, maxTokens: 6, ...parts })))
      types.add(type)
    return [...types]
  }
  const { sampling } = plainRequest()
  const session = { id: 's', ifMissing: 'create', ifBusy: 'wait', onCancel: 'keep' } as const
  const ids = (count: number) => Array.from({ length: 2 * count }, (_, i) => i)
  const kinds: Partial<GenerateRequest>[] = [
    ...[1, 2, 7, 29, 41, 63, 65, 130, 201].map((count) => ({ prompt: someTokens(count, count) })),
    { n: 3 },
    { sampling: { ...sampling, temperature: 1, topP: 0.7, topK: 20, presencePenalty: 0.5, repetitionPenalty: 1.2 } },
    { sampling: { ...sampling, logitBias: ids(3000).map((token) => [token, 1] as const), bannedTokens: [5, 6] } },
    { stop: { strings: ['xyz'], tokens: ids(200).map((token) => token + 1), ignoreEos: true } },
    { logprobs: 20 },
    ...[1, 9, 90].map((count) => ({ promptLogprobs: 5, prompt: someTokens(count, 8), maxTokens: 1 })),
    ...(['last', 'mean'] as const).map((embedding) => ({ embedding, maxTokens: 0, cache: 'no-store' as const })),
    { session },
    { session, prompt: someTokens(20, 9) },
    { prompt: someTokens(60, 7), boundaries: Int32Array.of(30) },
    { prompt: someTokens(60, 7), boundaries: Int32Array.of(30) },
    {
      mixture: [
        { startState: null, weight: 0.5 },
        { startState: null, weight: 0.5 },
      ],
    },
  ]
  // Alone, and beside each other.
  for (const kind of kinds) expect(await ask(kind)).not.toContain('error')
  for (const types of await Promise.all([...kinds, ...kinds].map(ask))) expect(types).not.toContain('error')
  // Others take the slots of answers, which go on later.
  const long = [1, 2, 3].map(() => ask({ maxTokens: 400, tenant: 'many' }))
  for (const tenant of ['a', 'b', 'c']) await ask({ tenant, priority: 5 })
  await Promise.all(long)
  const file = await client.call('sessions.export', { tenant: '', id: 's' })
  for (const name of ['i', 'j', 'k', 'l']) {
    await client.call('sessions.import', { tenant: '', id: name, bytes: file })
    await client.call('sessions.fork', { tenant: '', id: name, newId: `${name}2` })
  }
  await Promise.all(['i', 'j2', 'k', 'l2'].map((name) => ask({ session: { ...session, id: name } })))
  const mask = new Uint32Array(maskWords(runner.info.vocabSize)).fill(1)
  await landed(runner.launch([0, 1, 2].map((slot) => ({ ...rowsOf(1, 1)[0]!, slot, samples: [draw(slot, { mask })] }))))
  const calls = callsSince()
  const compiling = Object.keys(calls).filter((name) => /^create.*(Pipeline|Shader|Layout)/.test(name))
  expect(compiling).toEqual([])
  // Bindings are made anew where the buffer of steps has grown: twice as large each time.
  expect(calls.createBindGroup).toBeLessThanOrEqual(4)
  // By way of which many scores come at once, and the one of steps.
  expect(calls.createBuffer).toBeLessThanOrEqual(6)
  await client.close()
})

test('a decode step is one write, one submit, and three calls a launch', async () => {
  const runner = await openRunner('1.5b', 'bf16', 8, 64)
  // Time and channels of a layer; embedding, norm, head and three of the sampler.
  for (const [rows, launches] of [
    [1, 8 * LAYERS + 6],
    [8, 8 * LAYERS + 6],
  ] as const) {
    callsSince()
    await landed(runner.launch(rowsOf(rows, rows, { draws: true })))
    const calls = callsSince()
    expect(calls).toMatchObject({ dispatchWorkgroups: launches, writeBuffer: 1, submit: 1, createCommandEncoder: 1 })
    expect(calls.setPipeline).toBeLessThanOrEqual(launches)
    // Steps by matrices keep outputs as f16, in two buffers.
    expect(calls.setBindGroup).toBeLessThanOrEqual(1 + launches + (rows === 1 ? 0 : 6 * LAYERS))
  }
  runner.dispose()
})
