/**
 * Measures a vocabulary on text as people send it: English, Chinese and program text in equal parts, with emoji and
 * digits. The text is generated here and always the same, so that results compare between machines.
 */
import { cpus } from 'node:os'
import type { Tokenizer } from '../tokenizer/tokenizer.ts'

export interface TokenizerBench {
  readonly machine: string
  readonly node: string
  /** UTF-8 bytes of the text, times 10⁻⁶, over the median time. */
  readonly megabytesPerSecond: number
  readonly tokensPerSecond: number
  readonly bytesPerToken: number
  /** One short prompt, tokenised repeatedly. */
  readonly promptMicroseconds: number
  readonly decodeMegabytesPerSecond: number
  readonly textBytes: number
  readonly repeats: number
}

/** Drawn at random, so that no branch predictor can learn the text. */
const PIECES = {
  english:
    'the of and to in is that for it was on as with his they at be this from have or by one had not but what all were when we there can an your which their said if do will each about how up out them then she many some so these would other into has more her two like him see time could no make than first been its who now people my made over did down only way find use may water long little very after words called just where most know'.split(
      ' ',
    ),
  chinese:
    '人工智能 正在 改变 世界 我们 需要 更 高效 的 语言 模型 今天 天气 很好 适合 出去 散步 🙂 北京 上海 , 。 因为 所以 可以 没有 时候 问题 学习 工作 生活 经济 发展 社会 文化 科学 技术'.split(
      ' ',
    ),
  code: [
    'for (let i = 0; i < rows.length; i++) {\n',
    '\tconst value = rows[i]?.name ?? "unknown";\n',
    '    total += value.length * 0x1f;\n',
    'def forward(self, x):\n',
    '        return self.output(x) + 3.14159\n',
    '}\n\n',
    '#include <stdint.h>\n',
    '  if (error) throw new RangeError("bad index")\n',
    'SELECT id, name FROM users WHERE age > 42;\n',
    '// 1024 bytes, little-endian\n',
  ],
} as const
const PROMPT = 'User: What is the capital of France?\n\nAssistant:'

/** Enough for many chunks of output, and more than the caches hold. */
const TEXT_BYTES = 4_000_000
const PASSAGE_BYTES = 400
const REPEATS = 9
const PROMPTS = 20_000

export function benchTokenizer(tokenizer: Tokenizer): TokenizerBench {
  const text = mixedText()
  const textBytes = Buffer.byteLength(text)
  const tokens = tokenizer.encode(text)
  const encodeSeconds = medianSeconds(() => tokenizer.encode(text))
  const decodeSeconds = medianSeconds(() => tokenizer.decode(tokens))
  const promptSeconds = medianSeconds(() => {
    for (let i = 0; i < PROMPTS; i++) tokenizer.encode(PROMPT)
  })
  return {
    machine: cpus()[0]?.model ?? 'unknown',
    node: process.version,
    megabytesPerSecond: textBytes / 1e6 / encodeSeconds,
    tokensPerSecond: tokens.length / encodeSeconds,
    bytesPerToken: textBytes / tokens.length,
    promptMicroseconds: (1e6 * promptSeconds) / PROMPTS,
    decodeMegabytesPerSecond: textBytes / 1e6 / decodeSeconds,
    textBytes,
    repeats: REPEATS,
  }
}

/** Equal bytes of the three kinds, in passages of a few hundred bytes. */
function mixedText(): string {
  let state = 1
  const random = (below: number) => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0
    return Math.floor((state / 2 ** 32) * below)
  }
  const passage = (pieces: readonly string[], separator: string) => {
    const picked: string[] = []
    for (let bytes = 0; bytes < PASSAGE_BYTES; bytes += Buffer.byteLength(picked.at(-1)!))
      picked.push(pieces[random(pieces.length)]! + separator)
    return picked.join('')
  }
  const { english, chinese, code } = PIECES
  const passages = Array.from({ length: TEXT_BYTES / PASSAGE_BYTES / 3 }, () => {
    return `${passage(english, ' ')}\n\n${passage(chinese, '')}\n\n${passage(code, '')}`
  })
  return passages.join('\n')
}

function medianSeconds(work: () => void): number {
  work()
  const seconds = Array.from({ length: REPEATS }, () => {
    const start = performance.now()
    work()
    return (performance.now() - start) / 1000
  })
  return seconds.sort((a, b) => a - b)[REPEATS >> 1]! // REPEATS is odd
}
