/** Builds dist/web/browser: the page that runs a model on the visitor's own GPU. The dashboard does not load it. */
import { createHash } from 'node:crypto'
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { defineConfig } from 'vite'
import { browserPlatform } from '../platform.ts'

const ROOT = join(import.meta.dirname, '../..')

/** Part of the model's URL, so that the content of a URL never changes. */
function hashOf(file: string): string {
  return createHash('sha256').update(readFileSync(file)).digest('hex').slice(0, 8)
}

export default defineConfig({
  root: import.meta.dirname,
  base: '/browser/',
  plugins: [browserPlatform()],
  worker: { format: 'es', plugins: () => [browserPlatform()] },
  define: { MODEL_URL: JSON.stringify(`/browser/demo.pth?${hashOf(join(ROOT, 'models/demo.pth'))}`) },
  build: {
    outDir: join(ROOT, 'dist/web/browser'),
    emptyOutDir: true,
    target: 'es2023',
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    reportCompressedSize: false,
  },
})
