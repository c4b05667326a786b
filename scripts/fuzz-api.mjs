#!/usr/bin/env node
/**
 * Fuzzes every route of a server with bodies that its OpenAPI document allows, and with broken ones, by a seed: `node
 * scripts/fuzz-api.mjs [calls] [seed] [at once] [part of the routes' paths]`. The server runs the built files with the
 * demo model; the calls use a user's key. It checks: no 5xx except a refusal that says when to retry and the end of a
 * timeout that the call set; no reply after more than 5 s; an error says what is wrong (and where, in OpenAI's form)
 * and nothing about the machine; the server then answers as before. Prints the replies; on a violation prints examples
 * and exits with 1.
 */
import { execFileSync } from 'node:child_process'
import { mkdtempSync, rmSync } from 'node:fs'
import { Agent, request } from 'node:http'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { seededRandom } from '../dist/bench/serve/random.js'
import { MAIN, startServer } from './server.mjs'

const [calls = 20_000, seed = 1, atOnce = 16] = process.argv.slice(2, 5).map(Number)
const part = process.argv[5] ?? ''
const SLOW_MS = 5000
/** Texts about the machine: source positions, stack traces, folders. */
const INNARDS = /\n\s+at |node_modules|\.[jt]s:\d+|\/(?:tmp|root|home|work|usr)\/|0x[0-9a-f]{8,}/
const LENGTHS = /^(?:max_tokens|max_completion_tokens|max_output_tokens|max_length|n_predict|num_predict)$/

const STRINGS = [
  '',
  ' ',
  'a',
  'demo',
  'User: hi\n\nAssistant:',
  '\u0000',
  '\ud800',
  '\udc00x',
  '𝕊𝕜𝕖𝕚𝕟 🧶',
  '\u202e',
  '<think>',
  '{{#each}}',
  '<%= 7*7 %>',
  '../../etc/passwd',
  '%s%n',
  "' OR 1=1 --",
  '\\',
  '"',
  '\r\nset-cookie: a=b',
  'x'.repeat(5000),
  'é'.repeat(1000),
  '__proto__',
  'constructor',
]
const IDS = [
  'demo',
  'a',
  '1',
  'none',
  '..',
  '.',
  '\u0000',
  '\ud7ff',
  'x'.repeat(300),
  '%',
  '__proto__',
  'resp_1',
  'file-1',
  'batch_1',
  ' ',
  '😀',
]
const NUMBERS = [
  0,
  1,
  -1,
  -0,
  2,
  0.5,
  1e-320,
  1e308,
  -1e308,
  2 ** 31,
  -(2 ** 31),
  2 ** 32,
  2 ** 53,
  2 ** 63,
  65_535,
  65_536,
  65_537,
  1e21,
]
const HOSTILE = [
  () => ({}),
  () => [],
  () => null,
  () => true,
  () => pick(STRINGS),
  () => pick(NUMBERS),
  () => Array.from({ length: pick([1, 17, 65, 1025, 5000]) }, () => pick([0, '', null])),
  () => Object.fromEntries(Array.from({ length: pick([1, 65, 1100]) }, (_, i) => [`f${i}`, i])),
  () => JSON.parse(`${'['.repeat(40)}${']'.repeat(40)}`),
  () => JSON.parse('{"__proto__":{"isAdmin":true},"constructor":{"prototype":1}}'),
]

const random = seededRandom(seed)
const found = new Map()
const statuses = new Map()
let slowest = { ms: 0, what: '' }

