/** No log line contains part of a key, wherever the caller put it and whatever the reply was. */
import { createHash } from 'node:crypto'
import { join } from 'node:path'
import { pino } from 'pino'
import { expect, test } from 'vitest'
import { addKey, NO_LIMITS } from '../../src/gateway/access/keys.ts'
import { changeKeys, KeyRing } from '../../src/gateway/access/keys-file.ts'
import { temporaryFolder } from '../helpers/temporary-folder.ts'
import { CHAT, HELLO, serve } from './kit.ts'

const OWN = 'sk-own-4Jt0b8QmVx2kRz7Lw9Yc'
const WRONG = 'sk-wrong-Pq3Ns6Hd1Gf5Ua0Ke8Xi'
/** Shorter parts of a key could be anything. */
const PIECE = 8

/** Parts of the key itself, and of other encodings of it. */
function piecesOf(secret: string): string[] {
  const sha256 = createHash('sha256').update(secret).digest()
  const forms = [secret, Buffer.from(secret).toString('base64'), Buffer.from(secret).toString('hex')]
  return [...forms, sha256.toString('hex'), sha256.toString('base64')].flatMap((form) =>
    Array.from({ length: form.length - PIECE + 1 }, (_, i) => form.slice(i, i + PIECE)),
  )
}

test('keys never appear in logs', async () => {
  const path = join(temporaryFolder(), 'keys.json')
  const plain = { name: 'goose', role: 'user', expiresAt: null, limits: NO_LIMITS } as const
  const { secret: named } = await changeKeys(path, (keys) => addKey(keys, plain, 0))
  const lines: string[] = []
  const logger = pino({ level: 'trace' }, { write: (line: string) => lines.push(line) })
  const script = () => {
    throw new Error('out of luck')
  }
  const { app } = serve(script, { keys: [OWN], keyRing: new KeyRing(path), logger })

  const statuses = new Set<number>()
  const send = async (url: string, payload: object | string, authorization?: string) => {
    const headers = { 'content-type': 'application/json', ...(authorization === undefined ? {} : { authorization }) }
    const reply = await app.inject({ method: 'POST', url, payload, headers })
    statuses.add(reply.statusCode)
    return reply
  }
  for (const secret of [OWN, named, WRONG]) {
    for (const scheme of ['Bearer ', 'bearer  ', 'Basic ', '']) await send(CHAT, HELLO, `${scheme}${secret}`)
    await send(CHAT, { ...HELLO, api_key: secret, model: secret }, `Bearer ${OWN}`)
    await send(CHAT, `{"password": "${secret}", `, `Bearer ${OWN}`)
    await send(`${CHAT}?key=${secret}`, HELLO)
    await send(`/${secret}`, HELLO, `Bearer ${OWN}`)
    await send('/big_batch/completions', { contents: ['x'], password: secret })
    await send('/v2/chat/completions', { contents: ['x'], password: [secret] })
  }
  const added = await send('/api/keys', { name: 'duck' }, `Bearer ${OWN}`)
  const { secret: made } = added.json() as { secret: string }
  expect(made).toMatch(/^sk-skein-/)
  await send(CHAT, HELLO, `Bearer ${made}`)

  expect([...statuses].sort()).toMatchInlineSnapshot(`
    [
      201,
      400,
      401,
      404,
      500,
    ]
  `)
  expect(lines.length).toBeGreaterThan(30)
  const text = lines.join('')
  expect(text).toContain('goose')
  for (const secret of [OWN, named, WRONG, made])
    expect(piecesOf(secret).filter((piece) => text.includes(piece))).toEqual([])
})
