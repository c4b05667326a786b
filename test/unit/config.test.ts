import { chmodSync, mkdirSync, writeFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { describe, expect, test } from 'vitest'
import { servePlan } from '../../src/cli/serve.ts'
import { DEMO_MODEL } from '../../src/host/checkpoints/model-path.ts'
import { cachePath, modelsFolder } from '../../src/hub/model-cache.ts'
import { launchesOf, refuseFlagsOfOneModel } from '../../src/settings/models.ts'
import { configPath, NO_COMMAND_LINE, settleServe, withFields } from '../../src/settings/serve-settings.ts'
import { fieldOf, SETTING_ROWS, variableOf } from '../../src/settings/setting.ts'
import type { Raw } from '../../src/settings/values.ts'
import { temporaryFolder } from '../helpers/temporary-folder.ts'

const folder = temporaryFolder()
let numFiles = 0
function file(content: unknown): string {
  const path = join(folder, `${numFiles++}.json`)
  writeFileSync(path, typeof content === 'string' ? content : JSON.stringify(content))
  return path
}

/** A command line as it is parsed: "--flag=value", "--switch" and words. */
function line(...all: string[]) {
  const given = new Map<string, Raw>()
  const words: string[] = []
  for (const word of all) {
    const [, name, value] = /^--([^=]+)(?:=(.*))?$/s.exec(word) ?? []
    if (name === undefined) words.push(word)
    else given.set(name, value ?? true)
  }
  return { given, words }
}

function settle(content: unknown, environment: Record<string, string> = {}, ...words: string[]) {
  const path = content === null ? null : file(content)
  return settleServe(line(...words), path, environment)
}

const sourceOf = (settings: ReturnType<typeof settle>, flag: string) => {
  const found = settings.values.get(flag)
  return found === undefined ? null : [found.value, found.origin]
}

describe('precedence of values', () => {
  test('flag, then environment variable, then file, then default', () => {
    const content = { port: 1, slots: 1, maxWaiting: 1 }
    const environment = { SKEIN_PORT: '2', SKEIN_SLOTS: '2' }
    const settled = settle(content, environment, '--port=3')
    expect(sourceOf(settled, 'port')).toEqual(['3', 'flag'])
    expect(sourceOf(settled, 'slots')).toEqual(['2', 'environment'])
    expect(sourceOf(settled, 'max-waiting')).toEqual(['1', 'file'])
    expect(sourceOf(settled, 'host')).toEqual(['127.0.0.1', 'default'])
    expect(sourceOf(settled, 'threads')).toBeNull()
    expect(servePlan(settled).options.port).toBe(3)
  })

  test('unknown variables that look like settings are reported', () => {
    const own = { SKEIN_PROT: '1', SKEIN_PORT: '2', SKEIN_MODEL: 'demo', SKEIN_ISA: '', PORT: '3' }
    expect(settle(null, own).notes).toEqual([expect.stringContaining('SKEIN_PROT is no setting')])
    expect(settle(null, { SKEIN_PORT: '2' }).notes).toEqual([])
  })

  test('a default is weaker than the file', () => {
    expect(servePlan(settle({ port: 77, quant: 'int8' })).options.port).toBe(77)
    expect(servePlan(settle({ quant: 'int8' })).choice.quant).toBe('int8')
  })

  test('every kind of value has the same result as its flag', () => {
    const settled = settle({
      allowOrigin: ['https://a.example', 'https://b.example'],
      state: { poet: 'poet.pth' },
      openTranslate: true,
      gpus: [0, 2],
      dataDir: 'data',
      limits: { n: 3 },
    })
    const { options, choice } = servePlan(settled)
    expect(options.allowedOrigins).toEqual(['https://a.example', 'https://b.example'])
    // Paths are relative to the folder of the file.
    expect(options.launches[0]!.startStates).toEqual([{ name: 'poet', path: join(folder, 'poet.pth') }])
    expect(choice.dataDir).toBe(join(folder, 'data'))
    expect(options.openTranslate).toBe(true)
    expect(options.launches.map(({ spec }) => spec.gpu_id)).toEqual([0, 2])
    expect(options.limits).toEqual({ n: 3 })
  })

  test('a switch in the environment is 1 or 0', () => {
    expect(settle(null, { SKEIN_DURABLE: '1' }).raw.durable).toBe(true)
    expect(settle(null, { SKEIN_DURABLE: '0' }).raw.durable).toBe(false)
    expect(() => settle(null, { SKEIN_DURABLE: 'maybe' })).toThrow('SKEIN_DURABLE')
  })

  test('the model: a name on the command line replaces the models of the file', () => {
    const content = { models: [{ file: 'demo', name: 'goose' }] }
    expect(settle(content).models).toHaveLength(1)
    const replaced = settle(content, {}, 'other.pth')
    expect(replaced.models).toEqual([])
    expect(replaced.words).toEqual(['other.pth'])
    expect(settle(content, {}, '--without-model').models).toEqual([])
    expect(settle({ model: 'demo' }, { SKEIN_MODEL: 'x.pth' }).words).toEqual(['x.pth'])
  })

  test('the model: a file of its folder, with or without suffix, or a name', () => {
    writeFileSync(join(folder, 'packed.gguf'), '')
    const fileOf = (model: string) => settle({ models: [{ file: model }] }).models[0]!.file
    expect(fileOf('packed')).toBe(join(folder, 'packed'))
    expect(settle({ model: 'packed' }).model?.path).toBe(join(folder, 'packed'))
    // If it is missing, the error says where it was searched.
    expect(fileOf('absent.pth')).toBe(join(folder, 'absent.pth'))
    expect(fileOf('goose/rwkv:packed.gguf')).toBe('goose/rwkv:packed.gguf')
    expect(fileOf('rwkv7-g1-0.4b')).toBe('rwkv7-g1-0.4b')
    // A downloaded model may be named with its suffix, too.
    const environment = { XDG_CACHE_HOME: join(folder, 'cache') }
    const pulled = cachePath(modelsFolder(environment), 'goose/rwkv', 'pulled.pth')
    mkdirSync(dirname(pulled), { recursive: true })
    writeFileSync(pulled, '')
    expect(settle({ model: 'pulled.pth' }, environment).model?.path).toBe('pulled.pth')
  })

  test('an empty key on the command line is not the same as no key', () => {
    expect(() => servePlan(settle(null, {}, '--api-key='))).toThrow('--api-key is empty')
    expect(() => servePlan(settle(null, {}, '--password='))).toThrow('--password is empty')
    expect(servePlan(settle(null, { SKEIN_API_KEY: '' })).access.apiKey).toBeUndefined()
    expect(servePlan(settle(null, {}, '--api-key=k')).access.apiKey).toBe('k')
  })

  test('a flag overrides a setting it excludes, if that comes from a weaker source', () => {
    const dir = servePlan(settle({ dataDir: 'd', durable: true }, {}, '--no-store')).choice
    expect([dir.dataDir, dir.durable]).toEqual([undefined, false])
    expect(settle({ noAuth: true }, { SKEIN_API_KEY: 'k' }).raw['no-auth']).toBeUndefined()
    expect(settle({ device: 'cpu' }, {}, '--gpus=0').raw.device).toBeUndefined()
    expect(settle({ device: 'cpu' }, {}, '--backend=cuda').raw.device).toBeUndefined()
    // Two flags of one source contradict each other, which is reported.
    expect(() => servePlan(settle({ noStore: true, durable: true }))).toThrow('--no-store')
  })
})

describe('an invalid file', () => {
  test.each([
    [{ prot: 1 }, 'prot is no field'],
    [{ port: '8000' }, 'port must be integer'],
    [{ port: 70_000 }, 'port must be <= 65535'],
    [{ quant: 'q9' }, 'quant must be one of file, f32'],
    [{ limits: { n: 0 } }, 'limits.n must be >= 1'],
    [{ limits: { m: 1 } }, 'limits.m is no field'],
    [{ models: [{ file: 'a' }, { name: 'b' }] }, "models[1] must have required property 'file'"],
    [{ models: [{ file: 'a', quant: 'q9' }] }, 'models[0].quant must be one of'],
    [{ models: [] }, 'models must NOT have fewer than 1 items'],
    [{ model: 'a', models: [{ file: 'a' }] }, 'model excludes `models`'],
    [{ allowOrigin: ['a,b'] }, 'allowOrigin[0] must match'],
    [{ backend: 'cpu' }, 'backend is no field'],
    [[], 'the whole must be object'],
    ['{', 'is not JSON'],
    [{ models: [{ file: 'a', slots: 65_537 }] }, 'models[0].slots must be <= 65536'],
  ])('is refused with the field: %j', (content, message) => {
    expect(() => settle(content)).toThrow(message)
  })

  test('may begin with a byte order mark', () => {
    expect(sourceOf(settle('\uFEFF{"slots":7}'), 'slots')).toEqual(['7', 'file'])
  })

  test('for a model it has the settings that the server has for all models', () => {
    expect(() => settle({ models: [{ file: 'a', slots: 65_536, replicas: 256 }] })).not.toThrow()
  })

  test('errors that the schema cannot express name the field, too', () => {
    const plan = (settled: ReturnType<typeof settle>) => withFields(settled, () => servePlan(settled))
    expect(() => plan(settle({ device: 'cpuu' }))).toThrow(/\.json: device: --device takes/)
    expect(() => plan(settle({ noStore: true, dataDir: 'x' }))).toThrow(/\.json: noStore: /)
    expect(() => plan(settle(null, { SKEIN_PORT: 'x' }))).toThrow('SKEIN_PORT: --port takes')
    expect(() => plan(settle(null, {}, '--device=cpuu'))).toThrow(/^--device takes/)
    const models = [{ file: 'demo', gpus: [0], device: 'cpu' }]
    expect(() => plan(settle({ models }))).toThrow(/\.json: models\[0\]\.gpus: /)
  })
})

describe('models of a file', () => {
  test('become workers on their devices, as many as requested', () => {
    const entry = { file: 'demo', name: 'goose', aliases: ['g'], gpus: [0, 1], replicas: 2 }
    const launches = launchesOf([entry], {})
    expect(launches.map(({ spec }) => spec.gpu_id)).toEqual([0, 1, 0, 1])
    expect(launches[0]).toMatchObject({ id: 'goose', file: DEMO_MODEL, quant: null })
    expect(launches[0]!.spec).toMatchObject({ model_name: 'goose', aliases: ['g'] })
  })

  test('use the devices of the server if they name none', () => {
    const launches = launchesOf([{ file: 'demo' }, { file: 'demo', name: 'b', device: 'cpu' }], { gpus: [0, 1] })
    expect(launches.map(({ id, spec }) => [id, spec.gpu_id, spec.device])).toEqual([
      ['demo', 0, null],
      ['demo', 1, null],
      ['b', null, 'cpu'],
    ])
  })

  test('have their own names and states', () => {
    const [launch] = launchesOf([{ file: 'demo', states: { poet: '/p.pth' }, quant: 'int8' }], {})
    expect(launch).toMatchObject({ quant: 'int8', startStates: [{ name: 'poet', path: '/p.pth' }] })
    expect(() => refuseFlagsOfOneModel({ 'model-name': 'x' })).toThrow('--model-name')
  })
})

test('the file is named, or found in the working directory, or disabled', () => {
  const here = (path: string) => path === 'skein.config.json'
  expect(configPath(undefined, here)).toBe('skein.config.json')
  expect(configPath(undefined, () => false)).toBeNull()
  expect(configPath('x.json', () => false)).toBe('x.json')
  expect(configPath(false, here)).toBeNull()
})

test('a file that others can read is recognised', () => {
  const path = file({ apiKey: ['k'] })
  chmodSync(path, 0o644)
  expect(settleServe(NO_COMMAND_LINE, path, {}).file?.isShared).toBe(true)
  chmodSync(path, 0o600)
  expect(settleServe(NO_COMMAND_LINE, path, {}).file?.isShared).toBe(false)
})

test('the three names of a setting follow from its flag', () => {
  expect(fieldOf('max-prompt-tokens')).toBe('maxPromptTokens')
  expect(variableOf('max-prompt-tokens')).toBe('SKEIN_MAX_PROMPT_TOKENS')
  const names = SETTING_ROWS.map(({ flag }) => fieldOf(flag))
  expect(new Set(names).size).toBe(names.length)
  for (const taken of ['model', 'models', 'limits', '$schema']) expect(names).not.toContain(taken)
})
