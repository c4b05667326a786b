import { gunzipSync } from 'node:zlib'
import { describe, expect, test } from 'vitest'
import { recogniseFormat } from '../../../src/model/formats/recognise.ts'
import { readFloats } from '../../../src/model/formats/tensor-values.ts'
import { openLegacyTorch } from '../../../src/model/formats/torch/legacy.ts'
import { memorySource } from '../../helpers/memory-source.ts'

/**
 * What torch 2.13 writes for torch.save({'model': sd, 'optimizer': {'step': torch.arange(5)}, 'epoch': 3}, f,
 * _use_new_zipfile_serialization=False), gzipped. sd: a = arange(24) as [4, 6] f32; b = a.t(); c = a[1:3, 2:5];
 * d = a in bf16; e = a[:, ::2] in f16; p a Parameter of one number.
 */
const TORCH_FILE =
  'H4sIAAAAAAACA32TS1PTUBTHb5K2QATEd/FZ38VH7ROoL3IREQwoxE02TinplcYJTU5yy4zOMNMNiK5YsnDRJUuWLPkobv0IzrjwJCllitXM/HOTe09+/3PuPWmI32Tr9/fpX4mPuwvDqYY4/1PC+zqQpD5ECHFcm9uGbZXWmOuZdg0EDNAHcMUyObdYidUqZrkG4pYu4yT/5LCSZ35mHkjrEEnqUZz0qrbLIaqKuoRvZo1DTI3oEZ9h11agR43U64eefvyqXWEWCAbaWszg6OrJb90Kc1llyjS4DOKIBlJSFzC2DBGD265RTZXq3LQ8ueSy5bppVUqc1TzbLa1lZYgmk3qPnwhGllcYxMJP5GnLLvN34aQMPfogxhRz4/lCIZMpFnPpbB56g5wNpw59avwNB3lRJWpEjW3CCTWmCpvQ/7XqpzPAYVCDk0FOyzBURctqrNoVeaoaok77KNyJTTijCj7xbIg6x+G8BhcClAHx/6GGW6iLi2qvKqrSJlwKs7ocoq5wuKrBtQBVgUSIahU/GVSfGW3Xf/3IIZ8tFPJpfIIbLYeb7bpvhQ63Q4c7HO5qEJ4Fg5EOh5my9aFNv9dBH80VxopZuI/0fqQ/COmY/0NV8umpkP6IQ1qDTEB3IPuPk3bKbnmVcebKkPt7t3y3dDE3moY8ugnoVvDdhA0Y9W9jodM4h6IGj7eClydf4KkGz+p6H0Jsh5ur2NEuPF+HiaBtPc4cUDpqncNObtdKj7lni1jrJLpH0f2F7x7dgCnf/WXoPs3hlQYzXtD+zLGNKsyqkv9TvPd/ii7nInSzELtVLXXb+Ei3boqyVJwcXo0JoihKQ2kqB8oPhdAhmqBpqtAFukQd2qBbdJvu0CbdpXt0n0ZJ5yW0RrE1Sq0xcmydkCWl/+gzhUyRaTJDZslropK5xhyZb8zHO8iYlx+HyeEzqok6QGGOhFBChlAJVBqloBZQSygH1UBtobZRO6gmahe1h9qnfwDnfLbcCwUAAA=='
const file = () => new Uint8Array(gunzipSync(Buffer.from(TORCH_FILE, 'base64')))

test('a file written by torch: views, types, storages without a tensor of the model', () => {
  const source = memorySource(file())
  expect(recogniseFormat(source).readable).toBe('legacy torch')
  const { tensors, format } = openLegacyTorch(source)
  expect(format).toBe('legacy-pth')
  const a = Array.from({ length: 24 }, (_, i) => i)
  const seen = [...tensors].map(([name, entry]) => [name, entry.dtype, entry.shape, Array.from(readFloats(entry))])
  expect(seen).toEqual([
    ['a', 'f32', [4, 6], a],
    ['b', 'f32', [6, 4], a.map((i) => (i % 4) * 6 + Math.floor(i / 4))],
    ['c', 'f32', [2, 3], [8, 9, 10, 14, 15, 16]],
    ['d', 'bf16', [4, 6], a],
    ['e', 'f16', [4, 3], a.filter((i) => i % 2 === 0)],
    ['p', 'f32', [1], [3.5]],
  ])
})

describe('inconsistent files are refused', () => {
  const changed = (find: string, replacement: string) => {
    const text = Buffer.from(file()).toString('latin1')
    expect(text).toContain(find)
    return memorySource(Buffer.from(text.replace(find, replacement), 'latin1'))
  }
  test.each([
    ['another protocol', 'M\xe9\x03.', 'M\xea\x03.', "torch's file protocol 1002, not 1001"],
    ['big-endian numbers', 'little_endianq\x02\x88', 'little_endianq\x02\x89', 'little-endian'],
    [
      'a forbidden name',
      'ctorch._utils\n_rebuild_tensor_v2',
      'cos.path._utils\nrebuild_tensor_2',
      'asks for os.path._utils.rebuild_tensor_2',
    ],
  ])('%s', (_what, find, replacement, message) => {
    expect(() => openLegacyTorch(changed(find, replacement))).toThrow(message)
  })

  test('a truncated file', () => {
    const bytes = file()
    expect(() => openLegacyTorch(memorySource(bytes.subarray(0, bytes.length - 30)))).toThrow(
      expect.objectContaining({ code: 'corrupt_weights' }),
    )
  })

  test('a storage whose length differs from what its tensors say', () => {
    const bytes = Buffer.from(file())
    const at = bytes.lastIndexOf(Buffer.from([24, 0, 0, 0, 0, 0, 0, 0]))
    bytes[at] = 23
    expect(() => openLegacyTorch(memorySource(bytes))).toThrow('has 23 elements, not 24')
  })
})
