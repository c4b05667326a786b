/** `skein tokenize`: text of a file or of standard input to token ids. */
import { readFileSync } from 'node:fs'
import { defineCommand } from 'citty'
import { loadTokenizer, modelPath } from '../load.ts'
import { Tokenizer } from '../tokenizer/tokenizer.ts'
import { text } from './args.ts'
import { printJson } from './output.ts'

export const tokenize = defineCommand({
  meta: { name: 'tokenize', description: 'Token ids of a file, or of standard input with -' },
  args: {
    file: { type: 'positional', required: true, description: 'Text file, or - for standard input' },
    vocab: { type: 'string', description: "Vocabulary file (default: the demo model's)" },
    json: { type: 'boolean', description: 'One JSON object: count, tokens, pieces' },
  },
  run({ args }) {
    const vocab = text(args, 'vocab')
    const tokenizer = vocab
      ? Tokenizer.fromFile(vocab)
      : loadTokenizer({ model: modelPath(undefined) })
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
