/** The backup of docs/operations.md, made of a folder in use: the database first, then the files of large states. */
import { execFileSync } from 'node:child_process'
import { cpSync, readdirSync } from 'node:fs'
import { join } from 'node:path'
import { expect, test } from 'vitest'
import { newFolder, openDirectStore } from '../helpers/direct-store.ts'
import { answerAfter, IDENTITY, setUp, tell, transcript, turnOf } from './session-kit.ts'

function hasSqlite(): boolean {
  try {
    execFileSync('sqlite3', ['--version'])
    return true
  } catch {
    return false
  }
}

/** `maxInlineBytes`: larger states are files. */
function openAt(folder: string, maxInlineBytes: number) {
  const store = openDirectStore(folder, IDENTITY, { maxInlineBytes })
  return setUp({ states: { store } })
}

test.skipIf(!hasSqlite()).each([
  ['rows', 2 ** 20],
  ['files', 0],
])('a copy of a folder in use has the turns of its moment, states as %s', async (_what, maxInlineBytes) => {
  const [folder, copy] = [newFolder(), newFolder()]
  const { engine } = openAt(folder, maxInlineBytes)
  const turn = (i: number) => turnOf({ id: `r${i}`, prompt: Int32Array.of(5 + i, 7, 9), maxTokens: 6 })
  for (let i = 1; i <= 3; i++) await tell(engine, turn(i))
  const known = await transcript(engine)
  execFileSync('sqlite3', [join(folder, 'sessions.db'), '.timeout 10000', `.backup ${join(copy, 'sessions.db')}`])
  await tell(engine, turn(4))
  for (const name of ['states', 'secret']) cpSync(join(folder, name), join(copy, name), { recursive: true })
  expect(readdirSync(join(copy, 'states'))).toHaveLength(maxInlineBytes === 0 ? 4 : 0)
  await engine.close()
  const restored = openAt(copy, maxInlineBytes).engine
  expect(await transcript(restored)).toEqual(known)
  const { collected } = await tell(restored, turn(5))
  expect(collected.answer('r5')).toEqual(answerAfter(known, turn(5)).answer)
  await restored.close()
})
