import { execFile, spawn } from 'node:child_process'
import { existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { promisify } from 'node:util'
import { afterAll, beforeAll, describe, expect, test, vi } from 'vitest'
import { writeSafetensors } from '../../src/model/formats/safetensors/writer.ts'
import { DEMO, goldenSamples, type RunningServer, serve, skein } from '../helpers/cli.ts'
import { trials } from '../helpers/slow.ts'

const folder = mkdtempSync(join(tmpdir(), 'skein-cli-'))

test('inspect prints control sequences in a file as text', async () => {
  const path = join(folder, 'stranger.safetensors')
  const chunks = () => [new Uint8Array(4)]
  writeSafetensors(path, [{ name: 'x\x1b[2J\nfile  /elsewhere', shape: [1], dtype: 'f32', chunks }], {
    'a\x07': 'naïve\x1b]0;title\x07',
  })
  const { stdout } = await skein(['inspect', path, '--tensors'])
  expect(stdout).toMatch(/^a\? +naïve\?\]0;title\?$/m)
  expect(stdout).toMatch(/^x\?\[2J\?file {2}\/elsewhere +f32/m)
  expect(stdout.replaceAll('\n', '')).not.toMatch(/\p{Cc}/u)
})

test('inspect refuses head sizes without kernels, after describing the file', {
  tags: 'night',
}, async () => {
  const path = join(folder, 'heads.safetensors')
  const chunks = () => [new Uint8Array(2 * 24 * 4)]
  writeSafetensors(path, [{ name: 'blocks.0.att.r_k', shape: [2, 24], dtype: 'f32', chunks }])
  const { code, stdout, stderr } = await skein(['inspect', path])
  expect([code, stdout]).toEqual([1, expect.stringMatching(/^head size +24$/m)])
  expect(stderr).toMatch(/heads of 24 channels; expected a multiple of 16/)
})

test.runIf(process.platform === 'linux')(
  'threads that the system refuses are an error',
  { tags: 'night' },
  async () => {
    const main = join(import.meta.dirname, '../../dist/cli/main.js')
    const command = `ulimit -s 8192; ulimit -v 6000000; exec ${process.execPath} ${main} generate --device cpu --threads 1024 --prompt hi`
    const started = promisify(execFile)('sh', ['-c', command], { timeout: 60_000 })
    await expect(started).rejects.toMatchObject({
      stderr: expect.stringMatching(/refused to start thread \d+ of 1024; ask for fewer threads/),
    })
  },
)

test.each([
  ['convert', []],
  ['quantize', ['--quant', 'int8']],
] as const)('%s replaces no other vocabulary unless told to', { tags: 'night' }, async (command, more) => {
  const output = join(folder, `${command}.safetensors`)
  const vocabulary = join(folder, `${command}.vocab.txt`)
  writeFileSync(vocabulary, 'mine')
  const refused = await skein([command, DEMO, output, ...more])
  expect(refused.stderr).toContain(`${vocabulary} exists and is another vocabulary; --force`)
  expect([readFileSync(vocabulary, 'utf8'), existsSync(output)]).toEqual(['mine', false])
  expect((await skein([command, DEMO, output, ...more, '--force'])).code).toBe(0)
  rmSync(output)
  expect((await skein([command, DEMO, output, ...more])).code).toBe(0)
})

test('inspect says what the demo model is', async () => {
  const { stdout } = await skein(['inspect', DEMO, '--json'])
  expect(JSON.parse(stdout)).toMatchObject({
    architecture: 'rwkv7',
    format: 'pth',
    headSize: 64,
    missing: [],
    wrongShapes: [],
  })
})

test('a file that is not a checkpoint is refused in one line', async () => {
  const path = join(folder, 'notes.txt')
  writeFileSync(path, 'not a model')
  const { code, stderr, stdout } = await skein(['inspect', path])
  expect(code).toBe(1)
  expect(stdout).toBe('')
  expect(stderr).toMatch(/^skein: .*notes\.txt.*\n$/)
})

test('the configuration of one model with a name and a vocabulary is checked as it is served', {
  tags: 'night',
}, async () => {
  const path = join(folder, 'one.json')
  const vocab = DEMO.replace(/pth$/, 'vocab.txt')
  writeFileSync(path, JSON.stringify({ model: DEMO, modelName: 'goose', vocab }))
  const { code, stdout, stderr } = await skein(['config', 'check', path])
  expect(stderr).toBe('')
  expect(stdout).toContain('goose: ')
  expect(code).toBe(0)
})

test('an unusable data folder ends the start at once, with a hint', async () => {
  // Through a file: it fails for root too, as another user's folder does for everybody else.
  const dataDir = join(DEMO, 'data')
  const { code, stderr } = await skein([
    ...['serve', '--port', '0', '--data-dir', dataDir, '--keys', join(folder, 'keys.json')],
  ])
  expect(code).toBe(2)
  // Before the line of the log, or after it.
  expect(stderr).toMatch(/^skein: the data folder .* cannot be used: .*--data-dir.*--no-store/m)
})

test.each(['reference', 'cpu'])('logits on %s are those of the independent PyTorch evaluation', async (backend) => {
  for (const { prompt_ids, argmax, first_logits } of goldenSamples().slice(0, trials(1, 4))) {
    const out = join(folder, 'logits.f32')
    const tokens = prompt_ids.join(',')
    const { stdout } = await skein([
      ...['logits', DEMO, '--tokens', tokens, '--backend', backend, '--out', out, '--json'],
    ])
    // The JSON of the command itself.
    const report = JSON.parse(stdout) as { vocabSize: number; best: number }
    const bytes = readFileSync(out)
    expect(bytes.length).toBe(4 * report.vocabSize)
    expect(report.best).toBe(argmax)
    for (const [i, wanted] of first_logits.entries())
      expect(Math.abs(bytes.readFloatLE(4 * i) - wanted)).toBeLessThan(1e-3)
  }
})

test('generate with a seed gives the same text, however the prompt is given', async () => {
  const flags = ['--seed', '5', '--max-tokens', '30']
  const ways = [['demo', 'Once upon a time'], ['--prompt', 'Once upon a time'], ['demo']]
  const answers = []
  for (const [i, words] of ways.entries())
    answers.push(await skein(['generate', ...words, ...flags], i === 2 ? 'Once upon a time' : ''))
  expect(answers[0]).toMatchObject({ code: 0, stderr: '' })
  expect(answers[0]!.stdout.length).toBeGreaterThan(20)
  for (const answer of answers) expect(answer).toEqual(answers[0])
})

test('tokenize and its pieces give the text back', async () => {
  const text = 'Hello world! 你好世界 🙂\n'
  const { stdout } = await skein(['tokenize', '--json', '-'], text)
  const { count, tokens } = JSON.parse(stdout) as { count: number; tokens: number[] }
  expect(tokens).toHaveLength(count)
})

test('the bench of a vocabulary prints JSON only on request', {
  tags: 'night',
  timeout: 120_000,
}, async () => {
  const { stdout } = await skein(['bench', 'tokenizer'])
  expect(stdout).toMatch(/^encode +[\d.]+ MB\/s, [\d.]+M tokens\/s$/m)
})

test('the bench of products takes types as --quant names them', async () => {
  const few = ['--shapes', '1024x1024', '--tokens', '1', '--seconds', '0', '--json']
  const { stdout } = await skein(['bench', 'ops', '--types', 'int8,q4', ...few])
  expect(JSON.parse(stdout)).toMatchObject({ rows: [{ type: 'i8' }, { type: 'q4' }] })
})

/** Exit code 2: the command line is wrong; 1: the command failed. */
const REFUSED = [
  [['serve', '--port', 'x'], 2, '--port takes'],
  [['sevre'], 2, 'did you mean serve?'],
  [['generate', 'nosuch', '--prompt', 'x'], 1, 'nosuch: no such file'],
  [['launch', 'zed', '--url', '127.0.0.1:1'], 1, 'no server answers at http://127.0.0.1:1'],
] as const
/** Kinds that are tested above; each is a process. */
const REFUSED_TOO = [
  [['serve', '--prot', '1'], 2, 'unknown flag --prot'],
  [['serve', '/no/such/model.pth'], 1, '/no/such/model.pth'],
  [['frobnicate'], 2, 'no command "frobnicate"'],
  [['keys', 'rm', 'bob'], 2, 'no command "keys rm"; there are add, list, change, rotate, revoke'],
  [['generate'], 2, 'no text to continue'],
  [['serve', '--quant', 'int3'], 2, '--quant takes one of'],
  [['quantize', 'a', 'b'], 2, '--quant is missing: int8, q4 or nf4'],
  [['completion'], 2, 'SHELL is missing: bash, zsh, fish'],
  [['chat', '--model', 'demo'], 2, 'unknown flag --model; did you mean --model-name?'],
  [['frobnicate', '--help'], 2, 'no command "frobnicate"'],
  [['generate', DEMO, 'Once', 'upon'], 2, 'unexpected argument "upon"'],
  [['generate', DEMO, 'Once', '--prompt', 'x'], 2, 'the text was given twice'],
  [['tokenize', 'nosuch.txt'], 1, "no such file or directory, open 'nosuch.txt'\n"],
  [['launch', 'continu', '--model-name', 'x'], 2, 'did you mean continue?'],
] as const
async function isRefused(args: readonly string[], wanted: number, message: string): Promise<void> {
  const { code, stderr } = await skein(args)
  expect(stderr).toContain(message)
  expect(code).toBe(wanted)
}
test.each(REFUSED)('%j is refused with code %i and a reason', isRefused)
test.each(REFUSED_TOO)('%j is refused with code %i and says why', { tags: 'night' }, isRefused)

test('Ctrl-C ends a text with code 130, and the written part stays', async () => {
  const main = join(import.meta.dirname, '../../dist/cli/main.js')
  const args = ['generate', '--prompt', 'Once upon a time', '--max-tokens', '100000']
  const child = spawn(process.execPath, [main, ...args], { stdio: ['ignore', 'pipe', 'inherit'] })
  child.stdout.once('data', () => child.kill('SIGINT'))
  expect(await new Promise((resolve) => child.on('close', resolve))).toBe(130)
})

test('a model converted from another keeps its vocabulary', async () => {
  const out = join(folder, 'small.safetensors')
  const { stdout } = await skein(['quantize', 'demo', out, '--quant', 'int8'])
  expect(stdout).toContain(`\n${join(folder, 'small.vocab.txt')}\n`)
  const answer = await skein(['generate', out, '--prompt', 'x', '--max-tokens', '1'])
  expect(answer).toMatchObject({ code: 0, stderr: '' })
  const copy = join(folder, 'copy.pth')
  expect((await skein(['convert', DEMO, copy])).code).toBe(0)
  expect(existsSync(join(folder, 'copy.vocab.txt'))).toBe(true)
})

test('run chats with a model in its own process', async () => {
  const { code, stdout } = await skein(['run', 'demo', '--max-tokens', '5'], 'Hello.')
  expect(code).toBe(0)
  expect(stdout.trim().length).toBeGreaterThan(0)
})

test('bash accepts the completion script', async () => {
  const script = (await skein(['completion', 'bash'])).stdout
  const ask = 'COMP_WORDS=(skein serve --max-t); COMP_CWORD=2; _skein; echo "$COMPREPLY"'
  const { stdout } = await promisify(execFile)('bash', ['-c', `${script}\n${ask}`])
  expect(stdout.trim()).toBe('--max-turns')
})

describe.sequential('a server of two models', () => {
  const SKEIN_API_KEY = 'a-key'
  let server: RunningServer
  beforeAll(async () => {
    server = await serve(['one=demo', 'two=demo', '--api-key', SKEIN_API_KEY])
    await vi.waitFor(() => expect(server.output.join('\n')).toContain('Ctrl-C'), { timeout: 60_000 })
  })
  afterAll(() => server?.stop())

  test('the commands that a server prints work when pasted', async () => {
    const at = server.output.findIndex((line) => line.startsWith('try '))
    const command = server.output
      .slice(at, at + 2)
      .join('\n')
      .slice('try'.length)
    const env = { ...process.env, SKEIN_API_KEY }
    const { stdout } = await promisify(execFile)('sh', ['-c', command], { env })
    expect(JSON.parse(stdout)).toMatchObject({ object: 'chat.completion', model: 'one' })
    const said = ['chat', '--url', server.url, '--api-key', SKEIN_API_KEY]
    expect((await skein([...said, '--model-name', 'two'], 'Hello.')).code).toBe(0)
    const unnamed = await skein(said, 'Hello.')
    expect(unnamed).toMatchObject({ code: 1, stderr: expect.stringContaining('--model-name') })
  })

  test('the command that launch prints works, and the chat reads typed input', {
    tags: 'night',
    timeout: 180_000,
  }, async () => {
    await launched(server.url, SKEIN_API_KEY)
    await talked(['chat', '--url', server.url, '--api-key', SKEIN_API_KEY])
  })

  test('ps lists what a server runs, and stop stops it', { tags: 'night', timeout: 120_000 }, async () => {
    const own = ['--url', server.url]
    const refused = await skein(['ps', ...own])
    expect(refused).toMatchObject({ code: 1, stderr: expect.stringContaining('--api-key') })
    const to = [...own, '--api-key', SKEIN_API_KEY]
    const listed = await skein(['ps', ...to])
    expect(listed.stdout).toMatch(/^one +wkr-\w+ +ready .*\ntwo +wkr-\w+ +ready /m)
    expect((await skein(['stop', 'two', ...to])).stdout).toBe('stopped two (1 workers)\n')
    const running = JSON.parse((await skein(['ps', '--json', ...to])).stdout)
    expect(running.workers.map(({ model }: { model: string }) => model)).toEqual(['one'])
    const unknown = await skein(['stop', 'three', ...to])
    expect(unknown).toMatchObject({ code: 1, stderr: expect.stringContaining('skein ps') })
  })
})

/** The programs that `skein launch` prints, run unchanged if their library is installed. */
async function launched(url: string, key: string): Promise<void> {
  const to = ['--url', url, '--api-key', key]
  for (const client of ['openai-js', 'ai-sdk']) {
    const { stdout: source } = await skein(['launch', client, ...to])
    const args = ['--input-type=module', '--eval', source]
    const { stdout } = await promisify(execFile)(process.execPath, args)
    expect(stdout.trim().length, client).toBeGreaterThan(0)
  }
  const home = mkdtempSync(join(tmpdir(), 'skein-home-'))
  const write = () => skein(['launch', 'continue', '--write', ...to], '', { HOME: home })
  const path = join(home, '.continue/config.yaml')
  expect((await write()).stdout).toBe(`${path}\n`)
  expect(readFileSync(path, 'utf8')).toContain(`apiBase: "${url}/v1"\n    apiKey: "${key}"`)
  expect(await write()).toMatchObject({ code: 1, stderr: expect.stringContaining('exists') })
}

/** Input for `skein chat`, through a pipe. */
async function talked(said: readonly string[]): Promise<void> {
  const file = join(folder, 'talk.json')
  const typed = [
    ...['"""What is the', 'capital of France?"""', '/undo', 'What is the capital of France?'],
    ...['/fork', 'What is the capital of Japan?', '/branch main', `/save ${file}`, '/regenerate'],
    '/branch',
    ...['/frok', '/model three', '/tools /nowhere.json', '/exit', 'never said'],
  ]
  const args = [...said, '--model-name', 'two', '--temperature', '0']
  const once = await skein(['chat', 'What is the capital of France?', ...args.slice(1)])
  expect(once).toMatchObject({ code: 0, stderr: '', stdout: expect.stringMatching(/is Paris\.\n$/) })
  const own = await skein(['chat', 'demo', 'What is the capital of France?', '--temperature', '0'])
  expect(own).toMatchObject({ code: 0, stdout: once.stdout })
  const { stdout, stderr, code } = await skein(['chat', ...args.slice(1)], typed.join('\n'))
  expect({ stderr, code }).toEqual({ stderr: '', code: 0 })
  expect(stdout).toContain('taken back: What is the\n')
  expect(stdout.match(/is Paris\./g)!.length).toBeGreaterThanOrEqual(2)
  expect(stdout).toContain('Tokyo')
  expect(stdout).toContain('* main  1 turn\n')
  expect(stdout).toContain('no command /frok; did you mean /fork?')
  expect(stdout).toContain('no model three; /model lists them')
  expect(stdout).toContain("open '/nowhere.json'")
  for (const absent of ['never said', '\x1b']) expect(stdout).not.toContain(absent)
  const { messages } = JSON.parse(readFileSync(file, 'utf8'))
  expect(messages).toEqual([
    { role: 'user', content: 'What is the capital of France?' },
    { role: 'assistant', content: expect.stringContaining('Paris') },
  ])
}
