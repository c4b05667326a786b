import fc from 'fast-check'
import { expect, test } from 'vitest'
import { JsonScan } from '../../../src/gateway/body/json-scan.ts'

const BOUNDS = { jsonDepth: 64, jsonFields: 1e9, jsonNodes: 1e9, jsonValues: 1e9 }

/** Splits the text at `cuts`. */
function scanned(text: string, cuts: readonly number[]): JsonScan {
  const bytes = Buffer.from(text)
  const scan = new JsonScan(BOUNDS)
  const at = [0, ...cuts.map((cut) => cut % (bytes.length + 1)).sort((a, b) => a - b), bytes.length]
  for (let i = 1; i < at.length; i++) scan.write(bytes.subarray(at[i - 1]!, at[i]!))
  return scan
}

function nodesOf(value: unknown): number {
  if (typeof value === 'string') return 1
  if (typeof value !== 'object' || value === null) return 0
  const names = Array.isArray(value) ? 0 : Object.keys(value).length
  return 1 + names + Object.values(value).reduce((sum: number, one) => sum + nodesOf(one), 0)
}

const part = fc.oneof(
  fc.string({ unit: 'grapheme', maxLength: 80 }),
  fc.constantFrom('password', '"password":', '\\', '\\"', 'x'.repeat(100)),
)
// Long plain stretches with escapes between them, too.
const text = fc.oneof(
  part,
  fc.array(part, { maxLength: 6 }).map((parts) => parts.join('')),
)
const values = fc.letrec((tie) => ({
  value: fc.oneof(
    { maxDepth: 4 },
    text,
    fc.integer(),
    fc.constant(null),
    fc.array(tie('value')),
    fc.dictionary(text, tie('value')),
  ),
})).value
const bodies = fc.dictionary(fc.oneof(text, fc.constant('password')), values)
const cuts = fc.array(fc.nat(), { maxLength: 8 })

test('it counts the values that a parser would make, and finds the same key, however the bytes are cut', () => {
  fc.assert(
    fc.property(bodies, cuts, fc.constantFrom(0, 2), (body, at, indent) => {
      const scan = scanned(JSON.stringify(body, null, indent), at)
      const { password } = body as { password?: unknown }
      expect(scan.nodes).toBe(nodesOf(body))
      expect(scan.password).toBe(typeof password === 'string' ? password : null)
    }),
    { numRuns: 500 },
  )
})

test('every limit is enforced exactly', () => {
  const write = (json: string, bounds: object) => new JsonScan({ ...BOUNDS, ...bounds }).write(Buffer.from(json))
  expect(() => write('{"a":1,"b":2}', { jsonFields: 2 })).not.toThrow()
  expect(() => write('{"a":1,"b":2,"c"', { jsonFields: 2 })).not.toThrow()
  expect(() => write('{"a":1,"b":2,"c":', { jsonFields: 2 })).toThrow('more than 2 fields')
  expect(() => write('{"a":{"b":1,"c":2}}', { jsonFields: 1 })).not.toThrow()
  expect(() => write('[{},[],"', { jsonNodes: 3 })).toThrow('more than 3 objects')
  expect(() => write('[1,2,3', { jsonValues: 1 })).toThrow('more than 1 values')
  expect(() => write('[[["[[[[', { jsonDepth: 3 })).not.toThrow()
  expect(() => write('[[[[', { jsonDepth: 3 })).toThrow('deeper than 3')
})
