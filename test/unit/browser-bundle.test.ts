/** `skein/browser` for a browser: one file that imports nothing of Node. */
import { join } from 'node:path'
import { gzipSync } from 'node:zlib'
import { build, type Rolldown } from 'vite'
import { expect, test } from 'vitest'

const CONFIG = join(import.meta.dirname, '../../web/library.config.ts')
/** Compressed; see docs/browser.md. */
const MOST_BYTES = 90_000

test('the bundle has no imports and nothing of Node, and stays within its size', async () => {
  const made = await build({ configFile: CONFIG, logLevel: 'silent', build: { write: false } })
  const [{ output }] = made as [Rolldown.RolldownOutput]
  expect(output.map(({ fileName }) => fileName)).toEqual(['skein.js', 'licenses.md'])
  const { code, imports, dynamicImports, moduleIds } = output[0]
  expect([imports, dynamicImports]).toEqual([[], []])
  expect(moduleIds.filter((id) => /node:|__vite-browser-external|node_modules/.test(id))).toEqual(
    moduleIds.filter((id) => id.includes('/@noble/hashes/')),
  )
  expect(code.match(/["'`]node:\w+/g)).toBeNull()
  expect(code.match(/\b(Buffer\.|process\.|setImmediate|require\()/g)).toBeNull()
  // The right file is checked: it contains the kernels.
  expect(code).toContain('@compute @workgroup_size')
  expect(code.match(/One (thread|workgroup) per \w+/g)).toBeNull()
  expect(gzipSync(code).length).toBeLessThan(MOST_BYTES)
})