const folder = mkdtempSync(join(tmpdir(), 'skein-fuzz-'))
const KEY = JSON.parse(
  execFileSync(process.execPath, [MAIN, 'keys', 'add', 'fuzz', '--json', '--data-dir', folder], { encoding: 'utf8' }),
).secret
const words = ['demo', '--device', 'cpu', '--data-dir', folder]
const { child, port, stop } = await startServer(words, { key: KEY, stderr: 'pipe', env: { XDG_DATA_HOME: folder } })
const log = []
const warnings = /"level":[456]0/
child.stderr.on('data', (bytes) =>
  log.push(
    ...String(bytes)
      .split('\n')
      .filter((line) => warnings.test(line)),
  ),
)
process.on('exit', () => child.kill('SIGKILL'))
const agent = new Agent({ keepAlive: true, maxSockets: atOnce })
const question = {
  max_tokens: 24,
  temperature: 0,
  messages: [{ role: 'user', content: 'What is the capital of France?' }],
}
const before = await answer()
const document = JSON.parse((await send('GET', '/openapi.json')).text)
const routes = Object.entries(document.paths).flatMap(([path, methods]) =>
  Object.entries(methods)
    .filter(([method]) => path.includes(part) && /^(?:get|post|put|patch|delete)$/.test(method))
    .map(([method, operation]) => ({ method: method.toUpperCase(), path, operation })),
)

let left = calls
const began = performance.now()
await Promise.all(Array.from({ length: atOnce }, oneAfterAnother))
const seconds = (performance.now() - began) / 1000
if (child.exitCode !== null) fault('the server ended', String(child.exitCode))
else if ((await answer()) !== before) fault('another answer than before', await answer())
await stop()
rmSync(folder, { recursive: true, force: true })

console.log(
  `${calls} calls of ${routes.length} routes with seed ${seed} in ${seconds.toFixed(0)} s; slowest ${slowest.ms.toFixed(0)} ms: ${slowest.what}`,
)
console.log(
  [...statuses]
    .sort(([a], [b]) => (String(a) < String(b) ? -1 : 1))
    .map(([status, count]) => `${status}: ${count}`)
    .join(', '),
)
for (const [kind, { count, examples }] of found) console.log(`\n${kind}: ${count}\n${examples.join('\n')}`)
if (found.size > 0) console.log(`\nwhat the server warned of last:\n${log.slice(-20).join('\n')}`)
process.exitCode = found.size === 0 ? 0 : 1

async function oneAfterAnother() {
  while (left-- > 0) {
    const route = pick(routes)
    const call = callOf(route)
    const what = `${call.method} ${call.path} ${call.type ?? ''} ${String(call.body ?? '').slice(0, 400)}`
    const asked = performance.now()
    let reply
    try {
      reply = await send(call.method, call.path, call.type, call.body, call.isLong ? 2000 : 30_000)
    } catch (error) {
      if (child.exitCode !== null) return
      fault(`no reply: ${error.code ?? error.message}`, what)
      continue
    }
    const ms = performance.now() - asked
    if (ms > slowest.ms && !reply.wasLeft) slowest = { ms, what: what.slice(0, 120) }
    const status = reply.wasLeft ? 'left' : reply.status
    statuses.set(status, (statuses.get(status) ?? 0) + 1)
    judge(reply, ms, what, route)
  }
}

