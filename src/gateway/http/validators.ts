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
  },
} as const

const build = AjvCompiler()
/** By a route's schema as text and what is asked of Ajv: each app has objects of its own for the same routes. */
const compiled = new Map<string, ReturnType<ReturnType<Build>>>()

/** Fastify's `buildValidator`. */
export const sharedValidators: Build = (externalSchemas, options) => {
  const compile = build(externalSchemas, options)
  const settings = JSON.stringify([externalSchemas, options])
  return (route) => {
    const key = settings + JSON.stringify(route)
    const known = compiled.get(key)
    if (known !== undefined) return known
    const validate = compile(route)
    compiled.set(key, validate)
    return validate
  }
}
