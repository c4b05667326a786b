import { mkdtempSync, readdirSync, readFileSync, utimesSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { PassThrough } from 'node:stream'
import { expect, test } from 'vitest'
import { forwardLines, WorkerLog } from '../../../src/gateway/fleet/worker-log.ts'

async function linesOf(...chunks: (string | Buffer)[]): Promise<string[]> {
  const stream = new PassThrough()
  const lines: string[] = []
  forwardLines(stream, (line) => lines.push(line))
  for (const chunk of chunks) stream.write(chunk)
  stream.end()
  await new Promise((resolve) => stream.on('end', resolve))
  return lines
}

test('lines, however they are cut; the last one needs no line end', async () => {
  expect(await linesOf('a\nb', 'c\r\n', '\nd')).toEqual(['a', 'bc', 'd'])
  const euro = Buffer.from('€\n')
  expect(await linesOf(euro.subarray(0, 1), euro.subarray(1))).toEqual(['€'])
})

test('a line that never ends is logged in pieces and not buffered', async () => {
  const lines = await linesOf('x'.repeat(10_000), 'y'.repeat(10))
  expect(lines.join('')).toBe(`${'x'.repeat(10_000)}${'y'.repeat(10)}`)
  expect(Math.max(...lines.map(({ length }) => length))).toBe(4096)
})

test('the last 5000 lines are kept', () => {
  const log = new WorkerLog(null)
  for (let i = 0; i < 6000; i++) log.add(`line ${i}`)
  expect(log.tail(2)).toEqual(['line 5998', 'line 5999'])
  expect(log.tail(0)).toEqual([])
  expect(log.tail(9999)).toHaveLength(5000)
  expect(log.tail(9999)[0]).toBe('line 1000')
})

test('control characters are escaped', () => {
  const log = new WorkerLog(null)
  log.add('\u001b[31mred\u0007 \t tab\u2028')
  expect(log.tail(1)).toEqual(['\\x1b[31mred\\x07 \t tab\\x2028'])
})

test('listeners get every new line until they leave', () => {
  const log = new WorkerLog(null)
  const heard: string[] = []
  log.add('before')
  const leave = log.listen((line) => heard.push(line))
  log.add('now')
  leave()
  log.add('after')
  expect(heard).toEqual(['now'])
})

test('files hold everything; beyond the limit the oldest is deleted', async () => {
  const folder = mkdtempSync(join(tmpdir(), 'skein-log-'))
  const log = new WorkerLog(join(folder, 'logs', 'w.log'))
  log.add('first')
  const line = 'x'.repeat(4000)
  for (let i = 0; i < 10_600; i++) log.add(line)
  log.add('last')
  log.close()
  const read = () => readFileSync(join(folder, 'logs', 'w.log'), 'utf8')
  await expect.poll(() => read().trim().split(' ').at(-1), { timeout: 10_000 }).toBe('last')
  expect(readdirSync(join(folder, 'logs')).sort()).toEqual(['w.log', 'w.log.1', 'w.log.2', 'w.log.3'])
})

test('old logs of removed workers are deleted, oldest first, and nothing else', async () => {
  const folder = mkdtempSync(join(tmpdir(), 'skein-logs-'))
  const nameOf = (i: number) => `wkr-${i.toString(16).padStart(10, '0')}.log`
  for (let i = 0; i < 202; i++) {
    writeFileSync(join(folder, nameOf(i)), '')
    utimesSync(join(folder, nameOf(i)), 1000 + i, 1000 + i)
  }
  for (const name of [`${nameOf(0)}.1`, `${nameOf(9)}.1`, 'notes.log', 'wkr-x.txt'])
    writeFileSync(join(folder, name), '')
  // A running worker keeps its log, however old its last line is.
  const quiet = new WorkerLog(join(folder, 'wkr-eeeeeeeeee.log'))
  quiet.add('once')
  utimesSync(join(folder, 'wkr-eeeeeeeeee.log'), 1, 1)
  const log = new WorkerLog(join(folder, 'wkr-ffffffffff.log'))
  log.add('first')
  log.close()
  quiet.close()
  const left = readdirSync(folder)
  expect(left.filter((name) => /^wkr.*\.log$/.test(name))).toHaveLength(200)
  for (const gone of [nameOf(0), `${nameOf(0)}.1`, nameOf(3)]) expect(left).not.toContain(gone)
  for (const kept of [nameOf(4), `${nameOf(9)}.1`, 'notes.log', 'wkr-x.txt', 'wkr-eeeeeeeeee.log'])
    expect(left).toContain(kept)
})
