/**
 * `vite build -c bundle.config.ts`, behind `tsc`: a process or a thread of Skein loads its own file of dist and a few that they
 * share in dist/bundle, where it would load hundreds, of packages too. The other files of dist are for scripts/, which measure
 * parts of the whole; they load the packages from where npm has them.
 */
import { readdirSync, readFileSync, rmSync } from 'node:fs'
import { dirname, join, relative, sep } from 'node:path'
import { defineConfig, type Plugin } from 'vite'

const SRC = join(import.meta.dirname, 'src')
const DIST = join(import.meta.dirname, 'dist')

/** Packages that stay where npm has them: they load files of their own, or few processes load them. */
const OUTSIDE = [
  ...['koffi', '@photostructure/sqlite', 'webgpu', '@mlc-ai/web-xgrammar', 'piscina', 'pg', 'postgrator'],
  ...['api', 'exporter-trace-otlp-http', 'resources', 'sdk-trace-node'].map((name) => `@opentelemetry/${name}`),
]

/** How sources name what they start: a thread, a process, a task of a pool. One that this misses is started from what tsc made. */
const STARTED = /new URL\('(\.[^']+)\.[jt]s', import\.meta\.url\)|taskPlace\(import\.meta\.url, '(\.[^']+)\.js'/g

function entries(): string[] {
  const files = readdirSync(SRC, { recursive: true, encoding: 'utf8' })
  const started = files
    .filter((file) => file.endsWith('.ts'))
    .flatMap((file) =>
      [...readFileSync(join(SRC, file), 'utf8').matchAll(STARTED)].map(([, url, task]) =>
        join(dirname(file), `${url ?? task}`).replaceAll(sep, '/'),
      ),
    )
  return ['index', 'cli/main', ...new Set(started)]
}

/** `import.meta.url` of a source is its own place in dist, wherever its text went. */
function ownPlaces(): Plugin {
  const map = null
  return {
    name: 'skein-own-places',
    transform(code, id) {
      if (!id.startsWith(SRC)) return null
      if (code.includes('import.meta.dirname')) this.error(`${id}: say it by import.meta.url`)
      const place = relative(SRC, id).replaceAll(sep, '/').replace(/\.ts$/, '.js')
      return { map, code: code.replaceAll('import.meta.url', `__place__("${place}")`) }
    },
    renderChunk(code, { fileName }) {
      const placed = code.replace(/__place__\("([^"]+)"\)/g, (_, place: string) => {
        const way = relative(dirname(fileName), place).replaceAll(sep, '/')
        return `new URL("${way}", import.meta.url).href`
      })
      return { map, code: placed }
    },
    buildStart: () => rmSync(join(DIST, 'bundle'), { recursive: true, force: true }),
  }
}

export default defineConfig({
  plugins: [ownPlaces()],
  publicDir: false,
  ssr: { noExternal: true, external: OUTSIDE },
  build: {
    ssr: true,
    license: { fileName: 'bundle/licenses.md' },
    outDir: DIST,
    emptyOutDir: false,
    target: 'es2023',
    sourcemap: true,
    reportCompressedSize: false,
    rolldownOptions: {
      input: Object.fromEntries(entries().map((entry) => [entry, join(SRC, `${entry}.ts`)])),
      output: { entryFileNames: '[name].js', chunkFileNames: 'bundle/[name].js' },
    },
  },
})
