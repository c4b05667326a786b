/** From what was asked of a worker to what its process is told. */
import { expect, test } from 'vitest'
import { hosted } from '../../src/cli/hosting-args.ts'
import { engineChoiceOf } from '../../src/cli/launcher.ts'
import { DEFAULT_SPEC, type Launch } from '../../src/gateway/launch.ts'
import type { WorkerSpec } from '../../src/gateway/management/contract.ts'
import { DEMO_MODEL } from '../../src/load.ts'

function choiceOf(
  spec: Partial<WorkerSpec>,
  {
    defaults = {},
    adaptedFile = null as string | null,
    adapters = undefined as Launch['adapters'],
  } = {},
) {
  const launch: Launch = {
    id: 'goose',
    file: '/m/goose.pth',
    quant: spec.quant ?? null,
    startStates: [],
    adapters,
    vocab: null,
    spec: { ...DEFAULT_SPEC, ...spec },
  }
  return engineChoiceOf(launch, { defaults, adaptedFile })
}

const SERVER = { device: 'cpu', slots: 8, quant: 'file', adapters: [{ path: 'a.pth' }] } as const

test('what is not said is as the server was told; adapters are the first model’s alone', () => {
  const base = { model: '/m/goose.pth', startStates: [] }
  expect(choiceOf({}, { defaults: SERVER, adaptedFile: '/m/goose.pth' })).toEqual({
    ...SERVER,
    ...base,
  })
  expect(choiceOf({}, { defaults: SERVER, adaptedFile: '/m/x.pth' }).adapters).toBeUndefined()
  const adapters = [{ path: '/m/b.pth', scale: 0.5 }]
  expect(choiceOf({}, { defaults: SERVER, adaptedFile: '/m/goose.pth', adapters })).toMatchObject({
    adapters,
  })
})

test.each<[Partial<WorkerSpec>, object]>([
  [{ gpu_id: 2 }, { device: 'cuda:2' }],
  [{ gpu_id: 2, device: 'cuda:2' }, { device: 'cuda:2' }],
  [{ device: 'cuda:GPU-1-2' }, { device: 'cuda:GPU-1-2' }],
  [{ pp_devices: [1, 0] }, { ppDevices: ['cuda:1', 'cuda:0'] }],
  [{ pp_devices: [3] }, { device: 'cuda:3' }],
  [{ max_batch_size: 64 }, { slots: 64 }],
  [{ prefill_chunk_size: 512 }, { maxTokens: 512 }],
  [
    { prefill_chunk_size: 512, max_batch_size: 960 },
    { maxTokens: 1472, slots: 960 },
  ],
  [{ max_queue_size: 5 }, { maxWaiting: 5 }],
  [
    { quant: 'int8', wkv: 'fp16', threads: 3 },
    { quant: 'int8', wkv: 'fp16', threads: 3 },
  ],
])('%j becomes %j', (spec, choice) => {
  expect(choiceOf(spec)).toMatchObject(choice)
})

test('a device of its own is instead of the server’s devices', () => {
  const defaults = { ppDevices: ['cuda:0', 'cuda:1'] as const }
  expect(choiceOf({ gpu_id: 3 }, { defaults })).toMatchObject({
    device: 'cuda:3',
    ppDevices: undefined,
  })
  expect(choiceOf({}, { defaults }).ppDevices).toEqual(['cuda:0', 'cuda:1'])
})

const plan = (fields: Record<string, unknown>) =>
  hosted({ _: [], host: '127.0.0.1', quant: 'file', ...fields })

test('files and names on the command line', () => {
  expect(plan({}).choice.model).toBe(DEMO_MODEL)
  expect(plan({ host: '0.0.0.0' }).choice.model).toBeNull()
  expect(plan({ host: '0.0.0.0', _: ['demo'] }).choice.model).toBe(DEMO_MODEL)
  expect(plan({ 'without-model': true }).choice.model).toBeNull()
  const { choice, modelId, moreModels } = plan({ _: ['goose=models/demo.pth', 'demo', 'b=demo'] })
  expect([choice.model, modelId]).toEqual(['models/demo.pth', 'goose'])
  expect(moreModels).toEqual([{ model: DEMO_MODEL }, { id: 'b', model: DEMO_MODEL }])
  expect(plan({ _: ['demo'], 'model-name': 'x' }).modelId).toBe('x')
})

test.each([
  [
    { gpus: '0,1', replicas: '2' },
    { gpus: [0, 1], replicas: 2 },
  ],
  [{ 'max-worker-mb': '2' }, { maxWorkerBytes: 2 * 2 ** 20 }],
])('%j means %j', (fields, meaning) => {
  expect(plan(fields)).toMatchObject(meaning)
})

test.each([
  [{ _: ['demo'], 'without-model': true }, 'exclude each other'],
  [{ _: ['demo', 'a=demo'], 'model-name': 'x' }, '--model-name is for a server of one model'],
  [{ _: ['a=demo'], 'model-name': 'x' }, 'both name the model'],
  [{ _: ['demo', 'b=demo'], lora: 'x.pth' }, '--lora is for a server of one model'],
  [{ host: '0.0.0.0', gpus: '0' }, '--gpus needs a model'],
  [{ gpus: '0,0' }, 'names one twice'],
  [{ replicas: '0' }, '--replicas'],
])('%j is refused: %s', (fields, message) => {
  expect(() => plan(fields)).toThrow(message)
})
