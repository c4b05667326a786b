/** Requests of rwkv_lightning name no model: with several models, the one called `rwkv7` answers. */
import { expect, test } from 'vitest'
import { hosted } from './hosted.ts'
import { postTo } from './kit.ts'

const contents = ['x']
const messages = [{ role: 'user', content: 'x' }]

test.each([
  ['/v1/chat/completions', { contents }],
  ['/v2/chat/completions', { contents }],
  ['/v3/chat/completions', { messages }],
  ['/big_batch/completions', { contents, stream: false }],
  ['/v1/batch/completions', { contents }],
  ['/FIM/v1/batch-FIM', { prefix: contents, suffix: contents }],
  ['/openai/v1/chat/completions', { messages }],
  ['/translate/v1/batch-translate', { source_lang: 'en', target_lang: 'fr', text_list: contents }],
])('%s', async (path, body) => {
  const { app } = hosted()
  const load = (file: string, model_viewname: string) =>
    postTo(app, '/loadmodel', { model_filename: file, model_viewname })
  const ask = (more = {}) => postTo(app, path, { ...body, ...more })
  await load('b.pth', 'other')
  // A single model needs no name.
  expect((await ask()).body).toContain('b.pth')
  await load('RWKV-x060.pth', 'third')
  expect((await ask()).statusCode).toBe(400)
  await load('a.pth', 'rwkv7')
  expect((await ask()).body).toContain('a.pth')
  expect((await ask({ model: '' })).body).toContain('a.pth')
  expect((await ask({ model: 'other' })).body).toContain('b.pth')
  // Our API and OpenAI's require a name.
  expect((await postTo(app, '/v1/chat/completions', { messages })).statusCode).toBe(400)
})
