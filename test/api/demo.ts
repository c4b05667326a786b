/** An app over the demo model in this process: real tokens, real states. The model is closed with it. */

import { existsSync } from 'node:fs'
import { type AppOptions, buildApp } from '../../src/gateway/app.ts'
import { createRegistry } from '../../src/gateway/routing/registry.ts'
import { DEMO_MODEL } from '../../src/host/checkpoints/model-path.ts'
import { type EngineChoice, load } from '../../src/index.ts'
import { localSource } from '../helpers/fake-engine.ts'

export const hasDemo = existsSync(DEMO_MODEL)

export async function serveDemo(options: Partial<AppOptions> = {}, more: Partial<EngineChoice> = {}) {
  const llm = await load({ model: DEMO_MODEL, slots: 32, ...more })
  const { client, tokenizer } = llm
  const models = createRegistry([{ id: 'demo', tokenizer, source: localSource(client) }])
  const app = buildApp({ models, keys: [], host: '127.0.0.1', version: '1', ...options })
  app.addHook('onClose', () => llm.close())
  return { app, llm }
}
