// A model in this process, without a server: a stream, a session with a fork, a tool, a schema.
import { load } from 'skein'

const llm = await load(process.argv[2] ?? 'demo')
const greedy = { temperature: 0, maxTokens: 100 }

for await (const piece of llm.chat('What is the capital of France?', greedy)) {
  if (piece.type === 'text') process.stdout.write(piece.text)
}
process.stdout.write('\n')

// Both at once, in one batch; each conversation's state is kept, so only what is new is read.
const ask = (session, question) => llm.answer(question, { ...greedy, session })
await Promise.all([ask('a', 'What is the capital of Japan?'), ask('b', 'What is the capital of Italy?')])
await llm.sessions.fork('a', 'c')
const { text, cachedTokens } = await ask('c', 'What is the capital of Spain?')
console.log(`${text} (${cachedTokens} tokens were in the state)`)

const city = {
  type: 'object',
  properties: { city: { enum: ['Paris', 'Rome'] } },
  required: ['city'],
  additionalProperties: false,
}
const weather = { name: 'weather', description: 'The weather of a city', parameters: city }
const { calls } = await llm.answer('How is the weather in Paris?', {
  ...greedy,
  tools: [weather],
  toolChoice: 'required',
})
console.log(calls[0].name, JSON.parse(calls[0].arguments))

const held = await llm.answer('What is the capital of France?', { ...greedy, schema: city })
console.log(JSON.parse(held.text))
await llm.close()
