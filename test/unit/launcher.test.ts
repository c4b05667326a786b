import { availableParallelism } from 'node:os'
/** From a request for a worker to the options of its process. */
import { expect, test } from 'vitest'
import type { WorkerSpec } from '../../src/gateway/contract.ts'
import { DEFAULT_SPEC, type Launch } from '../../src/gateway/fleet/launch.ts'
import { DEMO_MODEL } from '../../src/host/checkpoints/model-path.ts'
import { engineChoiceOf } from '../../src/host/launcher.ts'
import { entriesOf, launchesOf } from '../../src/settings/models.ts'
import { SETTINGS } from '../../src/settings/table.ts'
import { parseValues, type Raw } from '../../src/settings/values.ts'

function choiceOf(
  spec: Partial<WorkerSpec>,
  { defaults = {}, adaptedFile = null as string | null, adapters = undefined as Launch['adapters'] } = {},
) {
  const launch: Launch = {
    id: 'goose',
    file: '/m/goose.pth',
    quant: spec.quant ?? null,
    startStates: [],
    adapters,
    vocab: null,
    draft: spec.draft_path ?? null,
    spec: { ...DEFAULT_SPEC, ...spec },
  }
  return engineChoiceOf(launch, { defaults, adaptedFile })
}

const SERVER = {
  ...{ device: 'cpu', slots: 8, quant: 'file' },
  adapters: [{ path: 'a.pth' }],
  reranker: 'r.pth',
  draft: 'd.pth',
} as const

test('a model without settings has those of the server; adapters, a reranker and a draft model belong to the first model', () => {
  const base = { model: '/m/goose.pth', startStates: [] }
  expect(choiceOf({}, { defaults: SERVER, adaptedFile: '/m/goose.pth' })).toEqual({ ...SERVER, ...base })
  const other = choiceOf({}, { defaults: SERVER, adaptedFile: '/m/x.pth' })
  expect([other.adapters, other.reranker, other.draft]).toEqual([undefined, undefined, undefined])
  const own = { defaults: SERVER, adaptedFile: '/m/goose.pth' }
  expect(choiceOf({ draft_path: '/m/e.pth' }, own).draft).toBe('/m/e.pth')
  const adapters = [{ path: '/m/b.pth', scale: 0.5 }]
  expect(choiceOf({}, { defaults: SERVER, adaptedFile: '/m/goose.pth', adapters })).toMatchObject({ adapters })
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
    { quant: 'int8', wkv: 'fp16', threads: 3, tool_template: 'vllm-rwkv' },
    { quant: 'int8', wkv: 'fp16', threads: 3, toolTemplate: 'vllm-rwkv' },
  ],
  [{ speculate: 'lookup' }, { speculate: 'lookup' }],
])('%j becomes %j', (spec, choice) => {
  expect(choiceOf(spec)).toMatchObject(choice)
})

test('a device of its own replaces the devices of the server', () => {
  const defaults = { ppDevices: ['cuda:0', 'cuda:1'] as const }
  expect(choiceOf({ gpu_id: 3 }, { defaults })).toMatchObject({ device: 'cuda:3', ppDevices: undefined })
  expect(choiceOf({}, { defaults }).ppDevices).toEqual(['cuda:0', 'cuda:1'])
})

const plan = ({ _ = [], ...raw }: { readonly _?: string[]; readonly [flag: string]: Raw | string[] }) => {
  // All fields but the words are texts and switches.
  const values = parseValues(SETTINGS, raw as Record<string, Raw>)
  return launchesOf(entriesOf(_, values), values)
}
const filesOf = (fields: Parameters<typeof plan>[0]) => plan(fields).map(({ file }) => file)

test('files and names on the command line', () => {
  expect(filesOf({})).toEqual([DEMO_MODEL])
  expect(plan({ host: '0.0.0.0' })).toEqual([])
  expect(filesOf({ host: '0.0.0.0', _: ['demo'] })).toEqual([DEMO_MODEL])
  expect(plan({ 'without-model': true })).toEqual([])
  const all = plan({ _: ['goose=models/demo.pth', 'demo', 'b=demo'] })
  expect(all.map(({ id, file }) => [id, file])).toEqual([
    ['goose', DEMO_MODEL],
    ['demo', DEMO_MODEL],
    ['b', DEMO_MODEL],
  ])
  expect(plan({ _: ['demo'], 'model-name': 'x' })[0]!.id).toBe('x')
  const states = [{ name: 'poet', path: '/p.pth' }]
  expect(plan({ state: 'poet=/p.pth' })[0]).toMatchObject({ startStates: states, spec: { states } })
})

test('each of --gpus has as many workers as --replicas says', () => {
  const places = plan({ gpus: '0,1', replicas: '2' }).map(({ spec }) => spec.gpu_id)
  expect(places).toEqual([0, 1, 0, 1])
  const threads = (fields: Parameters<typeof plan>[0]) => plan(fields).map((launch) => launch.spec.threads)
  const share = Math.max(1, Math.floor(availableParallelism() / 3))
  expect(threads({ replicas: '3' })).toEqual([share, share, share])
  expect(threads({ replicas: '2', threads: '5' })).toEqual([null, null])
  expect(threads({})).toEqual([null])
})

test.each([
  [{ _: ['demo'], 'without-model': true }, 'exclude each other'],
  [{ _: ['demo', 'a=demo'], 'model-name': 'x' }, '--model-name is for a server of one model'],
  [{ _: ['a=demo'], 'model-name': 'x' }, 'both name the model'],
  [{ _: ['demo', 'b=demo'], lora: 'x.pth' }, '--lora is for a server of one model'],
  [{ _: ['demo', 'b=demo'], reranker: 'x.pth' }, '--reranker is for a server of one model'],
  [{ host: '0.0.0.0', gpus: '0' }, '--gpus needs a model'],
  [{ gpus: '0,0' }, 'names one twice'],
  [{ gpus: '0,1', 'pp-devices': '0,1' }, '--gpus and --pp-devices exclude each other'],
  [{ replicas: '0' }, '--replicas'],
])('%j is refused: %s', (fields, message) => {
  expect(() => plan(fields)).toThrow(message)
})
