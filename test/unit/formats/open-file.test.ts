import { chmodSync, mkdtempSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { expect, test } from 'vitest'
import { openCheckpoint } from '../../../src/model/checkpoint.ts'
import { openFile } from '../../../src/model/formats/open-file.ts'

const folder = mkdtempSync(join(tmpdir(), 'skein-open-'))
/** Of every system that has users; for root all files are readable. */
const NOBODY = 65_534

function asOther<T>(work: () => T): T {
  if (process.geteuid!() !== 0) return work()
  process.seteuid!(NOBODY)
  try {
    return work()
  } finally {
    process.seteuid!(0)
  }
}

test.skipIf(process.geteuid === undefined)('an unreadable model is reported', () => {
  const path = join(folder, 'm.pth')
  writeFileSync(path, 'x', { mode: 0o000 })
  const advice = /^cannot read the model: EACCES: .*m.pth'; let this user read it$/
  expect(() => asOther(() => openFile(path))).toThrow(advice)
  chmodSync(folder, 0o000)
  try {
    expect(() => asOther(() => openCheckpoint(path))).toThrow(advice)
  } finally {
    chmodSync(folder, 0o700)
  }
})
