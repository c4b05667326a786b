/** The dashboard's build: `vite build web` writes dist/web, which the gateway reads at its start, and dist/browser. */

import { join } from 'node:path'
import preact from '@preact/preset-vite'
import { build, defineConfig, type Plugin } from 'vite'

/** What is built apart, so that the dashboard's first load has nothing of it: the package's `skein/browser`, and its page. */
function builtApart(): Plugin {
  return {
    name: 'skein-built-apart',
    async closeBundle() {
      for (const config of ['library.config.ts', 'browser/vite.config.ts'])
        await build({ configFile: join(import.meta.dirname, config), logLevel: 'warn' })
    },
  }
}

/** What `npm run dev` serves from this folder; everything else is asked of the server. */
const PAGES = '$|[?#]|@|src/|browser/|assets/|node_modules/|[^/]*\\.(?:html|ts|ico)(?:$|\\?)'

export default defineConfig({
  server: { proxy: { [`^/(?!${PAGES})`]: process.env.SKEIN_DEV_URL ?? 'http://127.0.0.1:8000' } },
  plugins: [preact({ devToolsEnabled: false, prefreshEnabled: false }), builtApart()],
  build: {
    outDir: '../dist/web',
    emptyOutDir: true,
    target: 'es2023',
    // The page's policy allows files of its own address only: nothing is written into another file as a data: address.
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    reportCompressedSize: false,
  },
})
