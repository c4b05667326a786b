/** `skein pull`, `ls`, `rm`: downloads of the Hugging Face hub in the cache, verified and resumable. */
import { basename } from 'node:path'
import { SkeinError } from '../../errors.ts'
import { hasVocabulary } from '../../host/checkpoints/open-model.ts'
import { isOffline, openHub } from '../../hub/hub.ts'
import { findModel, listModels, modelsFolder, removeModel } from '../../hub/model-cache.ts'
import { type Pulled, type PullOptions, pullModel, pullVocabulary } from '../../hub/pull.ts'
import { toggle } from '../../settings/flags.ts'
import { defineCommand } from '../terminal/command.ts'
import { formatBytes, INTERRUPTED, printJson, printTable, progressBar } from '../terminal/output.ts'

/** The name that stands for the World vocabulary. */
const VOCABULARY = 'vocabulary'

export const pull = defineCommand({
  examples: [
    ['skein pull rwkv7-g1-0.4b', 'the newest release of that line and size'],
    ['skein pull owner/repository:file.gguf', 'one file of a repository'],
  ],
  words: {
    name: {
      description:
        'rwkv7-g1-0.4b (the newest of that line and size), owner/repository, owner/repository:file, or vocabulary',
      isRequired: true,
    },
  },
  flags: {
    offline: toggle('Only print the path of a downloaded model (also HF_HUB_OFFLINE=1)'),
    json: toggle('One JSON object'),
  },
  async run({ args }) {
    const { pulled, vocabulary } = await pullAll(args.name, args.offline)
    report(pulled, vocabulary, args.json)
  },
})

/** Downloads a model and its vocabulary, or finds them in the cache. */
export async function pullAll(name: string, offline = false) {
  const options: PullOptions = {
    hub: openHub(),
    isOffline: offline || isOffline(),
    onFile: (file) => progressBar(basename(file)),
  }
  process.once('SIGINT', leave)
  try {
    const pulled = name === VOCABULARY ? undefined : await pullModel(name, options)
    const vocabulary = pulled && hasVocabulary(pulled.path) ? undefined : await pullVocabulary(options)
    return { pulled, vocabulary }
  } finally {
    process.off('SIGINT', leave)
  }
}

function leave(): void {
  const line = process.stderr.isTTY ? '\n' : ''
  process.stderr.write(`${line}skein: stopped; the same command goes on with what has come\n`)
  process.exit(INTERRUPTED)
}

function report(pulled: Pulled | undefined, vocabulary: Pulled | undefined, asJson: boolean): void {
  const fetched = [...(pulled?.fetched ?? []), ...(vocabulary?.fetched ?? [])]
  if (asJson) {
    printJson({ model: pulled?.path ?? null, vocabulary: vocabulary?.path ?? null, fetched })
    return
  }
  for (const { path } of [pulled, vocabulary].filter((one) => one !== undefined)) process.stdout.write(`${path}\n`)
}

export const ls = defineCommand({
  examples: [['skein ls', 'names for skein serve, run and rm']],
  flags: { json: toggle('One JSON object') },
  run({ args }) {
    const folder = modelsFolder()
    const models = listModels(folder)
    if (args.json) {
      printJson({ folder, models })
      return
    }
    if (models.length === 0) {
      process.stdout.write(`no models in ${folder}; skein pull rwkv7-g1-0.4b fetches one\n`)
      return
    }
    printTable([
      ['name', 'size', 'repository'],
      ...models.map(({ name, bytes, repository, isPartial }) => [
        name,
        formatBytes(bytes),
        isPartial ? `${repository} (incomplete: pull it again)` : repository,
      ]),
    ])
  },
})

export const rm = defineCommand({
  examples: [['skein rm rwkv7-g1-0.4b', 'frees its disk space']],
  words: { name: { description: 'As skein ls shows it', isRequired: true } },
  flags: { json: toggle('One JSON object') },
  run({ args }) {
    const folder = modelsFolder()
    const whole = findModel(folder, args.name)
    const partial = listModels(folder).filter((model) => model.isPartial && model.name === args.name)
    const models = [...(whole ? [whole] : []), ...partial]
    if (models.length === 0) throw new SkeinError('not_found', `no pulled model "${args.name}"; skein ls shows them`)
    const bytes = models.reduce((sum, model) => sum + removeModel(folder, model), 0)
    const paths = models.map(({ path }) => path)
    if (args.json) printJson({ removed: paths, bytes })
    else process.stdout.write(`removed ${paths.join(', ')} (${formatBytes(bytes)})\n`)
  },
})
