/** Sessions of an engine with the store of a cluster: the same tests as with its own store. */
import { describe, test } from 'vitest'
import { useSharedStores } from '../helpers/direct-store.ts'
import { NO_POSTGRES } from '../helpers/postgres.ts'

if (NO_POSTGRES === null) {
  useSharedStores()
  // A file that was imported before has no tests left: then there are none here, which Vitest reports.
  describe('sessions', async () => {
    await import('../engine/session-store.test.ts')
  })
  describe('refused records', async () => {
    await import('../engine/refused-records.test.ts')
  })
  describe('what is on disk', { tags: 'night' }, async () => {
    await import('../engine/session-disk.test.ts')
  })
} else test.skip(`engines over a shared store: ${NO_POSTGRES}`)