function judge({ status, headers, text, wasLeft }, ms, what, route) {
  if (wasLeft) return
  const said = `${what}\n    → ${status} ${text.slice(0, 300)}`
  if (ms > SLOW_MS) fault('slow', `${new Date().toISOString()} ${ms.toFixed(0)} ms ${said}`)
  if (status >= 500 && !(status === 501 || status === 504 || (status === 503 && headers['retry-after'])))
    fault(`status ${status}`, said)
  if (status < 400) {
    if (/"(?:code|type)":\s*"(?:internal|server)_error"/.test(text)) fault('an internal error inside of a reply', said)
    return
  }
  if (INNARDS.test(text)) fault('tells of the machine', said)
  if (what.startsWith('HEAD') || /\/proxy\//.test(route.path)) return
  let body
  try {
    body = JSON.parse(text)
  } catch {
    return fault('an error that is no JSON', said)
  }
  const message = body.error?.message ?? body.error ?? body.message ?? body.detail
  if (typeof message !== 'string' || message.length < 8) fault('an error without a sentence', said)
  else if (
    route.operation.tags.join() === 'openai' &&
    (body.error?.code === undefined || body.error.param === undefined)
  )
    fault('an error of OpenAI without code or param', said)
}

function fault(kind, example) {
  const seen = found.get(kind) ?? { count: 0, examples: [] }
  seen.count++
  if (seen.examples.length < 5) seen.examples.push(`  ${example}`)
  found.set(kind, seen)
}

/** A call of a route: valid, partly broken, or with broken bytes. */
function callOf({ method, path, operation }) {
  const filled = path.replaceAll(/\{[^}]+\}/g, () => encodeURIComponent(pick(IDS)))
  const query =
    random() < 0.1
      ? `?${pick(['', 'limit=-1', 'a=%00', 'after=%F0%9F', `q=${'x'.repeat(3000)}`, 'limit=1&limit=2', 'stream=true'])}`
      : ''
  const call = {
    method: random() < 0.01 ? pick(['PUT', 'PATCH', 'HEAD', 'OPTIONS', 'GET', 'POST']) : method,
    path: filled + query,
  }
  const content = operation.requestBody?.content ?? {}
  const [type] = Object.keys(content)
  if (type === undefined && random() < 0.8) return call
  let value = type === undefined ? HOSTILE[0]() : valueFor(content[type].schema ?? {}, 0)
  const kind = random()
  if (kind < 0.55) value = mutated(value, kind < 0.35 ? 0.03 : 0.2)
  if (random() < 0.97) shorten(value, content[type]?.schema ?? {})
  else call.isLong = true
  let body = text(value)
  if (type === 'multipart/form-data') {
    const lines = pick(['{"custom_id":"1"}', '', '\u0000', body.slice(0, 2000)])
    body = `--b\r\ncontent-disposition: form-data; name="purpose"\r\n\r\n${pick(['batch', 'x', ''])}\r\n--b\r\ncontent-disposition: form-data; name="file"; filename="${pick(['a.jsonl', '../../a', ''])}"\r\n\r\n${lines}\r\n--b--\r\n`
    return {
      ...call,
      type: 'multipart/form-data; boundary=b',
      body: random() < 0.1 ? body.slice(0, body.length * random()) : body,
    }
  }
  if (kind > 0.93) {
    body = broken(body)
    call.isLong = true
  }
  return {
    ...call,
    type:
      random() < 0.02
        ? pick(['text/plain', 'application/xml', '', 'application/json; charset=utf-16'])
        : 'application/json',
    body,
  }
}

/** JSON with lone surrogates, and sometimes a field twice. */
function text(value) {
  const written = JSON.stringify(value) ?? 'null'
  return random() < 0.01 ? written.replace('{', `{"model":${JSON.stringify(pick(STRINGS))},`) : written
}

function broken(body) {
  const bytes = Buffer.from(body)
  const at = Math.floor(random() * bytes.length)
  switch (Math.floor(random() * 6)) {
    case 0:
      return bytes.subarray(0, at)
    case 1:
      return Buffer.concat([bytes.subarray(0, at), Buffer.from([0xff, 0xfe, 0xc0, 0x80]), bytes.subarray(at)])
    case 2:
      bytes[at] ^= 1 << Math.floor(random() * 8)
      return bytes
    case 3:
      return `${'['.repeat(100_000)}${body}`
    case 4:
      return `${body}${body}`
    default:
      return body.replace(/[0-9]+/, () =>
        pick(['1e400', '-0', '1e-400', '00', '0x10', 'NaN', 'Infinity', '9'.repeat(400)]),
      )
  }
}

