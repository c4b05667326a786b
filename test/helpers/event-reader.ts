/**
 * Yields server-sent events of a reply as they arrive: the type (default `message`) and the data, parsed if it is JSON.
 */
export async function* readEvents(reply: Response): AsyncGenerator<{ readonly type: string; readonly data: unknown }> {
  const decoder = new TextDecoder()
  let rest = ''
  // The stream of a fetch reply can be iterated in Node.
  for await (const chunk of reply.body as unknown as AsyncIterable<Uint8Array>) {
    const blocks = (rest + decoder.decode(chunk, { stream: true })).split('\n\n')
    rest = blocks.pop()!
    for (const block of blocks) {
      const type = /^event: (.*)$/m.exec(block)?.[1] ?? 'message'
      const data = /^data: (.*)$/m.exec(block)?.[1]
      if (data !== undefined) yield { type, data: data.startsWith('{') ? JSON.parse(data) : data }
    }
  }
}
