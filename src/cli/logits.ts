/**
 * `skein logits`: writes the raw logits of given token ids, for comparison with other programs. Needs no vocabulary.
 */
import { writeFileSync } from 'node:fs'
import { SkeinError } from '../errors.ts'
import { prepareDevice } from '../host/device-choice.ts'
import { loadRunner, testedFor } from '../host/load.ts'
import { logitsOf } from '../model/run/logits.ts'
import { openTunedState } from '../model/tuned-state-file.ts'
import { engineChoice } from '../settings/engine-choice.ts'
import { integers, path, toggle } from '../settings/flags.ts'
import { MODEL_FLAGS, MODEL_WORDS } from '../settings/table.ts'
import { defineCommand } from './terminal/command.ts'
import { printJson, progressBar } from './terminal/output.ts'

export const logits = defineCommand({
  examples: [['skein logits demo --tokens 1,2,3 --out logits.f32', 'to compare with another program']],
  words: MODEL_WORDS,
  flags: {
    tokens: integers('Token ids: 1,2,3', { isRequired: true }),
    state: path('Tuned state to start from, instead of zero'),
    all: toggle('After every token, not only the last: [tokens, V]'),
    out: path('File to write', { isRequired: true }),
    json: toggle('Report as JSON'),
    ...MODEL_FLAGS,
  },
  async run({ args }) {
    const tokens = Int32Array.from(args.tokens ?? [])
    if (tokens.length === 0) throw new SkeinError('invalid_request', '--tokens needs at least one id')
    const { out, state } = args
    const choice = { ...engineChoice(args), slots: 1 }
    await prepareDevice(choice, () => testedFor(choice))
    const runner = loadRunner(choice, progressBar('loading'))
    try {
      const V = runner.info.vocabSize
      const outside = tokens.find((token) => token >= V)
      if (outside !== undefined)
        throw new SkeinError('invalid_request', `token ${outside} is not below the vocabulary size ${V}`)
      const start = state === undefined ? null : openTunedState(state, runner.info.stateShape)
      const values = await logitsOf(runner, tokens, { isAll: args.all, start })
      const positions = values.length / V
      writeFileSync(out, new Uint8Array(values.buffer, values.byteOffset, values.byteLength))
      const best = argmax(values.subarray(-V))
      if (args.json) printJson({ out, positions, vocabSize: V, best })
      else
        process.stdout.write(`${out}: float32 little-endian [${positions}, ${V}]; best token after the last: ${best}\n`)
    } finally {
      runner.dispose()
    }
  },
})

function argmax(values: Float32Array): number {
  return values.reduce((best, value, i) => (value > values[best]! ? i : best), 0)
}
