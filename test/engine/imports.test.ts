/** Imported states are looked at in a thread where they are large, and are as good or bad as on the event loop. */
import { expect, test } from 'vitest'
import { arraysOf } from '../../src/backend/state-shape.ts'
import { decodeImported } from '../../src/engine/sessions/imports.ts'
import { atOnce } from '../../src/state/in-turns.ts'
import { sealing } from '../../src/state/seal.ts'
import { encodeSnapshot } from '../../src/state/snapshot-file.ts'

const KEY = 'of this server, and of t'

function stateOf(layers: number) {
  const shape = { layers, channels: 256, heads: 4, headSize: 64 }
  const identity = { ...shape, architecture: 'rwkv7', vocabulary: 'v', weights: 'w' }
  const state = arraysOf(shape).map(({ size }, i) => new Float32Array(layers * size).map((_, at) => i + at / 700))
  return { identity, snapshot: { tokens: Int32Array.of(1, 2, 3), tail: Int32Array.of(4), state } }
}

// Of 140 KB and of 2.7 MB.
for (const layers of [2, 40]) {
  const { identity, snapshot } = stateOf(layers)
  const fileOf = (given = snapshot) => encodeSnapshot(given, identity, { namespace: '', isForeign: false })
  const look = (bytes: Uint8Array, more: { weights?: string; acceptsForeign?: boolean } = {}) => {
    const { weights = 'w', acceptsForeign = false } = more
    const context = { identity: { ...identity, weights }, vocabSize: 100, acceptsForeign, sealKeyOf: () => KEY }
    // All that it reads of the context.
    return decodeImported({ tenant: 't', id: 'new', bytes }, context as never)
  }

  test(`a state of ${layers} layers`, async () => {
    const bytes = atOnce(sealing(fileOf(), KEY))
    const isLarge = bytes.length > 2 ** 20
    expect(await look(bytes)).toEqual(snapshot)
    // What a thread looks at is no longer here: not a byte of it was read on the event loop, nor copied.
    expect(bytes.length === 0).toBe(isLarge)
  })

  test(`what is wrong with one of ${layers} layers`, async () => {
    await expect(look(fileOf())).rejects.toMatchObject({ code: 'forbidden' })
    await expect(look(fileOf(), { acceptsForeign: true })).resolves.toEqual(snapshot)
    await expect(look(fileOf(), { weights: 'others' })).rejects.toMatchObject({ code: 'state_incompatible' })
    const bent = fileOf()
    bent[bent.length - 100]! ^= 1
    await expect(look(bent, { acceptsForeign: true })).rejects.toMatchObject({ code: 'invalid_request' })
    const wild = { ...snapshot, state: snapshot.state.map((array) => array.map(() => 1e30)) }
    await expect(look(fileOf(wild), { acceptsForeign: true })).rejects.toThrow('values beyond 65504')
    await expect(look(fileOf({ ...snapshot, tail: Int32Array.of(100) }), { acceptsForeign: true })).rejects.toThrow(
      'beyond the vocabulary',
    )
  })
}

test('a part of a larger array is not taken away from who has the rest', async () => {
  const { identity, snapshot } = stateOf(40)
  const file = encodeSnapshot(snapshot, identity, { namespace: '', isForeign: false })
  const all = new Uint8Array(file.length + 10)
  all.set(file, 10)
  const context = { identity, vocabSize: 100, acceptsForeign: true, sealKeyOf: () => KEY }
  expect(await decodeImported({ tenant: 't', id: 'new', bytes: all.subarray(10) }, context as never)).toEqual(snapshot)
  expect(all.length).toBe(file.length + 10)
})
