// A model in this process, without a server: two texts at once, in one batch.
import { load } from 'skein'

const llm = await load(process.argv[2] ?? 'models/demo.pth')
const answerTo = async (question) => {
  let answer = ''
  const prompt = `User: ${question}\n\nAssistant:`
  const options = { temperature: 0, maxTokens: 100, stop: ['\n\nUser:'] }
  for await (const text of llm.generate(prompt, options)) answer += text
  return answer.trim()
}
const questions = ['What is the capital of France?', 'What is the capital of Japan?']
for (const answer of await Promise.all(questions.map(answerTo))) console.log(answer)
await llm.close()
