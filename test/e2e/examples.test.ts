/** The programs of examples/, unchanged and from any folder, with a server of the demo model. */
// @module-tag night
import { execFile } from 'node:child_process'
import { readdirSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { promisify } from 'node:util'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { type RunningServer, serve } from '../helpers/cli.ts'

const ROOT = join(import.meta.dirname, '../..')

let server: RunningServer
beforeAll(async () => {
  server = await serve()
})
afterAll(async () => {
  await server.stop()
})

async function run(name: string): Promise<string> {
  const file = join(ROOT, 'examples', name)
  const [command, args] = name.endsWith('.sh') ? ['sh', [file]] : [process.execPath, [file]]
  const env = { ...process.env, SKEIN_URL: server.url }
  const { stdout } = await promisify(execFile)(command, args, { cwd: tmpdir(), env })
  return stdout
}

/** The expected output of each. */
const EXPECTED: Readonly<Record<string, RegExp>> = {
  'library.mjs': /Paris[\s\S]*\d+ tokens were in the state[\s\S]*weather \{ city: '\w+' \}/,
  'openai-client.mjs': /Paris/,
  'mcp-agent.mjs':
    /^capital_of\(\{"country":"France"\}\) = Paris\nget_weather\(\{"city":"Paris"\}\) = sunny, 21 degrees\nThe weather in Paris: sunny, 21 degrees.\n$/,
  'batch.sh': /"index":[01][\s\S]*data: \[DONE\]/,
  'session.sh': /Paris[\s\S]*Tokyo[\s\S]*"head":2[\s\S]*"deleted":true/,
  'translate.sh': /"translations":\[\{.*"text":"[^"]+".*\},\{.*"text":"[^"]+".*\}\]/,
}

test.each(Object.entries(EXPECTED))('%s', async (name, expected) => {
  expect(await run(name)).toMatch(expected)
})

test('every example has a test', () => {
  // The agent starts the server; the page needs a GPU, and browser.test.ts makes its calls.
  const files = [...Object.keys(EXPECTED), 'mcp-server.mjs', 'browser.html'].sort()
  expect(readdirSync(join(ROOT, 'examples')).sort()).toEqual(files)
})
