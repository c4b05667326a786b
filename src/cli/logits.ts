/** `skein logits`: raw logits of given token ids, the door for outside oracles. Needs no vocabulary. */
import { writeFileSync } from 'node:fs'
import { defineCommand } from 'citty'
import { SkeinError } from '../errors.ts'
import { loadRunner } from '../load.ts'
import { logitsOfAll, logitsOfLast } from '../model/logits.ts'
import { openTunedState } from '../model/tuned-state.ts'
import { engineChoice, integers, modelArgs, text } from './args.ts'
import { printJson, progressBar } from './output.ts'

export const logits = defineCommand({
  meta: {
    name: 'logits',
    description: 'Write the logits after a list of tokens as raw little-endian float32',
  },
  args: {
    ...modelArgs,
    tokens: { type: 'string', required: true, description: 'Token ids: 1,2,3' },
    state: {
      type: 'string',
      description: 'Tuned state to start from, instead of zero',
      valueHint: 'FILE',
    },
    all: { type: 'boolean', description: 'After every token, not only the last: [tokens, V]' },
    out: { type: 'string', required: true, description: 'File to write', valueHint: 'FILE' },
    json: { type: 'boolean', description: 'Report as JSON' },
  },
  run({ args }) {
    const tokens = Int32Array.from(integers(args, 'tokens'))
    if (tokens.length === 0)
      throw new SkeinError('invalid_request', '--tokens needs at least one id')
    const out = text(args, 'out')!
    const runner = loadRunner({ ...engineChoice(args), slots: 1 }, progressBar('loading'))
    try {
      const V = runner.info.vocabSize
      const outside = tokens.find((token) => token >= V)
      if (outside !== undefined)
        throw new SkeinError(
          'invalid_request',
          `token ${outside} is not below the vocabulary size ${V}`,
        )
      const state = text(args, 'state')
      const start = state === undefined ? null : openTunedState(state, runner.info.stateShape)
      const logitsOf = args.all ? logitsOfAll : logitsOfLast
      const values = logitsOf(runner, tokens, start)
      const positions = values.length / V
      writeFileSync(out, new Uint8Array(values.buffer, values.byteOffset, values.byteLength))
      report(
        { out, positions, vocabSize: V, best: argmax(values.subarray(-V)) },
        args.json === true,
      )
    } finally {
      runner.dispose()
    }
  },
})

function argmax(values: Float32Array): number {
  return values.reduce((best, value, i) => (value > values[best]! ? i : best), 0)
}

interface Report {
  readonly out: string
  readonly positions: number
  readonly vocabSize: number
  readonly best: number
}

function report(result: Report, asJson: boolean): void {
  if (asJson) {
    printJson(result)
    return
  }
  const { out, positions, vocabSize, best } = result
  process.stdout.write(
    `${out}: float32 little-endian [${positions}, ${vocabSize}]; best token after the last: ${best}\n`,
  )
}
