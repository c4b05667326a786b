/** What a body was made of is not kept until a collection. */
import { Readable } from 'node:stream'
import type { FastifyRequest } from 'fastify'
import { expect, test } from 'vitest'
import { readBody } from '../../../src/gateway/body/body-memory.ts'

const BOUNDS = { strangerBodyBytes: 1024, callerBytes: 2 ** 20, bodiesBytes: 2 ** 20 }
const request = { headers: {}, principal: {}, heldBody: null, routeOptions: { bodyLimit: 2 ** 20 } }
const parts = () => Array.from({ length: 3 }, (_, i) => new Uint8Array(1000).fill(i))
/** Node 20 cannot free memory before a collection. */
const canFree = 'transfer' in ArrayBuffer.prototype

function read(payload: readonly Uint8Array[], look: () => void = () => {}) {
  return readBody(request as unknown as FastifyRequest, Readable.from(payload), BOUNDS, look)
}

test('a body is its parts, whose memory is free once it has been read', async () => {
  const own = parts()
  const body = await read(own)
  expect(Buffer.from(body)).toEqual(Buffer.concat(parts()))
  if (canFree) for (const part of own) expect(part.length).toBe(0)
})

test('and once it is refused', async () => {
  const own = parts()
  const refuse = () => {
    throw new Error('too many')
  }
  await expect(read(own, refuse)).rejects.toThrow('too many')
  expect(own.map(({ length }) => length)).toEqual([canFree ? 0 : 1000, 1000, 1000])
})

test('a part that shares its memory is left alone', async () => {
  const all = new Uint8Array(2000)
  await read([all.subarray(0, 1000), all.subarray(1000)])
  expect(all.length).toBe(2000)
})
