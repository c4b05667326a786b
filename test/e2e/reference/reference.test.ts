/**
 * Every route is called as docs/reference.md shows it, on a server with the demo model, and must give the reply in the
 * page. `npx vitest run test/e2e/reference -u` updates the page, and the examples of openapi.json.
 */
import { copyFileSync, existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import { basename, join } from 'node:path'
import stringify from 'json-stringify-pretty-compact'
import { afterAll, beforeAll, expect, test } from 'vitest'
import type { ApiExample } from '../../../src/gateway/http/openapi.ts'
import { DEMO, type RunningServer, serve } from '../../helpers/cli.ts'
import { type FakeHub, startFakeHub } from '../../helpers/fake-hub.ts'
import { temporaryFolder } from '../../helpers/temporary-folder.ts'
import { writeTunedState } from '../../helpers/tuned-state.ts'
import { pageOf, type Routes } from './page.ts'
import { CHAPTERS, type ExampleRequest, WITHOUT } from './requests.ts'
import { formOf, steady, steadyText } from './steady.ts'

const ROOT = join(import.meta.dirname, '../../..')
const FILE = join(ROOT, 'src/gateway/http/examples.json')
const PAGE = join(ROOT, 'docs/reference.md')
const known = existsSync(FILE) ? (JSON.parse(readFileSync(FILE, 'utf8')) as ApiExample[]) : []

let hub: FakeHub
let server: RunningServer
beforeAll(async () => {
  const folder = temporaryFolder()
  for (const path of [DEMO, DEMO.replace(/pth$/, 'vocab.txt')]) copyFileSync(path, join(folder, basename(path)))
  for (const name of ['poet.pth', 'clerk.pth']) writeTunedState(join(folder, name), DEMO)
  const cache = temporaryFolder()
  const place = join(cache, 'skein/models/someone--rwkv7-tiny')
  mkdirSync(place, { recursive: true })
  // With a vocabulary of its own it needs no other.
  writeFileSync(join(place, 'tiny.vocab.txt'), '')
  hub = await startFakeHub({
    'someone/rwkv7-tiny': { 'tiny.pth': { content: readFileSync(DEMO) } },
  })
  server = await serve(['demo', '--model-dir', folder, '--embeddings', 'mean'], 'serve', {
    XDG_CACHE_HOME: cache,
    HF_ENDPOINT: hub.url,
  })
})
afterAll(async () => {
  await server.stop()
  await hub.close()
})

/** Values from replies for later requests. */
const kept = new Map<string, string>()
let file = new ArrayBuffer(0)

function urlOf({ route, params = {}, query }: ExampleRequest): string {
  const path = route.split(' ')[1]!.replace(/\{(\w+)\}/g, (_, name) => {
    const value = params[name]!
    return value.startsWith('$') ? kept.get(value.slice(1))! : value
  })
  return query === undefined ? path : `${path}?${query}`
}

async function ask(request: ExampleRequest, url: string) {
  const { route, body, sendsFile } = request
  const key = kept.get('key')
  const type = sendsFile ? 'application/octet-stream' : 'application/json'
  const response = await fetch(server.url + url, {
    method: route.split(' ')[0]!,
    headers: {
      ...(body || sendsFile ? { 'content-type': type } : {}),
      ...(key === undefined ? {} : { authorization: `Bearer ${key}` }),
    },
    body: bodyOf(request),
  })
  const bytes = await response.arrayBuffer()
  return { status: response.status, type: response.headers.get('content-type') ?? '', bytes }
}

function bodyOf({ sendsFile, form, body }: ExampleRequest): ArrayBuffer | FormData | string | null {
  if (sendsFile) return file
  if (form !== undefined) {
    const data = new FormData()
    data.set('purpose', 'batch')
    data.set('file', new Blob([form]), 'requests.jsonl')
    return data
  }
  return body === undefined ? null : JSON.stringify(body).replace(/"\$(\w+)"/g, (_, name) => `"${kept.get(name)}"`)
}

async function answerTo(request: ExampleRequest): Promise<ApiExample> {
  const { route, title, body, sendsFile } = request
  const url = urlOf(request)
  let { status, type, bytes } = await ask(request, url)
  const text = () => Buffer.from(bytes).toString()
  for (const end = Date.now() + 30_000; request.until && !text().includes(request.until); ) {
    if (Date.now() > end) throw new Error(`${route}: no ${request.until} in ${text()}`)
    await new Promise((resolve) => setTimeout(resolve, 50))
    ;({ status, type, bytes } = await ask(request, url))
  }
  if (type.includes('octet-stream')) file = bytes
  const isJson = /^application\/json/.test(type)
  const found = isJson ? JSON.parse(text()) : text()
  const reply = request.showsFirst ? firstOf(found) : found
  for (const [name, field] of Object.entries(request.keeps ?? {})) kept.set(name, reply[field])
  const own = `${server.url}/`
  const shown = type.includes('octet-stream')
    ? 'a file'
    : isJson
      ? steady(reply)
      : steadyText(reply).replaceAll(own, 'http://127.0.0.1:8000/')
  const example: ApiExample = {
    ...{ route, title, url: steadyText(url) },
    ...(body === undefined ? {} : { request: body }),
    ...(sendsFile === undefined ? {} : { sendsFile }),
    ...(request.form === undefined ? {} : { form: request.form }),
    ...{ status, reply: shown },
  }
  return request.varies ? sameInForm(example) : example
}

/** Of a list, or of the lists in an object. */
function firstOf(reply: object): unknown {
  const first = (value: unknown) => (Array.isArray(value) ? value.slice(0, 1) : value)
  if (Array.isArray(reply)) return first(reply)
  return Object.fromEntries(Object.entries(reply).map(([name, value]) => [name, first(value)]))
}

/** The known reply, if only figures differ. */
function sameInForm(example: ApiExample): ApiExample {
  const before = known.find(({ route, title }) => route === example.route && title === example.title)
  const isSame = before !== undefined && JSON.stringify(formOf(before.reply)) === JSON.stringify(formOf(example.reply))
  return isSame && before.status === example.status ? { ...example, ...before } : example
}

async function allRoutes(): Promise<Routes> {
  const headers = { authorization: `Bearer ${kept.get('key') ?? ''}` }
  return (await (await fetch(`${server.url}/openapi.json`, { headers })).json()) as Routes
}

test('every route behaves as the reference page says', async () => {
  const routes = await allRoutes()
  const chapters: [string, ApiExample[]][] = []
  for (const [chapter, requests] of Object.entries(CHAPTERS)) {
    const examples: ApiExample[] = []
    for (const request of requests) examples.push(await answerTo(request))
    chapters.push([chapter, examples])
  }
  const all = chapters.flatMap(([, examples]) => examples)
  await expect(`${stringify(all, { maxLength: 120 })}\n`).toMatchFileSnapshot(FILE)
  await expect(pageOf(chapters, WITHOUT, routes)).toMatchFileSnapshot(PAGE)
}, 300_000)

test('no route is missing', async () => {
  const { paths } = await allRoutes()
  const routes = Object.entries(paths).flatMap(([path, methods]) =>
    Object.entries(methods)
      .filter(([, { summary }]) => !summary.startsWith('Refused:'))
      .map(([method]) => `${method.toUpperCase()} ${path}`),
  )
  const shown = Object.values(CHAPTERS).flatMap((requests) => requests.map(({ route }) => route))
  expect(routes.filter((route) => !shown.includes(route) && !(route in WITHOUT))).toEqual([])
  expect([...shown, ...Object.keys(WITHOUT)].filter((route) => !routes.includes(route))).toEqual([])
})
