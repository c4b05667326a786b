/** ai00's /api/oai/*: the routes of OpenAI's dialect at other paths. Its own fields beside OpenAI's are refused. */
import { checkFields } from '../fields.ts'
import type { RequestLimits } from '../limits.ts'
import type { LiveCalls } from '../live-calls.ts'
import { openAiDialect } from '../openai/dialect.ts'
import type { Dialect, Route } from '../route.ts'

const PATHS = ['/v1/models', '/v1/chat/completions', '/v1/completions', '/v1/embeddings']

/** Field → the values at which it means nothing. */
const REFUSED: Readonly<Record<string, readonly unknown[]>> = {
  bnf_schema: [''],
  names: [{}],
  sampler_override: [],
  template: [''],
}
const INSTEAD = {
  bnf_schema: 'send `grammar` or `json_schema` to /completion',
  sampler_override: 'send temperature, top_p and the penalties as fields of the body',
}

export function ai00Dialect(limits: RequestLimits, live: LiveCalls): Dialect {
  const openAi = openAiDialect(limits, live)
  const routes = openAi.routes.filter(({ path }) => PATHS.includes(path))
  return {
    ...openAi,
    name: 'ai00',
    about: 'ai00',
    routes: ['/api/oai', '/api/oai/v1'].flatMap((base) =>
      routes.map((route) => movedTo(`${base}${route.path.slice('/v1'.length)}`, route)),
    ),
  }
}

function movedTo(path: string, { access: _access, ...route }: Route): Route {
  return {
    ...route,
    path,
    handle: (call) => {
      const given = Object.entries((call.body ?? {}) as object) // the schema wants an object
      const own = Object.fromEntries(given.filter(([name]) => Object.hasOwn(REFUSED, name)))
      checkFields(own, { read: [], harmless: [], refused: REFUSED, instead: INSTEAD }, call.warn)
      return route.handle(call)
    },
  }
}
