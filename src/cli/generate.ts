/** `skein generate`: continue a text in this process, without a server. Streams to standard output. */
import { readFileSync } from 'node:fs'
import { defineCommand } from 'citty'
import { SkeinError } from '../errors.ts'
import { load } from '../index.ts'
import { engineArgs, engineChoice, integer, number, startStates, stateArgs, text } from './args.ts'
import { printJson, progressBar } from './output.ts'
import { samplingArgs, samplingOptions } from './sampling-args.ts'

export const generate = defineCommand({
  meta: { name: 'generate', description: 'Continue a text without a server' },
  args: {
    ...engineArgs,
    ...stateArgs,
    ...samplingArgs,
    prompt: {
      type: 'string',
      alias: 'p',
      description: 'Text to continue (default: standard input)',
    },
    seed: { type: 'string', description: 'Same seed and prompt, same text' },
    stop: { type: 'string', description: 'End before this text' },
    json: { type: 'boolean', description: 'One JSON object at the end instead of a stream' },
  },
  async run({ args }) {
    const prompt = text(args, 'prompt') ?? readFileSync(0, 'utf8')
    if (prompt === '')
      throw new SkeinError(
        'invalid_request',
        'no text to continue; give one with --prompt, or send it to standard input',
      )
    const stop = text(args, 'stop')
    const states = startStates(args)
    if (states.length > 1)
      throw new SkeinError('invalid_request', '--state: one text starts from one state')
    const llm = await load(
      { ...engineChoice(args), startStates: states },
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
        seed: number(args, 'seed', 0, Number.MAX_SAFE_INTEGER),
        maxTokens: integer(args, 'max-tokens', 1, 1_000_000),
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
    const seconds = (performance.now() - started) / 1000
    if (args.json) printJson({ prompt, text: answer, tokens, seconds })
    else process.stdout.write('\n')
  },
})
