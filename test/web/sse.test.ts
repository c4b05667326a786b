import fc from 'fast-check'
import { expect, test } from 'vitest'
import { readChunks, readEvents, SseParser } from '../../web/src/lib/sse.ts'

const all = (text: string) => new SseParser().push(text)

test('an event is its name and the lines of its data', () => {
  expect(all('event: sample\ndata: {"a":\ndata: 1}\n\n')).toEqual([{ event: 'sample', data: '{"a":\n1}' }])
})

test('comments, unknown fields and events without data are skipped', () => {
  expect(all(': still there\n\nid: 7\nretry: 5\n\nevent: x\n\ndata:two  \n\n')).toEqual([
    { event: 'message', data: 'two  ' },
  ])
})

test('all three kinds of line end', () => {
  expect(all('data: a\r\n\r\ndata: b\r\rdata: c\n\n').map(({ data }) => data)).toEqual(['a', 'b', 'c'])
})

test('an event without a blank line at its end is ignored', () => {
  expect(all('data: a\n\ndata: b\n')).toEqual([{ event: 'message', data: 'a' }])
})

test('pieces of any size give the same events', () => {
  const text = 'event: a\r\ndata: 1\r\n\r\n: c\ndata: 2\ndata: 3\n\nevent: ü\ndata: 语\r\r'
  const whole = all(`${text}\n`)
  expect(whole).toHaveLength(3)
  fc.assert(
    fc.property(fc.array(fc.nat(text.length), { maxLength: 12 }), (cuts) => {
      const parser = new SseParser()
      const places = [0, ...cuts.sort((a, b) => a - b), text.length]
      const pieces = places.slice(1).map((end, i) => text.slice(places[i], end))
      expect([...pieces, '\n'].flatMap((piece) => parser.push(piece))).toEqual(whole)
    }),
  )
})

test('characters cut in two by the network', async () => {
  const bytes = new TextEncoder().encode('data: 巴黎\n\n')
  const body = new ReadableStream<Uint8Array>({
    start(controller) {
      for (const byte of bytes) controller.enqueue(Uint8Array.of(byte))
      controller.close()
    },
  })
  const events = []
  for await (const event of readEvents(body)) events.push(event)
  expect(events).toEqual([{ event: 'message', data: '巴黎' }])
})

test('a broken connection is reported in our words, a requested end is not', async () => {
  const readFailing = async (error: unknown) => {
    const body = new ReadableStream<Uint8Array>({ pull: (controller) => controller.error(error) })
    for await (const _ of readEvents(body));
  }
  await expect(readFailing(new TypeError('network error'))).rejects.toThrow('broke off')
  const abort = new DOMException('stopped', 'AbortError')
  await expect(readFailing(abort)).rejects.toBe(abort)
})

/** What a stream's chunks are, how it was left, and its controller. */
async function chunksOf(text: string) {
  let controller: ReadableStreamDefaultController<Uint8Array> | undefined
  let wasCancelled = false
  const body = new ReadableStream<Uint8Array>({
    start(given) {
      controller = given
      controller.enqueue(new TextEncoder().encode(text))
    },
    cancel() {
      wasCancelled = true
    },
  })
  if (!text.includes('[DONE]')) controller!.close()
  const chunks = []
  for await (const chunk of readChunks(body)) chunks.push(chunk)
  controller!.close()
  return { chunks, wasCancelled }
}

test('a stream of objects ends with [DONE], and is read on to its end', async () => {
  expect(await chunksOf('data: {"a":1}\n\ndata: [DONE]\n\n')).toEqual({ chunks: [{ a: 1 }], wasCancelled: false })
  await expect(chunksOf('data: {"a":1}\n\n')).rejects.toThrow('the stream broke off')
  await expect(chunksOf('data: {"error":{"message":"no room"}}\n\n')).rejects.toThrow('no room')
})
