/** What a socket is told that never became a request: too large a header, too slow, or not HTTP. */
import type { Socket } from 'node:net'
import { renderOpenAiError } from '../../api/openai/errors.ts'
import { SkeinError } from '../../errors.ts'

const TABLE: Readonly<Record<string, readonly [status: string, message: string]>> = {
  ERR_HTTP_REQUEST_TIMEOUT: ['408 Request Timeout', 'the request took too long to arrive'],
  HPE_HEADER_OVERFLOW: [
    '431 Request Header Fields Too Large',
    'the headers are larger than this server accepts',
  ],
}

export function answerClientError(error: Error & { code?: string }, socket: Socket): void {
  if (error.code === 'ECONNRESET' || socket.destroyed) return
  const [status, message] = TABLE[error.code ?? ''] ?? ['400 Bad Request', 'not a valid request']
  const body = JSON.stringify(renderOpenAiError(new SkeinError('invalid_request', message)))
  const head = `HTTP/1.1 ${status}\r\ncontent-type: application/json\r\nconnection: close\r\n`
  if (socket.writable) {
    socket.write(`${head}content-length: ${Buffer.byteLength(body)}\r\n\r\n${body}`)
  }
  socket.destroy()
}
