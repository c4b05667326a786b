// A server of the Model Context Protocol with three tools, for mcp-agent.mjs. Its weather is made up.
import { Server } from '@modelcontextprotocol/sdk/server/index.js'
import { StdioServerTransport } from '@modelcontextprotocol/sdk/server/stdio.js'
import { CallToolRequestSchema, ListToolsRequestSchema } from '@modelcontextprotocol/sdk/types.js'

const CAPITALS = { France: 'Paris', Japan: 'Tokyo', Egypt: 'Cairo' }
const WEATHER = { Paris: 'sunny, 21 degrees', Tokyo: 'rainy, 16 degrees', Cairo: 'hot, 35 degrees' }
const number = { type: 'integer' }
const string = { type: 'string' }
const tools = [
  {
    name: 'add',
    description: 'Adds two numbers',
    inputSchema: { type: 'object', properties: { a: number, b: number }, required: ['a', 'b'] },
  },
  {
    name: 'capital_of',
    description: 'The capital of a country',
    inputSchema: { type: 'object', properties: { country: string }, required: ['country'] },
  },
  {
    name: 'get_weather',
    description: 'The weather of a city',
    inputSchema: { type: 'object', properties: { city: string }, required: ['city'] },
  },
]
const RUN = {
  add: ({ a, b }) => a + b,
  capital_of: ({ country }) => CAPITALS[country] ?? 'Error: unknown country',
  get_weather: ({ city }) => WEATHER[city] ?? 'Error: no such city',
}
const server = new Server({ name: 'world', version: '1.0.0' }, { capabilities: { tools: {} } })
server.setRequestHandler(ListToolsRequestSchema, () => ({ tools }))
server.setRequestHandler(CallToolRequestSchema, ({ params: { name, arguments: given } }) => ({
  content: [{ type: 'text', text: String(RUN[name](given)) }],
}))
await server.connect(new StdioServerTransport())
