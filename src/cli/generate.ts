/** `skein generate`: continues a text in this process, without a server, and streams to standard output. */
import { readFileSync } from 'node:fs'
import { SkeinError } from '../errors.ts'
import { load } from '../index.ts'
import { engineChoice } from '../settings/engine-choice.ts'
import { MAX_TOKENS, SAMPLING_FLAGS, samplingOptions, text, toggle, whole } from '../settings/flags.ts'
import { ENGINE_FLAGS, MODEL_WORDS, SETTINGS } from '../settings/table.ts'
import { defineCommand } from './terminal/command.ts'
import { modelAndText } from './terminal/model-or-text.ts'
import { INTERRUPTED, printJson, progressBar } from './terminal/output.ts'

export const generate = defineCommand({
  examples: [
    ["skein generate 'Once upon a time'", 'continue with the demo model'],
    ['skein generate MODEL.pth --temperature 0 < text', 'greedy continuation of a text'],
  ],
  words: {
    ...MODEL_WORDS,
    text: {
      description: 'Text to continue (default: standard input); needs no model argument unless it looks like one',
    },
  },
  flags: {
    prompt: text('The text, whatever it looks like', { short: 'p' }),
    seed: whole(0, Number.MAX_SAFE_INTEGER)('Seed of sampling; the same seed and prompt give the same text'),
    stop: text('Stop before this text'),
    'max-tokens': MAX_TOKENS,
    json: toggle('One JSON object at the end instead of a stream'),
    ...SAMPLING_FLAGS,
    ...ENGINE_FLAGS,
    state: SETTINGS.state,
  },
  async run({ args }) {
    const { model, text: word } = args.prompt === undefined ? modelAndText(args) : args
    const prompt = promptOf(word, args.prompt)
    const { stop, state: states = [], seed } = args
    if (states.length > 1) throw new SkeinError('invalid_request', '--state takes one state here')
    const llm = await load(
      { ...engineChoice({ ...args, model }), startStates: states },
      { onProgress: progressBar('loading') },
    )
    const abort = new AbortController()
    process.once('SIGINT', () => abort.abort())
    const started = performance.now()
    let answer = ''
    let tokens = 0
    try {
      const stream = llm.generate(prompt, {
        ...samplingOptions(args),
        seed,
        maxTokens: args['max-tokens'],
        startState: states[0]?.name,
        stop: stop === undefined ? [] : [stop],
        signal: abort.signal,
        onTokens: (count) => {
          tokens += count
        },
      })
      for await (const piece of stream) {
        answer += piece
        if (!args.json) process.stdout.write(piece)
      }
    } finally {
      await llm.close()
    }
    if (abort.signal.aborted) process.exitCode = INTERRUPTED
    const seconds = (performance.now() - started) / 1000
    if (args.json) printJson({ prompt, text: answer, tokens, seconds })
    else process.stdout.write('\n')
  },
})

function promptOf(word: string | undefined, flag: string | undefined): string {
  if (word !== undefined && flag !== undefined)
    throw new SkeinError('invalid_request', 'the text was given twice: as an argument and with --prompt')
  const prompt = word ?? flag ?? readFileSync(0, 'utf8')
  if (prompt !== '') return prompt
  const message = 'no text to continue; give it after the model, with --prompt, or on standard input'
  throw new SkeinError('invalid_request', message)
}
