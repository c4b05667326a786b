/**
 * What a bundle for browsers has instead: of the few files of src/ that need Node the twin in src/browser/platform, and of
 * kernels the code without comments and margins.
 */
import { readFileSync } from 'node:fs'
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
    load: (id) => (id.endsWith('.wgsl?raw') ? `export default ${JSON.stringify(kernelCode(id.slice(0, -4)))}` : null),
  }
}

/** WGSL has no strings, so what looks like a comment is one. */
function kernelCode(path: string): string {
  const code = readFileSync(path, 'utf8').replaceAll(/\/\*[\s\S]*?\*\/|\/\/.*/g, '')
  return code.replaceAll(/^\s+|[ \t]+$/gm, '')
}
