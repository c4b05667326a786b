// A server of the Model Context Protocol with one tool, for mcp-agent.mjs.
import { Server } from '@modelcontextprotocol/sdk/server/index.js'
import { StdioServerTransport } from '@modelcontextprotocol/sdk/server/stdio.js'
import { CallToolRequestSchema, ListToolsRequestSchema } from '@modelcontextprotocol/sdk/types.js'

const number = { type: 'integer', minimum: 0, maximum: 99 }
const add = {
  name: 'add',
  description: 'Adds two numbers',
  inputSchema: { type: 'object', properties: { a: number, b: number }, required: ['a', 'b'] },
}
const server = new Server({ name: 'sums', version: '1.0.0' }, { capabilities: { tools: {} } })
server.setRequestHandler(ListToolsRequestSchema, () => ({ tools: [add] }))
server.setRequestHandler(CallToolRequestSchema, ({ params }) => ({
  content: [{ type: 'text', text: String(params.arguments.a + params.arguments.b) }],
}))
await server.connect(new StdioServerTransport())
