// An agent: the tools of an MCP server, called by a model of a running server (npm start).
import { fileURLToPath } from 'node:url'
import { Client } from '@modelcontextprotocol/sdk/client/index.js'
import { StdioClientTransport } from '@modelcontextprotocol/sdk/client/stdio.js'
import OpenAI from 'openai'

const baseURL = `${process.env.SKEIN_URL ?? 'http://127.0.0.1:8000'}/v1`
const openai = new OpenAI({ baseURL, apiKey: process.env.SKEIN_API_KEY ?? 'none' })
const mcp = new Client({ name: 'agent', version: '1.0.0' })
const file = fileURLToPath(new URL('mcp-server.mjs', import.meta.url))
await mcp.connect(new StdioClientTransport({ command: process.execPath, args: [file] }))
const { tools: offered } = await mcp.listTools()
const tools = offered.map(({ name, description, inputSchema: parameters }) => {
  return { type: 'function', name, description, parameters }
})

const asked = { model: 'demo', temperature: 0, max_output_tokens: 100 }
const question = process.argv[2] ?? 'What is the weather in the capital of France?'
let reply = await openai.responses.create({ ...asked, input: question, tools }).catch((error) => {
  const isAway = error instanceof OpenAI.APIConnectionError
  const hint = isAway ? ' Is a server running? "npm start" or "npx skein serve" starts one.' : ''
  console.error(`${baseURL}: ${error.message}${hint}`)
  process.exit(1)
})
for (let step = 0; step < 5; step++) {
  const calls = reply.output.filter(({ type }) => type === 'function_call')
  if (calls.length === 0) break
  const input = []
  for (const { name, arguments: json, call_id } of calls) {
    const { content } = await mcp.callTool({ name, arguments: JSON.parse(json) })
    console.log(`${name}(${json}) = ${content[0].text}`)
    input.push({ type: 'function_call_output', call_id, output: content[0].text })
  }
  // Goes on from the state in which the call was written.
  reply = await openai.responses.create({ ...asked, input, tools, previous_response_id: reply.id })
}
console.log(reply.output_text)
await mcp.close()
