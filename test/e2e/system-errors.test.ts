/** Refusals of the operating system are reported with a hint. A file in the way fails for root too. */
import { closeSync, existsSync, mkdtempSync, openSync, readFileSync, writeFileSync } from 'node:fs'
import { createServer } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { expect, test } from 'vitest'
import { lackOfNode } from '../../src/files/version.ts'
import { writeFully } from '../../src/model/formats/open-file.ts'
import { serve, skein } from '../helpers/cli.ts'

const folder = mkdtempSync(join(tmpdir(), 'skein-errors-'))
const file = join(folder, 'file')
writeFileSync(file, '')

test.each([
  [['serve', 'demo', '--data-dir', file], /file is no folder.* --data-dir/],
  [['keys', 'add', 'x'], /cannot write .*keys\.json: ENOTDIR.* --keys.* XDG_DATA_HOME/],
  [['convert', 'demo', join(file, 'x.pth')], /cannot write the model: ENOTDIR.*name a folder/],
  [['convert', 'demo', join(file, 'x.safetensors')], /cannot write the model: ENOTDIR.*name a fold/],
  // An exit code and no signal: in one run of three, its threads met the end of the process.
  [
    ['quantize', 'demo', join(file, 'x.safetensors'), '--quant', 'int8'],
    /cannot write the model: ENOTDIR.*name a folder/,
  ],
])('skein %j', async (args, message) => {
  const { code, stderr } = await skein(args, '', { XDG_DATA_HOME: file })
  expect(stderr).toMatch(message)
  // A file named on the command line is a wrong argument; the folder of the keys is not.
  expect(code).toBe(args[0] === 'keys' ? 1 : 2)
})

test.runIf(existsSync('/dev/full'))('a full disk under a model that is written', () => {
  const full = openSync('/dev/full', 'w')
  expect(() => writeFully(full, new Uint8Array(9))).toThrow(/ENOSPC.*make room on its disk/)
  closeSync(full)
})

test.each([
  ['18.20.8', /needs Node 20\.19.*this is 18\.20\.8/],
  ['20.18.3', /20\.18\.3/],
])('Node %s is too old', (version, message) => {
  expect(lackOfNode(version)).toMatch(message)
  expect([lackOfNode('20.19.0'), lackOfNode('24.1.0'), lackOfNode()]).toEqual([null, null, null])
})

test('a metrics port that is in use', async () => {
  const other = createServer()
  await new Promise<void>((go) => other.listen(0, '127.0.0.1', go))
  const address = other.address()
  const port = typeof address === 'object' ? address!.port : 0
  const args = ['serve', 'demo', '--no-store', '--port', '0', '--metrics-port', String(port)]
  const { stderr } = await skein(args)
  other.close()
  expect(stderr).toContain(`port ${port} of 127.0.0.1: it is in use; choose another with --metrics-port`)
})

test('a missing model folder and a missing file of keys are reported', async () => {
  const missing = ['--model-dir', join(folder, 'none'), '--keys', join(folder, 'keys.json')]
  const server = await serve(['--without-model', '--no-store', ...missing])
  await server.stop()
  expect(server.output.join('\n')).toMatch(/--model-dir: there is no folder .*none/)
  expect(server.output.join('\n')).toMatch(/--keys: there is no file .*keys\.json; skein keys add/)
})

test('a model whose numbers are not finite ends the start, with the reason', async () => {
  const path = join(folder, 'nan.safetensors')
  await skein(['convert', 'demo', path])
  const bytes = readFileSync(path)
  const start = 8 + Number(bytes.readBigUInt64LE(0))
  const header = JSON.parse(bytes.toString('utf8', 8, start)) as Record<string, { data_offsets: [number, number] }>
  const [from, to] = header['ln_out.weight']!.data_offsets
  bytes.fill(Buffer.of(0xc0, 0x7f), start + from, start + to) // NaN in bf16
  writeFileSync(path, bytes)
  const { code, stderr } = await skein(['serve', path, '--port', '0', '--no-store'])
  expect(stderr).toMatch(/^skein: the numbers of the model's first token are not finite: its file is damaged/m)
  expect(stderr).toMatch(/"crashes":1/)
  expect(code).toBe(1)
})
