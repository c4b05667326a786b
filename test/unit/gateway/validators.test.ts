import { expect, test } from 'vitest'
import { sharedValidators } from '../../../src/gateway/http/validators.ts'

const routeOf = (maximum: number) => ({
  method: 'POST',
  url: '/n',
  httpPart: 'body',
  schema: { type: 'object', properties: { n: { type: 'integer', maximum } } },
})

const compilerOf = (coerceTypes: boolean) =>
  sharedValidators({}, { customOptions: { coerceTypes } })

test('a route of another app has the validator of the first, unless its bounds or settings differ', () => {
  const strict = compilerOf(false)
  const validate = strict(routeOf(7))
  expect(compilerOf(false)(routeOf(7))).toBe(validate)
  const answers = [validate, compilerOf(true)(routeOf(7)), strict(routeOf(8))].map((one) => [
    one({ n: 8 }),
    one({ n: '7' }),
  ])
  expect(answers).toEqual([
    [false, false],
    [false, true],
    [true, false],
  ])
})
