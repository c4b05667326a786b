/**
 * The cluster simulator still works with the code that it runs, and failing racks cause no trouble after their leases
 * have ended.
 */
import { execFile } from 'node:child_process'
import { join } from 'node:path'
import { promisify } from 'node:util'
import { expect, test } from 'vitest'

const SCRIPT = join(import.meta.dirname, '../../scripts/simulate-cluster.js')
const SIZE = ['--nodes', '50', '--sessions', '2000', '--seconds', '14']

interface Window {
  readonly window: string
  readonly 'sessions in place': string
  readonly refused: number
  readonly 'broken off': number
  readonly 'turns that waited': number
  readonly 'waited p50/max s': string
  readonly 'noticed for s': string
}

test('a day of fifty nodes; one rack and five racks fail', async () => {
  const { stdout } = await promisify(execFile)(process.execPath, [SCRIPT, ...SIZE])
  const windows = stdout
    .trim()
    .split('\n')
    .map((line): Window => JSON.parse(line))
  expect(windows.map(({ window }) => window)).toEqual([
    ...['night', 'morning', 'noon', 'peak', 'peak, a rack fails'],
    ...['noon, five racks fail', 'noon, all are back'],
  ])
  for (const { refused, ...seen } of windows) {
    expect(refused).toBe(0)
    const isFailing = seen.window.endsWith('fail') || seen.window.endsWith('fails')
    expect([seen.window, seen['broken off'] > 0]).toEqual([seen.window, isFailing])
    expect([seen.window, seen['turns that waited'] > 0]).toEqual([seen.window, isFailing])
    // Leases of ten seconds, and the longest pause between two tries.
    expect(Number(seen['noticed for s'])).toBeLessThan(11)
    if (isFailing) expect(Number(seen['waited p50/max s'].split(' / ')[1])).toBeLessThan(11)
  }
  expect(Number.parseFloat(windows[0]!['sessions in place'])).toBeGreaterThan(90)
})
