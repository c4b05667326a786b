// The official OpenAI client against a running server (npm start).
import OpenAI from 'openai'

const baseURL = `${process.env.SKEIN_URL ?? 'http://127.0.0.1:8000'}/v1`
const client = new OpenAI({ baseURL, apiKey: process.env.SKEIN_API_KEY ?? 'none' })
const asked = {
  model: 'demo',
  messages: [{ role: 'user', content: 'What is the capital of France?' }],
  temperature: 0,
  stream: true,
}
const stream = await client.chat.completions.create(asked).catch((error) => {
  const isAway = error instanceof OpenAI.APIConnectionError
  const hint = isAway ? ' Is a server running? "npm start" or "npx skein serve" starts one.' : ''
  console.error(`${baseURL}: ${error.message}${hint}`)
  process.exit(1)
})
for await (const chunk of stream) process.stdout.write(chunk.choices[0]?.delta.content ?? '')
console.log()
