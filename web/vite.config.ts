/** The dashboard's build: `vite build web` writes dist/web, which the gateway reads at start, and dist/browser. */

import { copyFileSync } from 'node:fs'
import { join } from 'node:path'
import preact from '@preact/preset-vite'
import { build, defineConfig, type Plugin } from 'vite'

const DIST = join(import.meta.dirname, '../dist')

/** Built separately, so that the dashboard does not load it: the package's `skein/browser` and its page. */
function builtApart(): Plugin {
  return {
    name: 'skein-built-apart',
    async closeBundle() {
      for (const config of ['library.config.ts', 'browser/vite.config.ts'])
        await build({ configFile: join(import.meta.dirname, config), logLevel: 'warn' })
      // Vite lists no packages of a worker. That of the page is made of the library.
      copyFileSync(`${DIST}/browser/licenses.md`, `${DIST}/web/browser/licenses.md`)
    },
  }
}

/** What `npm run dev` serves from this folder; the server answers everything else. */
const PAGES = '$|[?#]|@|src/|browser/|assets/|node_modules/|[^/]*\\.(?:html|ts|ico)(?:$|\\?)'

export default defineConfig({
  server: { proxy: { [`^/(?!${PAGES})`]: process.env.SKEIN_DEV_URL ?? 'http://127.0.0.1:8000' } },
  plugins: [preact({ devToolsEnabled: false, prefreshEnabled: false }), builtApart()],
  build: {
    outDir: '../dist/web',
    emptyOutDir: true,
    target: 'es2023',
    // The page's policy (CSP) allows only files of its own address, so nothing is inlined as a data: URL.
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    reportCompressedSize: false,
    license: { fileName: 'licenses.md' },
  },
})
