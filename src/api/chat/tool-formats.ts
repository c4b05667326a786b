/** The ways to tell tools that a server's setting chooses from, by name. */
import type { ToolTemplate } from '../../engine/messages.ts'
import type { ServedModel } from '../models.ts'
import { MARKDOWN_TOOLS } from './markdown-tools.ts'
import { G1_TOOLS, type ToolFormat } from './tool-format.ts'

const TOOL_FORMATS: Readonly<Record<ToolTemplate, ToolFormat>> = {
  g1: G1_TOOLS,
  'vllm-rwkv': MARKDOWN_TOOLS,
}

export function toolFormatOf({ client }: ServedModel): ToolFormat {
  return TOOL_FORMATS[client.info.toolTemplate ?? 'g1']
}
