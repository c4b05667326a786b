import { join } from 'node:path'
import { describe, expect, test } from 'vitest'
import { hosted } from './hosted.ts'
import { postTo } from './kit.ts'

describe('/switch-model of RWKV-Runner', () => {
  test('serves another model instead, and only once that is deployed', async () => {
    const { app, folder, names, handles } = hosted()
    const turn = (model: string, more = {}) => postTo(app, '/switch-model', { model, strategy: 'cuda fp16', ...more })
    expect((await turn(join(folder, 'a.pth'))).statusCode).toBe(200)
    const reply = await turn('b.pth', { strategy: 'cuda fp16i8 *10 -> cpu fp32', deploy: 'true' })
    expect(reply.statusCode).toBe(200)
    expect(reply.body).toBe('"success"')
    expect(reply.headers['content-type']).toContain('application/json')
    expect(await names()).toEqual(['b'])
    expect(handles.map(({ launch }) => launch.quant)).toEqual(['f16', 'int8'])
    expect((await turn('a.pth')).statusCode).toBe(403)
    expect(await names()).toEqual(['b'])
  })

  test('two at once run one after the other, and the one that deploys comes last', async () => {
    const { app, names, next, handles } = hosted()
    next.isHeld = true
    const turn = (model: string, deploy = false) =>
      postTo(app, '/switch-model', { model, strategy: 'cuda fp16', deploy })
    const replies = [turn('a.pth'), turn('b.pth', true), turn('a.pth')]
    for (let i = 0; i < 2; i++) {
      await expect.poll(() => handles.length).toBe(i + 1)
      handles[i]!.ready.resolve()
    }
    expect((await Promise.all(replies)).map(({ statusCode }) => statusCode)).toEqual([200, 200, 403])
    expect(await names()).toEqual(['b'])
  })

  test.each([
    [{ model: 'none', strategy: 'cuda fp16', deploy: 'true' }, 404],
    [{ model: 'a.pth', strategy: 'cuda fp4' }, 400],
    [{ model: 'a.pth', strategy: 'cuda fp16', tokenizer: 'x' }, 400],
    [{ model: 'a.pth' }, 400],
  ])('%o is refused with %i and deploys nothing', async (body, status) => {
    const { app, handles } = hosted()
    expect((await postTo(app, '/switch-model', body)).statusCode).toBe(status)
    expect(handles).toEqual([])
    const next = { model: 'a.pth', strategy: 'cuda fp16' }
    expect((await postTo(app, '/switch-model', next)).statusCode).toBe(200)
  })

  test('/status has its figures, /update-config is refused by name', async () => {
    const { app } = hosted()
    const status = async () => (await app.inject('/status')).json()
    expect(await status()).toEqual({ status: 1, pid: 0, device_name: '' })
    await postTo(app, '/switch-model', { model: 'a.pth', strategy: 'cuda fp16' })
    expect(await status()).toMatchObject({ status: 3, device_name: expect.stringMatching(/./) })
    const reply = await postTo(app, '/update-config', { temperature: 1 })
    expect(reply.statusCode).toBe(400)
    expect(reply.body).toContain('send them with each request')
  })
})
