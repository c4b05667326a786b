/** The World vocabulary. It is not in the repository: the tests run if the file is there (see test/helpers). */
import { createHash } from 'node:crypto'
import { readFileSync } from 'node:fs'
import { describe, expect, test } from 'vitest'
import { WORLD_VOCABULARY } from '../../../src/tokenizer/find-vocabulary.ts'
import { Tokenizer } from '../../../src/tokenizer/tokenizer.ts'
import { smallTokenizer, WORLD_VOCABULARY_PATH } from '../../helpers/vocabulary.ts'

if (WORLD_VOCABULARY_PATH === null) {
  console.warn(`${WORLD_VOCABULARY.fileName} is not here; set SKEIN_VOCAB to run its tests`)
}

describe.skipIf(WORLD_VOCABULARY_PATH === null)('World vocabulary', () => {
  // The body of a skipped suite still runs, to name its tests.
  const tokenizer = WORLD_VOCABULARY_PATH === null ? smallTokenizer() : Tokenizer.fromFile(WORLD_VOCABULARY_PATH)
  const ids = (text: string) => Array.from(tokenizer.encode(text))

  test('the file', () => {
    const file = readFileSync(WORLD_VOCABULARY_PATH ?? '')
    expect(createHash('sha256').update(file).digest('hex')).toBe(WORLD_VOCABULARY.sha256)
    expect(tokenizer.vocabSize).toBe(65530)
    const lengths = Array.from({ length: 65529 }, (_, i) => tokenizer.bytesOf(i + 1).length)
    expect(Math.max(...lengths)).toBe(128)
    for (let byte = 0; byte < 256; byte++) {
      expect(tokenizer.bytesOf(byte + 1)).toEqual(Uint8Array.of(byte))
    }
    expect(tokenizer.decode([0, 65530, 65535])).toBe('\ufffd\ufffd')
  })

  test.each<[string, number[]]>([
    ['User: hi\n\nAssistant:', [24281, 59, 4571, 261, 5585, 41693, 59]],
    [' <think>\n</think>\n', [295, 35762, 63, 11, 754, 35762, 63, 11]],
    ['<think', [61, 35762]],
    ['✿prefix✿✿suffix✿', [10060, 42093, 10060, 10060, 42337, 10060]],
    ['✿middle✿', [10060, 41851, 10060]],
    ['System:', [40812, 59]],
    ['\n\nChinese:', [261, 48407, 59]],
    ['🙂', [3319, 2417]],
    ['龘', [3255, 153]],
    ['<|endoftext|>', [61, 125, 25258, 7588, 2318, 125, 63]],
    ['\n\nUser:', [261, 24281, 59]],
    ['\nUser:', [11, 24281, 59]],
    ['\n\n\t', [3327]],
    ['\n\n\n', [3328]],
    ['\n\n ', [3329]],
    [' \n\n', [3336]],
    [
      'User: What is the capital of France?\n\nAssistant: <think',
      [24281, 59, 30031, 4600, 22590, 51128, 4706, 44312, 64, 261, 5585, 41693, 59, 295, 35762],
    ],
    ['English: Hello world!\n\nChinese:', [48487, 59, 36786, 40213, 34, 261, 48407, 59]],
    ['Chinese: 你好世界\n\nEnglish:', [48407, 59, 33, 10464, 11685, 10267, 14610, 261, 48487, 59]],
  ])('%j', (text, expected) => {
    expect(ids(text)).toEqual(expected)
    expect(tokenizer.decode(expected)).toBe(text)
  })

  test('escape sequences from a client are not interpreted', () => {
    const question = 'User: What should we eat for dinner? Any brief suggestions?'
    expect(ids(`${question}\\n\\nAssistant: <think>\\n</think>\\n`)).toHaveLength(27)
    expect(ids(`${question}\n\nAssistant: <think>\n</think>\n`)).toHaveLength(25)
  })

  test('every token encodes to itself', () => {
    for (let id = 1; id < 65530; id++) {
      const bytes = tokenizer.bytesOf(id)
      if (tokenizer.encodeBytes(bytes)[0] !== id) expect.fail(`token ${id} is not its own longest match`)
    }
  })
})
