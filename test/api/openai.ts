/** The official client of OpenAI, unmodified, at an app that listens. */
import type { FastifyInstance } from 'fastify'
import OpenAI from 'openai'
import { urlOf } from './kit.ts'

export async function openAiOf(app: FastifyInstance, apiKey = 'x'): Promise<OpenAI> {
  return new OpenAI({ apiKey, baseURL: `${await urlOf(app)}/v1`, maxRetries: 0 })
}
