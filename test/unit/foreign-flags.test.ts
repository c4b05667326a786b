import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { expect, test } from 'vitest'
import { FOREIGN_FLAGS, rewriteForeignFlags } from '../../src/settings/foreign-flags.ts'
import { SETTINGS } from '../../src/settings/table.ts'

const rewriteWords = (words: readonly string[]) => rewriteForeignFlags(words)
const rewrite = (line: string) => rewriteWords(line.split(' ')).argv.join(' ')

test.each([
  // The command lines of the five documents.
  ['--model /path/to/pth', '/path/to/pth'],
  [
    '--localhost 0.0.0.0 --port 9000 --debug False --workers 64 --dynamic_state_cache_size 512',
    '--host 0.0.0.0 --port 9000 --without-model',
  ],
  ['--model-path m --port 8000 --password rwkv7_7.2b', 'm --port 8000 --password rwkv7_7.2b'],
  ['--model-path m --pp-devices [0]', 'm --device cuda:0'],
  ['--model-path m --enable-cuda-graph True --port 1', 'm --port 1'],
  ['--model-path m --max-batch-size 64 --use-cuda-graph', 'm --slots 64'],
  // The rest of the table.
  ['--model m --max_batch_size 1e6 --max_queue_size 1e6 --max_seq_len 1e6', 'm --max-waiting 1000000'],
  ['--model=m --max_batch_size=32 --max_seq_len=2048', 'm --slots 32 --step-tokens 2048'],
  ['--debug True', '--log-level debug'],
  ['--dynamic_state_cache_size 0', '--prefix-cache-mb 0'],
  ['--dynamic_state_cache_store cpu', ''],
  ['m --pp-devices 1 --vocab-path v', 'm --device cuda:1 --vocab v'],
  ['--model-path m --pp-devices [0,1,2,3]', 'm --pp-devices 0,1,2,3'],
  ['m --pp-devices cpu,cpu', 'm --pp-devices cpu,cpu'],
  ['--localhost 127.0.0.1 m', '--host 127.0.0.1 m'],
  ['--localhost ::1 --no-store m', '--host ::1 --no-store m'],
  ['--localhost ::1 --no-config m', '--host ::1 --no-config m'],
  ['--localhost ::1 --port=9 m', '--host ::1 --port=9 m'],
  ['--localhost ::1 --no-store --port 9', '--host ::1 --no-store --port 9 --without-model'],
  ['m --enable-cuda-graph --port 1', 'm --port 1'],
  ['m --max_completion_tokens 1024 --emb cpu', 'm'],
  ['m --wkv fp32io16', 'm --wkv fp32'],
  ['m --wkv fp16', 'm --wkv fp16'],
  ['m --chunk-size 128 --state-db-path s.db --chunk-load', 'm --step-tokens 128'],
  ['m --prefill-chunk-size 512 --max-prefill-batch 32', 'm --step-tokens 512'],
  ['m --wkv32 --port 1', 'm --wkv fp32 --port 1'],
  ['m --max-queue-size 9 --tokenizer-path t', 'm --max-waiting 9 --vocab t'],
  // Our own flags are not changed.
  ['m.pth --slots 8 --host ::1 --no-auth', 'm.pth --slots 8 --host ::1 --no-auth'],
])('%s', (line, own) => {
  expect(rewrite(line)).toBe(own)
})

test('flags without effect are reported as such', () => {
  const { notes } = rewriteWords(['--workers', '64', '--dynamic_state_cache_size', '512'])
  expect(notes).toEqual([
    '--workers has no effect: one process takes all connections',
    '--dynamic_state_cache_size has no effect: kept prefixes are bounded by --prefix-cache-mb',
  ])
  expect(rewriteWords(['--model', 'm']).notes).toEqual([])
})

test.each([
  ['--debug maybe', 'True or False'],
  ['--max_batch_size many', 'a whole number'],
  ['--dynamic_state_cache_store gpu', 'cpu'],
  ['--model', 'a value'],
])('%s is refused', (line, reason) => {
  expect(() => rewrite(line)).toThrow(reason)
})

test('docs/migration.md has the table', () => {
  const page = readFileSync(join(import.meta.dirname, '../../docs/migration.md'), 'utf8')
  for (const { flag, systems, means } of FOREIGN_FLAGS) {
    expect(page).toContain(`| \`--${flag}\` | ${systems} | ${means} |`)
  }
})

test.each(['README.md', 'README_zh.md'])(
  'the commands of %s for those who come from elsewhere are understood',
  (page) => {
    const text = readFileSync(join(import.meta.dirname, '../..', page), 'utf8')
    const commands = [...text.matchAll(/^\|[^|]+python[^|]+\| `npx skein serve (.*)` \|$/gm)]
    expect(commands).toHaveLength(4)
    for (const [, line] of commands) {
      const flags = rewriteWords(line!.split(' ')).argv.filter((word) => word.startsWith('--'))
      expect(
        flags.filter((flag) => !(flag.slice(2).replace(/^no-/, '') in SETTINGS) && !(flag.slice(2) in SETTINGS)),
      ).toEqual([])
    }
  },
)
