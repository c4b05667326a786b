/**
 * Compiles schemas once for all apps of this process: a worker's own gateway has the server's routes, and compiling
 * them again would hold up every stream for a quarter of a second. It knows no route.
 */
import { AjvCompiler } from '@fastify/ajv-compiler'
import { turns } from '../../threads/turns.ts'

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
/** The schemas of chats. The others take 10 to 30 ms at their first request. */
const NUM_AHEAD = 2

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

/** Compiles the largest schemas soon after the start: the compiler is slowest at first, and requests would wait. */
export function compileAhead(): void {
  setTimeout(async () => {
    const largest = [...uncompiled].sort(([, a], [, b]) => b - a)
    // Streams continue between two of them.
    for (const [compile] of largest.slice(0, NUM_AHEAD)) await turns.do(compile)
  }, FIRST_MS).unref()
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
