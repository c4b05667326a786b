/**
 * Whether the time for a wrong key reveals how much of it is right. SKEIN_SLOW=1 takes the 10^5 samples that an attack
 * would take; otherwise there are fewer samples and several tries, so that the test does not fail on a busy machine.
 */
import { randomBytes } from 'node:crypto'
import { join } from 'node:path'
import { expect, test } from 'vitest'
import { SkeinError } from '../../src/errors.ts'
import { createAuth } from '../../src/gateway/access/auth.ts'
import { addKey, NO_LIMITS } from '../../src/gateway/access/keys.ts'
import { changeKeys, KeyRing } from '../../src/gateway/access/keys-file.ts'
import { temporaryFolder } from '../helpers/temporary-folder.ts'

const [NUM_SAMPLES, NUM_TRIES] = process.env.SKEIN_SLOW === '1' ? [100_000, 3] : [10_000, 10]
/**
 * Random variation exceeds this once in some 150,000 tries; it is the threshold of "dudect" (Reparaz, Balasch,
 * Verbauwhede 2017).
 */
const MAX_T = 4.5
/** Slower samples were interrupted. */
const KEPT = 0.9
const POOL = 64

type Check = (secret: string) => void

const randomSecret = () => `sk-skein-${randomBytes(32).toString('base64url')}`
/** In memory of its own, like a header. */
const flat = (text: string) => Buffer.from(text).toString('latin1')

/** Right except for the last characters. */
function near(secret: string): string {
  const ending = randomSecret().slice(-2)
  return secret.endsWith(ending) ? near(secret) : flat(secret.slice(0, -2) + ending)
}

function timeOf(check: Check, secret: string): number {
  const begun = process.hrtime.bigint()
  try {
    check(secret)
  } catch {
    return Number(process.hrtime.bigint() - begun)
  }
  throw new Error('a wrong key was taken')
}

/** Welch's t for the times of nearly right keys against others. */
function tOf(check: Check, secret: string): number {
  const far = () => flat(randomSecret() + secret.slice(randomSecret().length))
  const pools = [() => near(secret), far].map((make) => Array.from({ length: POOL }, make))
  const order = randomBytes(2 * NUM_SAMPLES)
  const samples = Array.from({ length: NUM_SAMPLES }, (_, i) => {
    const kind = order[2 * i]! & 1
    return { kind, ns: timeOf(check, pools[kind]![order[2 * i + 1]! % POOL]!) }
  })
  // The first samples run code that is not compiled yet.
  const warm = samples.slice(NUM_SAMPLES / 10)
  const limit = warm.map(({ ns }) => ns).sort((a, b) => a - b)[Math.floor(KEPT * warm.length)]!
  const [one, other] = [0, 1].map((kind) => {
    const times = warm.filter((one) => one.kind === kind && one.ns <= limit).map(({ ns }) => ns)
    const mean = times.reduce((sum, ns) => sum + ns, 0) / times.length
    const squares = times.reduce((sum, ns) => sum + (ns - mean) ** 2, 0)
    return { mean, error: squares / (times.length - 1) / times.length }
  })
  return (one!.mean - other!.mean) / Math.sqrt(one!.error + other!.error)
}

/** The smallest of several tries: a leak would show in every one of them. */
function leakOf(check: Check, secret: string): number {
  let least = Number.POSITIVE_INFINITY
  for (let i = 0; i < NUM_TRIES && least > MAX_T; i++) least = Math.min(least, Math.abs(tOf(check, secret)))
  return least
}

test('the time for a wrong key does not depend on how much of it is right', async () => {
  const own = randomSecret()
  const path = join(temporaryFolder(), 'keys.json')
  const plain = { name: 'goose', role: 'user', expiresAt: null, limits: NO_LIMITS } as const
  const named = await changeKeys(path, (keys) => addKey(keys, plain, 0))
  const auth = createAuth([own, randomSecret()], new KeyRing(path))
  const header: Check = (secret) => auth.check(`Bearer ${secret}`)
  const password: Check = (secret) => auth.checkPassword(secret)
  expect(() => header(named.secret)).not.toThrow()
  const leaks = [header, password].flatMap((check) => [own, named.secret].map((secret) => leakOf(check, secret)))
  if (process.env.SKEIN_SLOW === '1') process.stdout.write(`key timing, |t|: ${leaks.join(' ')}\n`)
  for (const leak of leaks) expect(leak).toBeLessThan(MAX_T)
})

test('the test would notice a comparison that ends at the first difference', () => {
  // Long keys, so that few samples show the difference on a busy machine.
  const secret = flat(Array.from({ length: 40 }, randomSecret).join(''))
  const check: Check = (presented) => {
    for (let i = 0; i < secret.length; i++)
      if (presented.charCodeAt(i) !== secret.charCodeAt(i))
        throw new SkeinError('unauthorized', 'the API key is not valid on this server')
  }
  expect(leakOf(check, secret)).toBeGreaterThan(MAX_T)
})
