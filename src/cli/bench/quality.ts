/** `skein bench quality`: measures the effect of each weight format on the logits. */

import { readFileSync } from 'node:fs'
import { compareLogits, drawTexts, type QualityRow } from '../../bench/quality.ts'
import { SkeinError } from '../../errors.ts'
import { loadTokenizer } from '../../host/checkpoints/open-model.ts'
import { prepareDevice } from '../../host/device-choice.ts'
import { loadRunner, testedFor } from '../../host/load.ts'
import { type EngineChoice, QUANT_CHOICES, type QuantChoice } from '../../host/model-choice.ts'
import type { Runner } from '../../model/runner.ts'
import { engineChoice } from '../../settings/engine-choice.ts'
import { list, path, toggle, whole } from '../../settings/flags.ts'
import { MODEL_FLAGS, MODEL_WORDS, SETTINGS } from '../../settings/table.ts'
import { defineCommand } from '../terminal/command.ts'
import { formatBytes, printJson, printTable, progressBar } from '../terminal/output.ts'
import { randomModel, SIZE_FLAG } from './random-model.ts'

/** Beginnings of texts that the demo model and chat models know; other models continue them as they can. */
const PROMPTS = [
  'User: Hello!\n\nAssistant:',
  'User: What is the capital of France?\n\nAssistant:',
  'User: 你好\n\nAssistant:',
  'Once upon a time',
  '从前',
  'English: The cat is black.\n\nChinese:',
  'Question: Which month comes after May?\n\nAnswer:',
  'Instruction: Count from one to five.\n\nResponse:',
]

const { quant: _, ...model } = MODEL_FLAGS

export const benchQuality = defineCommand({
  description: 'Logits of quantised weights against those of f32',
  examples: [['skein bench quality MODEL.pth --schemes int8,q4', 'the loss by quantisation']],
  words: MODEL_WORDS,
  flags: {
    size: SIZE_FLAG,
    schemes: list('Formats to compare', { default: 'file,int8,q4,nf4' }),
    tokens: whole(PROMPTS.length, 10_000_000)('Tokens compared, of eight texts', { default: '4096' }),
    text: path('Text to compare over, in eight parts; without it the f32 model writes eight'),
    json: toggle('One JSON object'),
    ...model,
    vocab: SETTINGS.vocab,
  },
  async run({ args }) {
    const schemes = args.schemes.map((name) => {
      const scheme = QUANT_CHOICES.find((one) => one === name)
      if (scheme) return scheme
      const message = `--schemes takes some of ${QUANT_CHOICES.join(', ')} with commas between, not "${args.schemes}"`
      throw new SkeinError('invalid_request', message)
    })
    const { tokens, size } = args
    const choice = engineChoice(size ? { ...args, model: randomModel(size) } : args)
    const given = args.text === undefined ? null : partsOf(args.text, tokens, choice)
    // A random model has no words: any token can begin a text.
    const prompts = size ? PROMPTS.map((_, i) => Int32Array.of(1 + i * 7919)) : textPrompts(choice)
    const load = async (quant: QuantChoice, from = choice) => {
      const one = { ...from, quant, slots: PROMPTS.length }
      await prepareDevice(one, () => testedFor(one))
      return loadRunner(one, progressBar(`loading ${quant}`))
    }
    const exact = await load('f32', exactly(choice))
    const others: Runner[] = []
    for (const scheme of schemes) others.push(await load(scheme))
    try {
      const texts = given ?? drawTexts(exact, prompts, tokens)
      const rows = await compareLogits(exact, others, texts, progressBar('comparing'))
      const { architecture, numParameters, device } = exact.info
      if (args.json) printJson({ architecture, numParameters, device, tokens, rows })
      else printRows(rows)
    } finally {
      for (const runner of [exact, ...others]) runner.dispose()
    }
  },
})

/** The exact reference comes from the CPU, because a GPU computes in f16. */
function exactly(choice: EngineChoice): EngineChoice {
  const device = choice.device === 'reference' ? 'reference' : 'cpu'
  return { ...choice, device, wkv: undefined, memoryBytes: undefined }
}

function textPrompts(choice: EngineChoice): Int32Array[] {
  const tokenizer = loadTokenizer(choice)
  return PROMPTS.map((prompt) => Int32Array.from(tokenizer.encode(prompt)))
}

/** Parts from all over the file. */
function partsOf(file: string, numTokens: number, choice: EngineChoice): Int32Array[] {
  const tokens = Int32Array.from(loadTokenizer(choice).encode(readFileSync(file, 'utf8')))
  const length = Math.ceil(numTokens / PROMPTS.length)
  const apart = Math.floor(tokens.length / PROMPTS.length)
  return PROMPTS.map((_, i) => tokens.slice(i * apart, i * apart + Math.min(length, apart)))
}

function printRows(rows: readonly QualityRow[]): void {
  printTable([
    ['weights', 'size', 'RMS error', 'largest error', 'same best token', 'divergence, nats', 'perplexity'],
    ...rows.map((row) => [
      row.weightType,
      formatBytes(row.weightBytes),
      row.rmsError.toExponential(2),
      row.maxError.toExponential(2),
      `${(100 * row.argmaxAgreement).toFixed(2)} %`,
      row.divergence.toExponential(2),
      `${row.perplexity.toPrecision(4)} (${(100 * row.perplexityLoss).toFixed(2)} %)`,
    ]),
  ])
}
