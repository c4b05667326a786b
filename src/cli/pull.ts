/** `skein pull`: a model from the Hugging Face hub into the cache, verified and resumable. */
import { basename } from 'node:path'
import { defineCommand } from 'citty'
import { openHub } from '../hub/hub.ts'
import { type Pulled, type PullOptions, pullModel, pullVocabulary } from '../hub/pull.ts'
import { vocabularyPath } from '../load.ts'
import { printJson, progressBar } from './output.ts'

/** The name of the World vocabulary among the models'. */
const VOCABULARY = 'vocabulary'

export const pull = defineCommand({
  meta: {
    name: 'pull',
    description: 'Fetch a model and the vocabulary it needs (HF_ENDPOINT names a mirror)',
  },
  args: {
    name: {
      type: 'positional',
      required: true,
      description:
        'rwkv7-g1-0.4b (the newest of that line and size), owner/repository, owner/repository:file, or vocabulary',
      valueHint: 'NAME',
    },
    offline: { type: 'boolean', description: 'Only say where it is (also HF_HUB_OFFLINE=1)' },
    json: { type: 'boolean', description: 'One JSON object' },
  },
  async run({ args }) {
    const options: PullOptions = {
      hub: openHub(),
      isOffline: args.offline === true || isSet(process.env.HF_HUB_OFFLINE),
      onFile: (name) => progressBar(basename(name)),
    }
    const pulled = args.name === VOCABULARY ? undefined : await pullModel(args.name, options)
    const vocabulary =
      pulled && hasVocabulary(pulled.path) ? undefined : await pullVocabulary(options)
    report(pulled, vocabulary, args.json === true)
  },
})

function isSet(value: string | undefined): boolean {
  return value !== undefined && /^(1|true|yes|on)$/i.test(value)
}

/** In itself, beside it, or in the cache from an earlier time. */
function hasVocabulary(model: string): boolean {
  try {
    vocabularyPath({ model })
    return true
  } catch {
    return false
  }
}

function report(pulled: Pulled | undefined, vocabulary: Pulled | undefined, asJson: boolean): void {
  const fetched = [...(pulled?.fetched ?? []), ...(vocabulary?.fetched ?? [])]
  if (asJson) {
    printJson({ model: pulled?.path ?? null, vocabulary: vocabulary?.path ?? null, fetched })
    return
  }
  for (const { path } of [pulled, vocabulary].filter((one) => one !== undefined)) {
    process.stdout.write(`${path}\n`)
  }
}
