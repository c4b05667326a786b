import { expect, test } from 'vitest'
import { allDialects } from '../../../src/gateway/app.ts'
import { DEFAULT_LIMITS } from '../../../src/gateway/http/limits.ts'
import { AJV_OPTIONS, sharedValidators } from '../../../src/gateway/http/validators.ts'

const routeOf = (maximum: number) => ({
  method: 'POST',
  url: '/n',
  httpPart: 'body',
  schema: { type: 'object', properties: { n: { type: 'integer', maximum } } },
})

const compilerOf = (coerceTypes: boolean) => sharedValidators({}, { customOptions: { coerceTypes } })

test('a route of another app reuses the validator, unless its limits or settings differ', () => {
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

test('every schema of every dialect compiles; a server compiles them only when used', () => {
  // Servers skip checking the schemas themselves.
  const compile = sharedValidators({}, { customOptions: { ...AJV_OPTIONS.customOptions, validateSchema: true } })
  const routes = allDialects(DEFAULT_LIMITS).flatMap((dialect) => dialect.routes)
  const bodies = routes.flatMap(({ body }) => (body === null ? [] : [body]))
  expect(bodies.length).toBeGreaterThan(50)
  for (const schema of bodies) {
    const validate = compile({ ...routeOf(7), schema })
    expect([validate(3), validate.errors?.length]).toEqual([false, 1])
  }
})
