/** The package's `skein/browser`: `vite build -c web/library.config.ts` writes dist/browser/skein.js, one file. */
import { join } from 'node:path'
import { defineConfig } from 'vite'
import { browserPlatform } from './platform.ts'

const ROOT = join(import.meta.dirname, '..')

export default defineConfig({
  root: ROOT,
  publicDir: false,
  plugins: [browserPlatform()],
  build: {
    outDir: join(ROOT, 'dist/browser'),
    emptyOutDir: false,
    target: 'es2023',
    reportCompressedSize: false,
    license: { fileName: 'licenses.md' },
    lib: { entry: join(ROOT, 'src/browser/index.ts'), formats: ['es'], fileName: () => 'skein.js' },
    // Of a library Vite keeps blanks and new lines.
    rolldownOptions: { output: { minify: { compress: true, mangle: true, codegen: { removeWhitespace: true } } } },
  },
})
