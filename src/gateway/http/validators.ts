/**
 * Schemas compiled once for all apps of this process: a worker's own gateway has the routes of the server's, and compiling
 * them anew would hold every stream for a quarter of a second. Knows no route.
 */
import { AjvCompiler } from '@fastify/ajv-compiler'

type Build = ReturnType<typeof AjvCompiler>

/** A wire value is right or refused, never bent into shape. */
export const AJV_OPTIONS = {
  customOptions: {
    coerceTypes: false,
    removeAdditional: false,
    useDefaults: false,
    allowUnionTypes: true,
    verbose: true,
    // It takes two thirds of the time to compile, and what it makes is no faster.
    code: { optimize: false },
  },
} as const

const build = AjvCompiler()

type Validate = ReturnType<ReturnType<Build>>

/** By a schema as text and what is asked of Ajv: each app has objects of its own for the same routes, and several routes have the same. */
const known = new Map<string, Validate>()
/** What nobody has asked for yet, and the length of its schema. */
const uncompiled = new Map<() => unknown, number>()

/** Until then models are loaded, and the processor has enough to do. */
const FIRST_MS = 3000
/** Chats'. The rest take 10 to 30 ms, when a request comes for them. */
const NUM_AHEAD = 2

/** Fastify's `buildValidator`. A schema is compiled when it is first asked about something: all of them take a second at a start. */
export const sharedValidators: Build = (externalSchemas, options) => {
  const compile = build(externalSchemas, options)
  const settings = JSON.stringify([externalSchemas, options])
  return (route) => {
    // Fastify gives a route's definition where Ajv's types have a schema.
    const { schema } = route as unknown as { readonly schema: unknown }
    const key = settings + JSON.stringify(schema)
    const validate = known.get(key) ?? lazy(() => compile(route), key.length)
    known.set(key, validate)
    return validate
  }
}

/** The largest schemas, soon: compilers are slowest at first, and few requests should wait for that. */
export function compileAhead(): void {
  setTimeout(() => {
    const largest = [...uncompiled].sort(([, a], [, b]) => b - a)
    for (const [compile] of largest.slice(0, NUM_AHEAD)) compile()
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
  // Ajv leaves what was wrong at the function that found it.
  const validate = (data: unknown) => {
    const own = compile()
    const isValid = own(data)
    validate.errors = own.errors
    return isValid
  }
  validate.errors = undefined as Validate['errors']
  return validate as Validate
}
