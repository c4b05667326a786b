/**
 * Reads a `.pth` as current torch saves it: a zip of one pickle, which describes the tensors, and one stored entry
 * per storage. Finds the pickle and the storages; what the pickle means is the business of `torch-tensors.ts`.
 */

import { textOf } from '../../../files/bytes.ts'
import { type ByteSource, quote, readBytes, unsupported } from '../byte-source.ts'
import type { Checkpoint } from '../format.ts'
import { unpickle } from './pickle.ts'
import { torchTensors } from './tensors.ts'
import { readZip, type ZipEntry } from './zip.ts'

const MAX_PICKLE_BYTES = 100 * 1024 * 1024

/** Takes over the source: `close` of the checkpoint closes it. If this throws, the caller still owns it. */
export function openPth(source: ByteSource): Checkpoint {
  const entries = readZip(source)
  const root = findRoot(source, entries)
  checkByteOrder(source, entries, root)
  const pickle = readPickle(source, entries, root)
  const storages = (key: string) => entries.get(`${root}data/${key}`)
  const tensors = torchTensors(source, unpickle(pickle, source), storages)
  const { path, size } = source
  return { path, format: 'pth', tensors, fileBytes: size, close: () => source.close() }
}

/** The folder of data.pkl, with its slash. */
function findRoot(source: ByteSource, entries: ReadonlyMap<string, ZipEntry>): string {
  const suffix = '/data.pkl'
  const pickles = [...entries.keys()].filter((name) => name.endsWith(suffix))
  const [found] = pickles
  if (found === undefined) throw unsupported(source, 'is a zip without data.pkl, so not a file that torch.save wrote')
  if (pickles.length > 1) throw unsupported(source, `has ${pickles.length} data.pkl, not one`)
  return found.slice(0, 1 - suffix.length)
}

function checkByteOrder(source: ByteSource, entries: ReadonlyMap<string, ZipEntry>, root: string): void {
  const entry = entries.get(`${root}byteorder`)
  if (!entry) return // older files have none and are little-endian
  const order = textOf(readBytes(source, entry.offset, Math.min(entry.size, 16), entry.name))
  if (order === 'little') return
  throw unsupported(source, `its byte order is "${quote(order)}"; re-save it as "little"`)
}

function readPickle(source: ByteSource, entries: ReadonlyMap<string, ZipEntry>, root: string): Uint8Array {
  const { offset, size, name } = entries.get(`${root}data.pkl`)! // root was made from this name
  if (size > MAX_PICKLE_BYTES)
    throw unsupported(source, `its data.pkl is ${size} bytes; at most ${MAX_PICKLE_BYTES} are read`)
  return readBytes(source, offset, size, name)
}
