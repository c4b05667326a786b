/** Routes by which Ollama's clients change models. The files of this server are its operator's; a pull of what is served is done. */
import Type from 'typebox'
import { SkeinError } from '../../errors.ts'
import { json, post, type Reply, type Route } from '../route.ts'
import { Maybe } from '../schema.ts'
import { nameOf } from './models.ts'
import { modelOf } from './names.ts'

const DONE = { status: 'success' }

/** Path → what to do instead. */
const REFUSED: Readonly<Record<string, string>> = {
  '/api/create': 'start the server with the file: skein serve FILE',
  '/api/copy':
    'give the model another name with --model-name or `aliases` of the configuration file',
  '/api/push': 'models are not published from here',
}

export function fileRoutes(): readonly Route[] {
  const refused = Object.entries(REFUSED).map(
    ([path, instead]): Route => ({
      method: 'POST',
      path,
      summary: 'Refused: Ollama has it, this server does not',
      body: null,
      handle: () => Promise.reject(notHere(path, instead)),
    }),
  )
  const path = '/api/delete'
  const remove: Route = {
    method: 'DELETE',
    path,
    summary: 'Refused: Ollama has it, this server does not',
    body: null,
    handle: () => Promise.reject(notHere(path, 'remove it where the server runs: skein rm NAME')),
  }
  return [pullRoute(), ...refused, remove]
}

function notHere(path: string, instead: string): SkeinError {
  return new SkeinError('unsupported_parameter', `this server has no ${path}; ${instead}`)
}

function pullRoute(): Route {
  const body = Type.Object({
    model: Maybe(Type.String()),
    name: Maybe(Type.String()),
    insecure: Maybe(Type.Boolean()),
    stream: Maybe(Type.Boolean()),
  })
  const summary = 'Succeeds for a model that is served; others are pulled where the server runs'
  return post('/api/pull', summary, body, async ({ models, body }): Promise<Reply> => {
    const name = nameOf(body)
    try {
      modelOf(models, name)
    } catch (thrown) {
      if (!(thrown instanceof SkeinError) || thrown.code !== 'not_found') throw thrown
      const message = `model "${name.slice(0, 100)}" is not served here; where the server runs, fetch it with: skein pull NAME`
      throw new SkeinError('not_found', message, { param: 'model' })
    }
    if (body.stream === false) return json(DONE)
    return { kind: 'events', events: only({ status: 'pulling manifest' }, DONE) }
  })
}

async function* only(...events: object[]): AsyncGenerator<object> {
  yield* events
}