/** A value that a schema allows or almost allows: patterns and formats are ignored. */
function valueFor(schema, depth) {
  if (schema.$ref)
    return valueFor(
      schema.$ref
        .split('/')
        .slice(1)
        .reduce((at, key) => at[key], document),
      depth,
    )
  if (schema.const !== undefined) return schema.const
  if (schema.enum) return pick(schema.enum)
  const choices = schema.anyOf ?? schema.oneOf
  if (choices) return valueFor(pick(choices), depth + 1)
  if (schema.allOf) return Object.assign({}, ...schema.allOf.map((part) => valueFor(part, depth + 1)))
  const type = Array.isArray(schema.type) ? (random() < 0.9 ? schema.type[0] : pick(schema.type)) : schema.type
  switch (type) {
    case 'object': {
      const wanted = new Set(schema.required ?? [])
      const chance = depth === 0 ? 4 / (1 + Object.keys(schema.properties ?? {}).length) : 0.5
      const value = {}
      for (const [name, of] of Object.entries(schema.properties ?? {}))
        if (wanted.has(name) || (depth < 6 && random() < chance)) value[name] = valueFor(of, depth + 1)
      for (const of of Object.values(schema.patternProperties ?? {}))
        if (random() < 0.5) value[String(Math.floor(random() * 300))] = valueFor(of, depth + 1)
      return value
    }
    case 'array': {
      const least = schema.minItems ?? (random() < 0.1 ? 0 : 1)
      const length = Math.min(schema.maxItems ?? 8, least + Math.floor(random() * 3))
      return Array.from({ length }, () => valueFor(schema.items ?? {}, depth + 1))
    }
    case 'integer':
    case 'number': {
      const [low, high] = [schema.minimum ?? -1e6, schema.maximum ?? 1e6]
      const value = pick([
        low,
        high,
        low + (high - low) * random(),
        Math.min(high, Math.max(low, 1)),
        Math.min(high, Math.max(low, 3)),
      ])
      return type === 'integer' ? Math.round(value) : value
    }
    case 'boolean':
      return random() < 0.5
    case 'null':
      return null
    case 'string':
      return random() < 0.5 ? pick(['user', 'demo', 'Hello', 'a', 'What is the capital of France?']) : pick(STRINGS)
    default:
      return pick(HOSTILE)()
  }
}

/** Changes, removes or doubles parts of a value. */
function mutated(value, chance) {
  if (random() < chance) return pick(HOSTILE)()
  if (Array.isArray(value))
    return value.flatMap((item) => (random() < chance ? pick([[], [item, item]]) : [mutated(item, chance)]))
  if (value === null || typeof value !== 'object') return value
  const kept = {}
  for (const [name, of] of Object.entries(value)) {
    if (random() < chance / 2) continue
    kept[random() < chance / 4 ? pick(STRINGS) : name] = mutated(of, chance)
  }
  return kept
}

/** Shortens answers, so that long ones do not look like hangs: sets every length field, also inside `options`. */
function shorten(value, schema) {
  if (value === null || typeof value !== 'object') return
  for (const [name, of] of Object.entries(value)) {
    if (LENGTHS.test(name) && Number.isInteger(of) && (of > 8 || of < 0)) value[name] = 4
    else shorten(of, {})
  }
  if (Array.isArray(value)) return
  for (const { properties = {} } of [schema, ...(schema.anyOf ?? [])])
    for (const name of Object.keys(properties)) {
      if (LENGTHS.test(name)) value[name] ??= 4
      if (name === 'options') value.options ??= { num_predict: 4 }
    }
  if (value.options?.constructor === Object) value.options.num_predict ??= 4
  if ('model' in value && random() < 0.9) value.model = 'demo'
}

function pick(list) {
  return list[Math.floor(random() * list.length)]
}

async function answer() {
  const { text: said } = await send('POST', '/v1/chat/completions', 'application/json', JSON.stringify(question))
  return JSON.parse(said).choices?.[0]?.message.content ?? said
}

/** A reply, or its part when the client left. */
function send(method, path, type, body, patienceMs = 30_000) {
  return new Promise((resolve, reject) => {
    const headers = {
      authorization: `Bearer ${KEY}`,
      ...(type && { 'content-type': type }),
      ...(body !== undefined && { 'content-length': Buffer.byteLength(body) }),
    }
    const parts = []
    let reply
    const done = (wasLeft) => {
      clearTimeout(timer)
      const { statusCode: status = 0, headers = {} } = reply ?? {}
      resolve({ status, headers, text: Buffer.concat(parts).toString(), wasLeft })
    }
    const call = request({ port, method, path, headers, agent }, (came) => {
      reply = came
      came.on('data', (part) => parts.push(part))
      came.on('end', () => done(false))
      came.on('error', () => {})
    })
    const timer = setTimeout(() => {
      done(patienceMs < 30_000)
      call.destroy()
    }, patienceMs)
    call.on('error', (error) => {
      clearTimeout(timer)
      reject(error)
    })
    call.end(body)
  })
}
