/**
 * Compiles schemas once for all apps of this process: a worker's own gateway has the server's routes, and compiling
 * them again would hold up every stream for a quarter of a second. It knows no route.
 */
import { AjvCompiler } from '@fastify/ajv-compiler'
import { whenIdle } from '../../threads/idle.ts'

type Build = ReturnType<typeof AjvCompiler>

/** A value on the wire is right or refused, never coerced. */
export const AJV_OPTIONS = {
  customOptions: {
    coerceTypes: false,
    removeAdditional: false,
    useDefaults: false,
    allowUnionTypes: true,
    verbose: true,
    // Checking the schemas themselves costs as much as compiling one of them. A test compiles all of them with the check.
    validateSchema: false,
    // Optimising takes two thirds of the compile time, and the code is no faster.
    code: { optimize: false },
  },
} as const

const build = AjvCompiler()

type Validate = ReturnType<ReturnType<Build>>

/** Validators by schema text and Ajv options. Several routes share a schema, and each app has objects of its own. */
const known = new Map<string, Validate>()
/** Schemas that have not been used yet, and their lengths. */
const uncompiled = new Map<() => unknown, number>()

/** Until then models are loading and the processor is busy. */
const FIRST_MS = 3000

/** Fastify's `buildValidator`. Schemas are compiled at their first use: compiling all delays the start by a second. */
export const sharedValidators: Build = (externalSchemas, options) => {
  const compile = build(externalSchemas, options)
  const settings = JSON.stringify([externalSchemas, options])
  return (route) => {
    // Fastify passes the route's definition where Ajv's types have a schema.
    const { schema } = route as unknown as { readonly schema: unknown }
    const key = settings + JSON.stringify(schema)
    const validate = known.get(key) ?? lazy(() => compile(route), key.length)
    known.set(key, validate)
    return validate
  }
}

/**
 * Compiles all schemas while there is little else to do, one at a time and the largest first. One that is needed earlier takes 10
 * to 50 ms of its first request, and of everybody's streams.
 */
export function compileAhead(): void {
  const largest = () => [...uncompiled].sort(([, a], [, b]) => b - a)[0]?.[0] ?? null
  setTimeout(() => whenIdle(largest), FIRST_MS).unref()
}

function lazy(make: () => Validate, length: number): Validate {
  let made: Validate | null = null
  const compile = () => {
    uncompiled.delete(compile)
    made ??= make()
    return made
  }
  uncompiled.set(compile, length)
  // Ajv leaves the errors on the function that found them.
  const validate = (data: unknown) => {
    const own = compile()
    const isValid = own(data)
    validate.errors = own.errors
    return isValid
  }
  validate.errors = undefined as Validate['errors']
  return validate as Validate
}
