import fc from 'fast-check'
import { describe, expect, test } from 'vitest'
import { Tokenizer } from '../../../src/tokenizer/tokenizer.ts'
import { parseVocabulary } from '../../../src/tokenizer/vocabulary.ts'
import { trials } from '../../helpers/slow.ts'
import { byteLines, tokenizerOf, vocabularyText } from '../../helpers/vocabulary.ts'

const bytesOf = (line: string) => Buffer.from(parseVocabulary(line, 'v.txt')[0]!.bytes)

describe('literals', () => {
  test.each<[string, string | Buffer]>([
    [`7 'abc' 3`, 'abc'],
    [`7 "it's" 4`, "it's"],
    [`7 'say "x"' 7`, 'say "x"'],
    [`7 '   ' 3`, '   '],
    [`7 'a b' 3`, 'a b'],
    [`7 '\\n\\t\\r\\\\\\'\\"' 6`, '\n\t\r\\\'"'],
    [`7 '\\a\\b\\f\\v\\0' 5`, '\x07\b\f\v\0'],
    [`7 '\\x41\\xe9' 3`, 'Aé'],
    [`7 '\\u4f60\\U0001f642' 7`, '你🙂'],
    [`7 '\\101\\7\\08' 4`, 'A\x07\x008'],
    [`7 '\\777' 2`, '\u01ff'],
    [`7 '你好🙂' 10`, '你好🙂'],
    [`7 b'\\xff\\x00a' 3`, Buffer.from([255, 0, 97])],
    [`7 b"\\377'" 2`, Buffer.from([255, 39])],
    [`7 b'\\xe4\\xbd' 2\r`, Buffer.from([0xe4, 0xbd])],
  ])('%s', (line, expected) => {
    expect(bytesOf(line)).toEqual(Buffer.from(expected))
  })
})

describe('lines that are refused', () => {
  test.each([
    ['', 'is empty'],
    ['1', 'line 1 is not "<id> <literal> <length>"'],
    [`1 'a'`, 'line 1 is not'],
    [`1 'a' 1\n\n2 'b' 1`, 'line 2 is not'],
    [`0 'a' 1`, 'line 1 has an id that is not 1 to 1000000'],
    [`1000001 'a' 1`, 'has an id that is not'],
    [`-1 'a' 1`, 'has an id that is not'],
    [`1e3 'a' 1`, 'has an id that is not'],
    [`1 'a' 1\n1 'b' 1`, 'line 2 gives id 1 a second time'],
    [`1 'ab' 3`, 'line 1 says 3 bytes, but its literal has 2'],
    [`1 'é' 1`, 'says 1 bytes, but its literal has 2'],
    [`1 'a' x`, 'says x bytes'],
    [`1 '' 0`, 'has a token of 0 bytes'],
    [`1 '${'a'.repeat(1025)}' 1025`, 'has a token of 1025 bytes'],
    [`1 '${'\\x61'.repeat(100_000)}' 100000`, 'has a literal of 400002 characters'],
    [`1 abc 3`, 'has no literal'],
    [`1 ' 1`, 'has no literal'],
    [`1 'a" 1`, 'has no literal'],
    [`1 r'a' 1`, 'has no literal'],
    [`1 f'a' 1`, 'has no literal'],
    [`1 'a'b' 3`, 'has a quote inside its literal'],
    [`1 __import__('os') 1`, 'has no literal'],
    [`1 'a'.upper() 1`, 'has no literal'],
    [`1 'a'+'b' 2`, 'has a quote inside its literal'],
    [`1 '\\' 1`, "has an escape that is not Python's"],
    [`1 '\\q' 2`, "has an escape that is not Python's: \\q"],
    [`1 '\\x4' 1`, 'has an escape'],
    [`1 '\\u12' 1`, 'has an escape'],
    [`1 '\\x+1' 1`, 'has an escape'],
    [`1 '\\ud800' 3`, 'has an escape'],
    [`1 '\\U00110000' 4`, 'has an escape'],
    [`1 '\\N{BULLET}' 3`, "has an escape that is not Python's: \\N"],
    [`1 b'\\u0041' 1`, 'has an escape'],
    [`1 b'\\400' 1`, 'has an escape'],
    [`1 b'é' 2`, 'has a character in its bytes that is not ASCII'],
  ])('%s', (text, problem) => {
    expect(() => parseVocabulary(text, 'v.txt')).toThrow(
      expect.objectContaining({ code: 'corrupt_weights', message: expect.stringContaining(problem) }),
    )
  })
})

test('a mutated vocabulary is either read, or refused with the line number', () => {
  const text = vocabularyText(['ab', 'abc', '你好'])
  const edit = fc.tuple(
    fc.nat(text.length - 1),
    fc.oneof(fc.constantFrom(...'\\\'b" \n0xuUN9'), fc.string({ unit: 'binary', maxLength: 3 })),
    fc.nat(4),
  )
  let numRefused = 0
  const property = fc.property(fc.array(edit, { minLength: 1, maxLength: 3 }), (edits) => {
    const mutated = edits.reduce((all, [at, put, cut]) => all.slice(0, at) + put + all.slice(at + cut), text)
    try {
      tokenizerOf(mutated)
    } catch (error) {
      numRefused++
      expect(error).toMatchObject({ code: 'corrupt_weights' })
    }
  })
  fc.assert(property, { seed: 7, numRuns: trials(300, 1000) })
  expect(numRefused).toBeGreaterThan(trials(150, 500))
})

describe('vocabularies that are refused', () => {
  test('single bytes are missing', () => {
    const some = byteLines().filter((line) => !/'\\x(0a|ff)'/.test(line))
    expect(() => tokenizerOf(some.join('\n'))).toThrow('no token for the single bytes 0x0a, 0xff;')
    expect(() => tokenizerOf(`1 'a' 1`)).toThrow('0x06, 0x07 and 247 more')
  })

  test('two ids share their bytes', () => {
    expect(() => tokenizerOf(vocabularyText(['ab', 'ab']))).toThrow('ids 257 and 258 are the same token')
  })

  test('the file is missing', () => {
    expect(() => Tokenizer.fromFile('absent.txt')).toThrow(expect.objectContaining({ code: 'not_found' }))
  })
})
