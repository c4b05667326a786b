/** `skein tokenize`: prints the token ids of a file or of standard input. */
import { readFileSync } from 'node:fs'
import { modelPath } from '../host/checkpoints/model-path.ts'
import { loadTokenizer } from '../host/checkpoints/open-model.ts'
import { path, toggle } from '../settings/flags.ts'
import { Tokenizer } from '../tokenizer/tokenizer.ts'
import { defineCommand } from './terminal/command.ts'
import { printJson } from './terminal/output.ts'

export const tokenize = defineCommand({
  examples: [
    ['skein tokenize notes.txt', 'its length in tokens'],
    ['echo Hello | skein tokenize - --json', 'its tokens, one by one'],
  ],
  words: { file: { description: 'Text file, or - for standard input', isRequired: true } },
  flags: {
    vocab: path("Vocabulary file (default: the demo model's)"),
    json: toggle('One JSON object: count, tokens, pieces'),
  },
  run({ args }) {
    const tokenizer = args.vocab ? Tokenizer.fromFile(args.vocab) : loadTokenizer({ model: modelPath(undefined) })
    const bytes = readFileSync(args.file === '-' ? 0 : args.file)
    const tokens = tokenizer.encodeBytes(bytes)
    if (args.json) {
      const pieces = Array.from(tokens, (token) => tokenizer.decode([token]))
      printJson({ count: tokens.length, tokens: Array.from(tokens), pieces })
      return
    }
    process.stdout.write(`${tokens.join(' ')}\n`)
  },
})
