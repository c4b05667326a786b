/**
 * Start states and mixtures of running models, with scripted workers: either all workers of a model have a state, or
 * none.
 */
import { basename, join } from 'node:path'
import { describe, expect, test } from 'vitest'
import { DEFAULT_SPEC } from '../../src/gateway/fleet/launch.ts'
import { type FakeWorker, hosted, managementOf, SEED } from './hosted.ts'
import { postTo } from './kit.ts'

describe('start states of a running model', () => {
  test('start states are added and removed in the running worker', async () => {
    const { folder, app, names, handles } = hosted()
    const add = (state_filename: string) =>
      postTo(app, '/loadstatemodel', { state_filename, state_viewname: 'State Test' })
    const early = await add('state.pth')
    expect([early.statusCode, early.json().detail]).toEqual([503, expect.stringContaining('no model is loaded')])
    await postTo(app, '/loadmodel', SEED)
    const [{ client }] = handles as [FakeWorker]
    expect((await add('state.pth')).json()).toEqual({ status: 'success' })
    const withState = `${SEED.model_viewname} State Test`
    expect(await names()).toEqual([SEED.model_viewname, withState])
    const chat = { messages: [{ role: 'user', content: 'Hi' }], model: withState }
    expect((await postTo(app, '/chat/completions', chat)).statusCode).toBe(200)
    expect(client!.requests.at(-1)).toMatchObject({ startState: 'State Test' })
    handles[0]!.refuses = (path) => path.endsWith('a.pth')
    const wrong = await add('a.pth')
    expect(wrong.statusCode).toBe(500)
    expect(wrong.json().detail).toContain('wrong size')
    const states = [{ name: 'State Test', path: join(folder, 'state.pth') }]
    expect(handles[0]!.launch).toMatchObject({ startStates: states, spec: { states } })
    // Another file under the same name.
    expect((await add('b.pth')).statusCode).toBe(200)
    expect(await names()).toEqual([SEED.model_viewname, withState])
    expect([...client!.states.values()]).toEqual([join(folder, 'b.pth')])
    expect(handles[0]!.launch.startStates.map(({ path }) => path)).toEqual([join(folder, 'b.pth')])
    const removed = await postTo(app, '/removestatemodel', { dummy: 'dummy' })
    expect(removed.json()).toEqual({ status: 'success' })
    expect(await names()).toEqual([SEED.model_viewname])
    expect((await app.inject({ method: 'POST', url: '/removestatemodel' })).statusCode).toBe(400)
    expect(handles).toHaveLength(1)
    expect(handles[0]).toMatchObject({ client, launch: { startStates: [], spec: { states: [] } } })
  })

  test('a state without a model name belongs to the last loaded model', async () => {
    const { app, names } = hosted()
    const give = (state_viewname: string) =>
      postTo(app, '/loadstatemodel', { state_filename: 'state.pth', state_viewname })
    await postTo(app, '/loadmodel', { model_filename: 'a.pth', model_viewname: 'a' })
    await postTo(app, '/loadmodel', { model_filename: 'b.pth', model_viewname: 'b' })
    expect((await give('one')).statusCode).toBe(200)
    expect(await names()).toEqual(['a', 'b', 'b one'])
    // The same state again changes nothing, but names the model.
    await postTo(app, '/loadmodel', { model_filename: 'a.pth', model_viewname: 'a' })
    expect((await give('two')).statusCode).toBe(200)
    expect(await names()).toEqual(['a', 'a two', 'b', 'b one'])
    const mixed = { state_filenames: ['state.pth'], state_viewname: 'mix' }
    expect((await postTo(app, '/mrss_loadstatemodel', mixed)).statusCode).toBe(200)
    expect(await names()).toContain('a mix')
    // A removed state belongs to no model.
    await postTo(app, '/removemodel', { model_viewname: 'a' })
    await postTo(app, '/loadmodel', { model_filename: 'a.pth', model_viewname: 'c' })
    await postTo(app, '/removemodel', { model_viewname: 'c' })
    await expect.poll(names).toEqual(['b', 'b one'])
    expect((await give('three')).statusCode).toBe(200)
    expect(await names()).toEqual(['b', 'b one', 'b three'])
  })

  test('start states are in all replicas or in none', async () => {
    const { app, fleet, handles } = hosted()
    await postTo(app, '/loadmodel', SEED)
    await fleet.create(handles[0]!.launch).start()
    const add = (state_filename: string, state_viewname: string) =>
      postTo(app, '/loadstatemodel', { state_filename, state_viewname })
    const statesOf = ({ client }: FakeWorker) => [...client!.states].map(([name, path]) => [name, basename(path)])
    expect((await add('state.pth', 'one')).statusCode).toBe(200)
    handles[1]!.refuses = (path) => !path.endsWith('state.pth')
    for (const name of ['one', 'two']) {
      expect((await add('b.pth', name)).statusCode).toBe(500)
      expect(handles.map(statesOf)).toEqual([[['one', 'state.pth']], [['one', 'state.pth']]])
      expect(handles.map(({ launch }) => launch.startStates.length)).toEqual([1, 1])
    }
    expect((await add('state.pth', 'two')).statusCode).toBe(200)
    expect((await postTo(app, '/removestatemodel', {})).statusCode).toBe(200)
    expect(handles.map(statesOf)).toEqual([[], []])
  })

  test('a worker that returns while start states change has them too', async () => {
    const { app, fleet, handles, next, names } = hosted()
    await postTo(app, '/loadmodel', SEED)
    next.isHeld = true
    const second = fleet.create(handles[0]!.launch).start()
    const adding = postTo(app, '/loadstatemodel', { state_filename: 'state.pth', state_viewname: 'late' })
    const [first, other] = handles as [FakeWorker, FakeWorker]
    await expect.poll(() => first.client!.states.has('late')).toBe(true)
    // Its next process starts before the change is made.
    first.crash()
    first.begin()
    expect(first.client!.states.has('late')).toBe(false)
    other.ready.resolve()
    await second
    expect((await adding).statusCode).toBe(200)
    expect(handles.map(({ client }) => client!.states.has('late'))).toEqual([true, true])
    expect(await names()).toContain(`${SEED.model_viewname} late`)
    for (const handle of handles) {
      handle.crash()
      handle.begin()
      expect(handle.client!.states.has('late')).toBe(true)
    }
  })

  test('a start state is refused if no worker can check that it fits', async () => {
    const { app, handles, next } = hosted()
    await postTo(app, '/loadmodel', SEED)
    next.isHeld = true
    Object.assign(handles[0]!, { state: 'failed', client: null })
    const state = { state_filename: 'state.pth', state_viewname: 'x' }
    expect((await postTo(app, '/loadstatemodel', state)).statusCode).toBe(503)
    expect(handles[0]!.launch.startStates).toEqual([])
  })

  test('a mixture is loaded as a whole, and replaces the one before', async () => {
    const { app, handles, names, say } = hosted()
    await postTo(app, '/loadmodel', SEED)
    const load = (...state_filenames: string[]) =>
      postTo(app, '/mrss_loadstatemodel', { state_viewname: 'mix', state_filenames })
    const namesOf = (...states: string[]) => [
      SEED.model_viewname,
      ...states.map((state) => `${SEED.model_viewname} ${state}`),
    ]
    handles[0]!.refuses = (path) => path.endsWith('b.pth')
    expect((await load('a.pth', 'b.pth')).statusCode).toBe(500)
    expect(await names()).toEqual(namesOf())
    // The worker has 16 slots.
    const wide = await load(...Array.from({ length: 17 }, () => 'a.pth'))
    expect([wide.statusCode, wide.json().detail]).toEqual([
      413,
      expect.stringContaining('17 states takes as many slots, and the model has 16'),
    ])
    expect(await names()).toEqual(namesOf())
    expect((await load('a.pth', 'state.pth')).statusCode).toBe(200)
    expect(await names()).toEqual(namesOf('mix 1', 'mix 2', 'mix'))
    expect((await load('state.pth')).statusCode).toBe(200)
    expect(await names()).toEqual(namesOf('mix 1', 'mix'))
    expect(handles).toHaveLength(1)
    const mixed = `${SEED.model_viewname} mix`
    expect((await say(mixed)).choices).toHaveLength(1)
    const described = (url: string) => app.inject({ url: encodeURI(url) })
    const listed = (await described('/v1/models')).json().data.map(({ id }: { id: string }) => id)
    const atNames = ['@mix 1', '@mix'].map((rest) => SEED.model_viewname + rest)
    expect(listed).toEqual([SEED.model_viewname, ...atNames])
    for (const name of [...listed, mixed, `${SEED.model_viewname} mix 1`, 'rwkv', 'rwkv-7']) {
      const reply = await described(`/v1/models/${name}`)
      expect(reply.statusCode, name).toBe(200)
      expect(reply.json()).toMatchObject({ object: 'model', state: 'ready', num_slots: 16 })
    }
    expect((await described(`/v1/models/${mixed} 9`)).statusCode).toBe(404)

    // Adding the same states again does not affect them.
    expect((await postTo(app, '/loadmodel', SEED)).statusCode).toBe(200)
    expect(handles).toHaveLength(1)
    expect(await names()).toEqual(namesOf('mix 1', 'mix'))

    // A new model of that name has none of them.
    await postTo(app, '/loadmodel', { ...SEED, model_filename: 'b.pth' })
    expect(handles).toHaveLength(2)
    expect(await names()).toEqual(namesOf())
    expect((await say(mixed)).error.code).toBe('model_not_found')
  })

  test('the sampling of a mixture is the default on every route', async () => {
    const { app, handles } = hosted()
    await postTo(app, '/loadmodel', SEED)
    const mixture = { state_viewname: 'mix', state_filenames: ['a.pth'] }
    const defaults = { default_temperature: 0.25, default_top_p: 0.75 }
    await postTo(app, '/mrss_loadstatemodel', { ...mixture, ...defaults })
    const messages = [{ role: 'user', content: 'Hi' }]
    const model = `${SEED.model_viewname} mix`
    for (const [path, body] of [
      ['/chat/completions', { messages }],
      ['/v1/chat/completions', { messages }],
      ['/v1/chat/completions', { contents: ['Hi'] }],
      ['/v1/completions', { prompt: 'Hi' }],
    ] as const) {
      const last = () => handles[0]!.client!.requests.at(-1)!.sampling
      await postTo(app, path, { ...body, model })
      expect(last(), path).toMatchObject({ temperature: 0.25, topP: 0.75 })
      await postTo(app, path, { ...body, model, temperature: 0.5, top_p: 1 })
      expect(last(), path).toMatchObject({ temperature: 0.5, topP: 1 })
    }
    const echo = { model, prompt: 'Hi', echo: true }
    expect((await postTo(app, '/v1/completions', echo)).statusCode).toBe(200)
    const scored = await postTo(app, '/v1/completions', { ...echo, logprobs: 1 })
    expect([scored.statusCode, scored.json().error.param]).toEqual([400, 'echo'])
  })

  test('states and mixtures that would conflict are refused, or replaced by name', async () => {
    const { app, handles, names, say } = hosted()
    await postTo(app, '/loadmodel', SEED)
    const state = (state_viewname: string, state_filename = 'state.pth') =>
      postTo(app, '/loadstatemodel', { state_viewname, state_filename })
    const mix = (state_viewname: string, ...state_filenames: string[]) =>
      postTo(app, '/mrss_loadstatemodel', { state_viewname, state_filenames })
    const files = () => [...handles[0]!.client!.states].map(([name, path]) => [name, basename(path)])
    const is = async (reply: ReturnType<typeof state>, status: number) => {
      const { statusCode, body } = await reply
      expect(statusCode, body).toBe(status)
    }
    // The name of a part is another state, or a mixture.
    await is(state('V 1'), 200)
    await is(mix('V', 'a.pth', 'b.pth'), 409)
    expect(files()).toEqual([['V 1', 'state.pth']])
    await is(mix('W 1', 'a.pth'), 200)
    await is(mix('W', 'b.pth'), 409)
    // Nothing can replace a part.
    await is(state('W 1 1'), 409)
    await is(mix('W 1 1', 'b.pth'), 409)
    expect(files()).toEqual([
      ['V 1', 'state.pth'],
      ['W 1 1', 'a.pth'],
    ])
    // Of two with the same name only the last remains.
    await is(state('W 1'), 200)
    expect(files()).toEqual([
      ['V 1', 'state.pth'],
      ['W 1', 'state.pth'],
    ])
    await is(mix('V 1', 'a.pth'), 200)
    await is(mix('V 1', 'b.pth'), 200)
    const named = ['W 1', 'V 1 1', 'V 1'].map((name) => `${SEED.model_viewname} ${name}`)
    expect(await names()).toEqual([SEED.model_viewname, ...named])
    expect(files()).toEqual([
      ['W 1', 'state.pth'],
      ['V 1 1', 'b.pth'],
    ])
    // The name of a model has precedence over both.
    const whole = `${SEED.model_viewname} V 1`
    expect((await say(whole)).choices[0].text).toBe('0.pth')
    await postTo(app, '/loadmodel', { model_filename: 'a.pth', model_viewname: whole })
    expect((await say(whole)).choices[0].text).toBe('a.pth')
  })

  test('a new replica gets the start states of its model', async () => {
    const { app, fleet, handles } = hosted()
    await postTo(app, '/loadmodel', SEED)
    const [worker] = fleet.workers
    const management = managementOf(fleet, (spec) => ({ ...handles[0]!.launch, startStates: spec.states, spec }))
    const add = (state_viewname: string) =>
      postTo(app, '/loadstatemodel', { state_filename: 'state.pth', state_viewname })
    await add('one')
    await management.start(DEFAULT_SPEC)
    const namesOf = (at: number) => handles[at]!.launch.spec.states.map(({ name }) => name)
    expect(namesOf(1)).toEqual(['one'])
    await worker!.stop(0)
    await add('two')
    expect(namesOf(0)).toEqual(['one'])
    await management.restart(worker!.id)
    await expect.poll(() => handles.length).toBe(3)
    expect(namesOf(2)).toEqual(['one', 'two'])
    await management.close()
  })
})
