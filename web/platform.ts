/**
 * Replaces files of src/ in a bundle for browsers: the few that need Node have a twin in src/browser/platform.
 */
import { dirname, join, resolve } from 'node:path'
import type { Plugin } from 'vite'

const SRC = join(import.meta.dirname, '../src')
const TWINS: ReadonlyMap<string, string> = new Map(
  [
    ['files/digest.ts', 'browser/platform/digest.ts'],
    ['backend/webgpu/kernel-files.ts', 'browser/platform/kernel-files.ts'],
  ].map(([file, twin]) => [join(SRC, file!), join(SRC, twin!)]),
)

export function browserPlatform(): Plugin {
  return {
    name: 'skein-browser-platform',
    enforce: 'pre',
    resolveId: (source, importer) => {
      if (!importer || !source.startsWith('.')) return null
      const twin = TWINS.get(resolve(dirname(importer), source))
      return twin === undefined || importer === twin ? null : twin
    },
  }
}
