import { mkdirSync, readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { expect, test } from 'vitest'
import { withAdapters } from '../../src/model/adapters.ts'
import { openCheckpoint } from '../../src/model/checkpoint.ts'
import { convertCheckpoint } from '../../src/model/convert.ts'
import { fingerprint } from '../../src/model/formats/fingerprint.ts'
import { writeSafetensors } from '../../src/model/formats/safetensors/writer.ts'
import { readFloats } from '../../src/model/formats/tensor-values.ts'
import { readTensors, writeAsGguf } from '../helpers/formats.ts'
import { writePth, writeRandomRwkv6, writeRandomRwkv7 } from '../helpers/pth.ts'
import { temporaryFolder } from '../helpers/temporary-folder.ts'

const folder = temporaryFolder()
const file = (name: string) => join(folder, name)

function convert(from: string, to: string, options: Parameters<typeof convertCheckpoint>[2] = {}) {
  const checkpoint = openCheckpoint(file(from))
  try {
    convertCheckpoint(checkpoint, file(to), options)
  } finally {
    checkpoint.close()
  }
}

function printOf(name: string): string {
  const checkpoint = openCheckpoint(file(name))
  try {
    return fingerprint(checkpoint)
  } finally {
    checkpoint.close()
  }
}

test.each([
  ['rwkv7', writeRandomRwkv7],
  ['rwkv6', writeRandomRwkv6],
] as const)('%s: .pth to safetensors and back is the same file', (name, write) => {
  write(file(`${name}.pth`), { dtype: 'bf16' })
  convert(`${name}.pth`, `${name}.safetensors`)
  convert(`${name}.safetensors`, `${name}-again.pth`)
  expect(printOf(`${name}.safetensors`)).toBe(printOf(`${name}.pth`))
  expect(readFileSync(file(`${name}-again.pth`)).equals(readFileSync(file(`${name}.pth`)))).toBe(true)
})

test('counts every byte it writes', () => {
  writeRandomRwkv7(file('m.pth'))
  const seen: number[] = []
  let whole = 0
  convert('m.pth', 'm.f16.pth', {
    dtype: 'f16',
    onProgress: (done, total) => {
      seen.push(done)
      whole = total
    },
  })
  expect(seen).toEqual(seen.toSorted((a, b) => a - b))
  expect(seen.at(-1)).toBe(whole)
  const { tensors } = openCheckpoint(file('m.f16.pth'))
  expect(new Set([...tensors.values()].map(({ dtype }) => dtype))).toEqual(new Set(['f16']))
})

test('packed tensors become f16, or the requested type; short texts are copied', () => {
  writeRandomRwkv7(file('p.pth'), { channels: 256, ffn: 256 })
  writeAsGguf(file('p.gguf'), readTensors(file('p.pth')), {
    architecture: 'rwkv7',
    type: 'Q4_K',
    metadata: { 'general.name': 'Tiny', 'tokenizer.chat_template': 'x'.repeat(5000) },
  })
  convert('p.gguf', 'p.safetensors')
  const packed = openCheckpoint(file('p.gguf'))
  const plain = openCheckpoint(file('p.safetensors'))
  expect(plain.metadata?.get('general.name')).toBe('Tiny')
  expect(plain.metadata?.has('tokenizer.chat_template')).toBe(false)
  expect(plain.tensors.get('blocks.0.att.key.weight')?.dtype).toBe('f16')
  expect(plain.tensors.get('blocks.0.att.w1')?.dtype).toBe('f32')
  convert('p.gguf', 'p32.safetensors', { dtype: 'f32' })
  const exact = openCheckpoint(file('p32.safetensors'))
  for (const name of ['emb.weight', 'blocks.1.att.x_g', 'blocks.1.att.v2']) {
    const wanted = readFloats(packed.tensors.get(name)!)
    expect(readFloats(exact.tensors.get(name)!)).toEqual(wanted)
  }
  for (const checkpoint of [packed, plain, exact]) checkpoint.close()
})

test('adapters are part of the written file', () => {
  writeRandomRwkv7(file('base.pth'))
  writePth(file('adapter.pth'), [{ name: 'ln_out.bias', shape: [128], values: Array(128).fill(3) }])
  const merged = withAdapters(openCheckpoint(file('base.pth')), [{ path: file('adapter.pth') }])
  convertCheckpoint(merged, file('merged.safetensors'))
  merged.close()
  const written = openCheckpoint(file('merged.safetensors'))
  expect(readFloats(written.tensors.get('ln_out.bias')!)[127]).toBe(3)
  written.close()
})

test('an unknown suffix is refused before anything is written', () => {
  writeRandomRwkv7(file('m.pth'))
  const before = readdirSync(folder)
  expect(() => convert('m.pth', 'm.gguf')).toThrow('ends in neither .pth nor .safetensors')
  expect(readdirSync(folder)).toEqual(before)
})

test.each(['.pth', '.safetensors'])('%s: a name that is taken by a folder leaves nothing behind', (suffix) => {
  writeRandomRwkv7(file('source.pth'), {})
  mkdirSync(file(`folder${suffix}`))
  const before = readdirSync(folder)
  expect(() => convert('source.pth', `folder${suffix}`)).toThrow(/^cannot write the model: .*; name a file/)
  expect(readdirSync(folder)).toEqual(before)
})

test.each(['.pth', '.safetensors'])('%s: a weight that f16 cannot hold is refused', (suffix) => {
  const values = [65519, -65519, Number.POSITIVE_INFINITY, Number.NaN]
  writePth(file('fits.pth'), [{ name: 'fits', shape: [4], values }])
  convert('fits.pth', `fits-f16${suffix}`, { dtype: 'f16' })
  writePth(file('large.pth'), [{ name: 'large', shape: [2], values: [1, -65520] }])
  const before = readdirSync(folder)
  expect(() => convert('large.pth', `large-f16${suffix}`, { dtype: 'f16' })).toThrow(
    'large has a weight beyond ±65504, which does not fit f16; use bf16 or f32',
  )
  expect(readdirSync(folder)).toEqual(before)
})

test('a file that is no longer quantised does not claim to be', () => {
  const scheme = { 'skein.quantisation': 'i8', 'skein.quantisation.version': '1', name: 'small' }
  const bytes = (name: string, dtype: 'i8' | 'bf16', shape: number[], size: number) => ({
    name,
    dtype,
    shape,
    chunks: () => [new Uint8Array(size)],
  })
  writeSafetensors(
    file('rounded.safetensors'),
    [bytes('w', 'i8', [2, 32], 64), bytes('w.scale', 'bf16', [2, 1], 4)],
    scheme,
  )
  convert('rounded.safetensors', 'plain.safetensors')
  const { metadata, close } = openCheckpoint(file('plain.safetensors'))
  close()
  expect(Object.fromEntries(metadata!)).toEqual({ name: 'small', format: 'pt' })
})
