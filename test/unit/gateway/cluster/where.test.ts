import { expect, test } from 'vitest'
import { allDialects } from '../../../../src/gateway/app.ts'
import { askedOf, wayOf } from '../../../../src/gateway/cluster/where.ts'
import { DEFAULT_LIMITS } from '../../../../src/gateway/http/limits.ts'

const ROUTES = allDialects(DEFAULT_LIMITS).flatMap(({ routes }) => routes)
const wayTo = (method: string, path: string) =>
  wayOf(ROUTES.find((route) => route.method === method && route.path === path)!)

test.each([
  ['GET', '/v1/models', 'here'],
  ['GET', '/api/tags', 'here'],
  ['POST', '/v1/chat/completions', 'node'],
  ['POST', '/api/chat', 'node'],
  ['POST', '/v1/messages/count_tokens', 'node'],
  ['GET', '/v1/sessions', 'node'],
  ['POST', '/v1/sessions/:id/import', 'node'],
  ['DELETE', '/v1/requests/:id', 'every'],
  ['POST', '/v1/server/stop', 'every'],
  ['POST', '/loadmodel', 'operators'],
] as const)('%s %s goes to: %s', (method, path, way) => {
  expect(wayTo(method, path)).toBe(way)
})

const asked = (body: unknown, path = '/v1/chat/completions', params = {}) => askedOf(body, params, {}, path)

test('sessions are named by a path, a field or an object', () => {
  expect(asked(undefined, '/v1/sessions/:id/fork', { id: 'p' }).session).toBe('p')
  expect(asked({ session_id: 'f' }).session).toBe('f')
  expect(asked({ session: { id: 'o' } }).session).toBe('o')
  expect(asked({ session: null }).session).toBeNull()
  expect(asked('not an object')).toEqual({ model: null, session: null, beginning: '' })
})

test('a conversation stays on the node where it began, whatever was said since', () => {
  const user = (content: string) => ({ role: 'user', content })
  const begun = asked({ system: 'Be brief.', messages: [user('Hi')] }).beginning
  const later = asked({
    system: 'Be brief.',
    messages: [user('Hi'), { role: 'assistant', content: 'Hello.' }, user('And?')],
  }).beginning
  expect(later).toBe(begun)
  expect(asked({ messages: [user('Hi')] }).beginning).not.toBe(begun)
})

test('only the beginning of a prompt matters, in any form', () => {
  const long = 'goose '.repeat(1000)
  expect(asked({ prompt: `${long}a` }).beginning).toBe(asked({ prompt: `${long}b` }).beginning)
  expect(asked({ prompt: [1, 2, 3] }).beginning).not.toBe(asked({ prompt: [1, 2, 4] }).beginning)
  expect(asked({ contents: ['x'] }).beginning).toBe('x')
})
