/** `skein config check`: shows the settings that `serve` would use and where each value came from. Starts nothing. */
import { existsSync } from 'node:fs'
import { SkeinError } from '../errors.ts'
import { resolveAuth } from '../gateway/access/auth.ts'
import { readKeys } from '../gateway/access/keys-file.ts'
import type { Launch } from '../gateway/fleet/launch.ts'
import { checkModelFile } from '../host/checkpoints/open-model.ts'
import { engineChoiceOf } from '../host/launcher.ts'
import { keyFilePath } from '../settings/engine-choice.ts'
import { toggle } from '../settings/flags.ts'
import { launchesOf } from '../settings/models.ts'
import {
  configPath,
  NO_COMMAND_LINE,
  publishedSchema,
  type ServeSettings,
  settleServe,
  valuesOf,
  withFields,
} from '../settings/serve-settings.ts'
import { fieldOf, SETTING_ROWS, variableOf } from '../settings/setting.ts'
import { servePlan } from './serve.ts'
import { defineCommand, defineCommands } from './terminal/command.ts'
import { printJson, printTable } from './terminal/output.ts'

const check = defineCommand({
  description: 'Show the settings that serve would use',
  examples: [['skein config check', 'before a restart']],
  words: { file: { description: 'Default: $SKEIN_CONFIG, or skein.config.json here' } },
  flags: { json: toggle('One JSON object') },
  run({ args }) {
    const path = configPath(args.file, existsSync)
    const settings = settleServe(NO_COMMAND_LINE, path)
    const found = withFields(settings, () => examine(settings))
    if (args.json) printJson({ file: settings.file?.path ?? null, ...found, settings: listed(settings) })
    else printFound(settings, found)
  },
})

const schema = defineCommand({
  description: 'Print the JSON schema of skein.config.json',
  examples: [['skein config schema > skein.schema.json', 'for an editor']],
  run() {
    printJson(publishedSchema())
  },
})

export const config = defineCommands({ check, schema }, [
  ['skein config check', 'the settings of serve, and where each value came from'],
])

interface Found {
  readonly models: readonly { readonly name: string; readonly file: string; readonly workers: number }[]
  readonly access: string
  readonly notes: readonly string[]
}

/** Throws the errors that `serve` would throw before it starts anything. */
function examine(settings: ServeSettings): Found {
  const { file, values, models } = settings
  const args = valuesOf(settings)
  const { choice, options, access } = servePlan(settings)
  const { launches } = options
  const defaults = { ...choice, adapters: undefined }
  for (const [i, entry] of models.entries()) {
    const [launch] = launchesOf([entry], args)
    if (launch === undefined) continue
    const own = withPlace(`models[${i}]`, () => engineChoiceOf(launch, { defaults, adaptedFile: null }))
    withPlace(`models[${i}].file`, () => checkModelFile(own))
  }
  const { model } = choice
  if (models.length === 0 && model !== null) withPlace('model', () => checkModelFile({ ...choice, model }))
  const numNamed = readKeys(keyFilePath(args)).length
  const auth = resolveAuth({ ...access, numNamed })
  const holdsSecret = [...values.values()].some(({ setting, origin }) => setting.isSecret && origin === 'file')
  return {
    models: grouped(launches),
    // A generated key would differ at every start.
    access: auth.generatedKey === null ? auth.message : 'a key is generated and shown at start',
    notes: [
      ...settings.notes,
      ...(holdsSecret && file?.isShared === true
        ? [`${file.path} holds a key and others can read it; chmod 600, or use skein keys`]
        : []),
    ],
  }
}

/** Names the field of the configuration in an error about its checkpoint. */
function withPlace<T>(field: string, check: () => T): T {
  try {
    return check()
  } catch (thrown) {
    const { code, message } = SkeinError.from(thrown)
    throw new SkeinError(code, message, { param: field, cause: thrown })
  }
}

function grouped(launches: readonly Launch[]): Found['models'] {
  const names = [...new Set(launches.map(({ id }) => id))]
  return names.map((name) => {
    const own = launches.filter(({ id }) => id === name)
    return { name, file: own[0]!.file, workers: own.length }
  })
}

interface Listed {
  readonly field: string
  readonly value: string
  readonly from: string
}

function listed({ values, models, file }: ServeSettings): readonly Listed[] {
  const ofServer = SETTING_ROWS.flatMap(({ flag, isSecret }) => {
    const resolved = values.get(flag)
    if (resolved === undefined) return []
    const { value, origin } = resolved
    const from = origin === 'environment' ? variableOf(flag) : origin
    return [{ field: fieldOf(flag), value: isSecret ? '(set)' : String(value), from }]
  })
  const ofModels = models.flatMap((model, i) => listedUnder(`models[${i}]`, model))
  return [...ofServer, ...ofModels, ...listedUnder('limits', file?.limits ?? {})]
}

function listedUnder(place: string, fields: object): readonly Listed[] {
  return Object.entries(fields).map(([name, value]) => ({
    field: `${place}.${name}`,
    value: plain(value),
    from: 'file',
  }))
}

function plain(value: unknown): string {
  if (Array.isArray(value)) return value.join(', ')
  if (typeof value !== 'object' || value === null) return String(value)
  return Object.entries(value)
    .map(([name, path]) => `${name}=${path}`)
    .join(', ')
}

function printFound(settings: ServeSettings, { models, access, notes }: Found): void {
  const { file } = settings
  process.stdout.write(`config   ${file?.path ?? 'no file'}\n`)
  for (const { name, file: path, workers } of models)
    process.stdout.write(`model    ${name}: ${path}${workers > 1 ? `, ${workers} workers` : ''}\n`)
  if (models.length === 0) process.stdout.write('model    none\n')
  process.stdout.write(`access   ${access}\n\n`)
  printTable([['setting', 'value', 'from'], ...listed(settings).map(({ field, value, from }) => [field, value, from])])
  for (const note of notes) process.stderr.write(`skein: ${note}\n`)
}
