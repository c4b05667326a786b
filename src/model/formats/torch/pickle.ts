/**
 * Reads the pickles that torch.save writes for a dict of tensors, and nothing more. A pickle is a program; this
 * machine has only the instructions that build plain data, and the closed list of names of `torch-objects.ts`. Any
 * other name or instruction is refused, by name; nothing is ever imported, or assigned to an object's attributes.
 * Every structure is flat and the number of instructions bounded, so nesting and memos cannot exhaust anything.
 */
import { latin1Of, viewOf } from '../../../files/bytes.ts'
import { type ByteSource, corrupt, quote, unsupported } from '../byte-source.ts'
import { applyName, isKind, NAMES, type PickleTuple, type PickleValue, resolveStorage } from './objects.ts'

/** The largest model needs about 10^5. Also bounds the stack and the memo, which grow by one an instruction. */
const MAX_INSTRUCTIONS = 1_000_000
const MAX_NAME = 256

/** The one object that the pickle describes. */
export function unpickle(bytes: Uint8Array, file: Pick<ByteSource, 'path'>): PickleValue {
  return new Machine(bytes, file).run()
}

/** The object that the first of several pickles describes, and how many bytes that pickle has. */
export function unpickleFirst(bytes: Uint8Array, file: Pick<ByteSource, 'path'>) {
  const machine = new Machine(bytes, file)
  return { value: machine.run(), length: machine.position }
}

class Machine {
  readonly #bytes: Uint8Array
  readonly #file: Pick<ByteSource, 'path'>
  readonly #stack: PickleValue[] = []
  /** Stack heights at each open MARK. */
  readonly #marks: number[] = []
  readonly #memo = new Map<number, PickleValue>()
  #at = 0

  constructor(bytes: Uint8Array, file: Pick<ByteSource, 'path'>) {
    this.#bytes = bytes
    this.#file = file
  }

  run(): PickleValue {
    for (let count = 0; count < MAX_INSTRUCTIONS; count++) {
      const code = this.uint(1)
      if (code === STOP) return this.result()
      const instruction = INSTRUCTIONS.get(code)
      if (!instruction) throw this.unknown(code)
      instruction(this)
    }
    throw this.refuse(`has more than ${MAX_INSTRUCTIONS} instructions`)
  }

  get position(): number {
    return this.#at
  }

  result(): PickleValue {
    if (this.#stack.length !== 1 || this.#marks.length > 0) throw this.damaged('ends too early')
    return this.#stack[0]!
  }

  damaged(problem: string): Error {
    return corrupt(this.#file, `its pickle ${problem} (at byte ${this.#at})`)
  }

  refuse(problem: string): Error {
    return unsupported(
      this.#file,
      `its pickle ${problem}; a checkpoint is a dict of tensors and needs nothing else, so nothing was executed`,
    )
  }

  unknown(code: number): Error {
    const name = REFUSED.get(code)
    if (name === 'INST') return this.refuse(`asks for ${this.dottedName(this.line(), this.line())}`)
    if (name !== undefined) return this.refuse(`uses the instruction ${name}`)
    return this.damaged(`has the instruction 0x${code.toString(16).padStart(2, '0')}, unknown here,`)
  }

  protocol(version: number): void {
    if (version > 5) throw this.refuse(`speaks protocol ${version}`)
  }

  take(length: number): Uint8Array {
    this.#pass(length)
    return this.#bytes.subarray(this.#at - length, this.#at)
  }

  uint(length: 1 | 2 | 4): number {
    this.#pass(length)
    let value = 0
    for (let i = 1; i <= length; i++) value = 256 * value + this.#bytes[this.#at - i]!
    return value
  }

  #pass(length: number): void {
    if (length > this.#bytes.length - this.#at) throw this.damaged('is cut off')
    this.#at += length
  }

  uint64(): number {
    return Number(viewOf(this.take(8)).getBigUint64(0, true))
  }

  text(length: number): string {
    const bytes = this.take(length)
    try {
      return UTF8.decode(bytes)
    } catch {
      throw this.damaged('holds text that is not UTF-8')
    }
  }

  line(): string {
    const end = this.#bytes.subarray(this.#at, this.#at + MAX_NAME).indexOf(0x0a)
    if (end < 0) throw this.damaged('has an unfinished name')
    return latin1Of(this.take(end + 1).subarray(0, end))
  }

  integer(length: number): number {
    if (length > 8) throw this.refuse(`holds an integer of ${length} bytes`)
    const bytes = this.take(length)
    let value = 0n
    for (const byte of bytes.toReversed()) value = (value << 8n) | BigInt(byte)
    return Number(BigInt.asIntN(8 * length, value))
  }

  push(value: PickleValue): void {
    this.#stack.push(value)
  }

  pop(): PickleValue {
    const floor = this.#marks.at(-1) ?? 0
    if (this.#stack.length <= floor) throw this.damaged('takes from an empty stack')
    return this.#stack.pop()! // not undefined: the stack is not empty
  }

  top(): PickleValue {
    const value = this.pop()
    this.push(value)
    return value
  }

  mark(): void {
    this.#marks.push(this.#stack.length)
  }

  popMark(): PickleValue[] {
    const height = this.#marks.pop()
    if (height === undefined) throw this.damaged('closes a mark that is not open')
    return this.#stack.splice(height)
  }

  tuple(count: number): void {
    const items: PickleValue[] = []
    for (let i = 0; i < count; i++) items.push(this.pop())
    this.push({ kind: 'tuple', items: items.reverse() })
  }

  put(index: number): void {
    this.#memo.set(index, this.top())
  }

  memoize(): void {
    this.put(this.#memo.size)
  }

  get(index: number): void {
    const value = this.#memo.get(index)
    if (value === undefined) throw this.damaged(`recalls memo ${index}, which is not set`)
    this.push(value)
  }

  append(items: readonly PickleValue[]): void {
    const list = this.top()
    if (!isKind(list, 'list')) throw this.damaged('appends to something that is not a list')
    for (const item of items) list.items.push(item)
  }

  setItems(items: readonly PickleValue[]): void {
    const dict = this.top()
    if (!isKind(dict, 'dict')) throw this.damaged('sets an item of something that is not a dict')
    if (items.length % 2 !== 0) throw this.damaged('has a dict key without a value')
    for (let i = 0; i < items.length; i += 2) {
      const key = items[i]
      if (typeof key !== 'string' && typeof key !== 'number')
        throw this.refuse('has a dict key that is neither text nor a number')
      dict.items.set(key, items[i + 1]!)
    }
  }

  dottedName(module: string, name: string): string {
    return quote(`${module}.${name}`)
  }

  name(module: string, name: string): void {
    const dotted = `${module}.${name}`
    if (!NAMES.has(dotted)) throw this.refuse(`asks for ${this.dottedName(module, name)}`)
    this.push({ kind: 'name', name: dotted })
  }

  stackName(): void {
    const name = this.pop()
    const module = this.pop()
    if (typeof name !== 'string' || typeof module !== 'string')
      throw this.damaged('names something by what is not text')
    this.name(module, name)
  }

  reduce(): void {
    const args = this.pop()
    this.push(applyName(this.pop(), args, this))
  }

  /** A state dict carries `_metadata`, set as an attribute; we have no attributes and no use for it. */
  build(): void {
    this.pop()
    if (!isKind(this.top(), 'dict')) throw this.refuse('sets attributes of an object')
  }
}

const UTF8 = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true })
const STOP = 0x2e
const EMPTY_TUPLE: PickleTuple = { kind: 'tuple', items: [] }

/** The instructions that CPython's pickler emits for plain data and torch's tensors, protocols 2 to 5. */
const INSTRUCTIONS: ReadonlyMap<number, (machine: Machine) => void> = new Map<number, (machine: Machine) => void>([
  [0x80, (m) => m.protocol(m.uint(1))],
  [0x95, (m) => void m.take(8)], // FRAME: a hint for buffering
  [0x28, (m) => m.mark()],
  [0x4e, (m) => m.push(null)],
  [0x88, (m) => m.push(true)],
  [0x89, (m) => m.push(false)],
  [0x4a, (m) => m.push(viewOf(m.take(4)).getInt32(0, true))], // BININT
  [0x4b, (m) => m.push(m.uint(1))],
  [0x4d, (m) => m.push(m.uint(2))],
  [0x8a, (m) => m.push(m.integer(m.uint(1)))], // LONG1
  [0x47, (m) => m.push(viewOf(m.take(8)).getFloat64(0))], // BINFLOAT
  [0x58, (m) => m.push(m.text(m.uint(4)))], // BINUNICODE
  [0x8c, (m) => m.push(m.text(m.uint(1)))],
  [0x8d, (m) => m.push(m.text(m.uint64()))],
  [0x29, (m) => m.push(EMPTY_TUPLE)],
  [0x74, (m) => m.push({ kind: 'tuple', items: m.popMark() })],
  [0x85, (m) => m.tuple(1)],
  [0x86, (m) => m.tuple(2)],
  [0x87, (m) => m.tuple(3)],
  [0x5d, (m) => m.push({ kind: 'list', items: [] })],
  [0x61, (m) => m.append([m.pop()])],
  [0x65, (m) => m.append(m.popMark())],
  [0x7d, (m) => m.push({ kind: 'dict', items: new Map() })],
  [0x73, (m) => m.setItems([m.pop(), m.pop()].reverse())],
  [0x75, (m) => m.setItems(m.popMark())],
  [0x63, (m) => m.name(m.line(), m.line())], // GLOBAL
  [0x93, (m) => m.stackName()], // STACK_GLOBAL
  [0x71, (m) => m.put(m.uint(1))],
  [0x72, (m) => m.put(m.uint(4))],
  [0x94, (m) => m.memoize()],
  [0x68, (m) => m.get(m.uint(1))],
  [0x6a, (m) => m.get(m.uint(4))],
  [0x52, (m) => m.reduce()],
  [0x62, (m) => m.build()],
  [0x51, (m) => m.push(resolveStorage(m.pop(), m))], // BINPERSID
])

/** Instructions that exist in Python and have no place in a checkpoint; the message names them. */
const REFUSED: ReadonlyMap<number, string> = new Map([
  [0x69, 'INST'],
  [0x6f, 'OBJ'],
  [0x81, 'NEWOBJ'],
  [0x92, 'NEWOBJ_EX'],
  [0x82, 'EXT1'],
  [0x83, 'EXT2'],
  [0x84, 'EXT4'],
  [0x50, 'PERSID'],
  [0x32, 'DUP'],
  [0x30, 'POP'],
  [0x31, 'POP_MARK'],
  [0x49, 'INT'],
  [0x4c, 'LONG'],
  [0x8b, 'LONG4'],
  [0x46, 'FLOAT'],
  [0x53, 'STRING'],
  [0x54, 'BINSTRING'],
  [0x55, 'SHORT_BINSTRING'],
  [0x56, 'UNICODE'],
  [0x42, 'BINBYTES'],
  [0x43, 'SHORT_BINBYTES'],
  [0x8e, 'BINBYTES8'],
  [0x96, 'BYTEARRAY8'],
  [0x97, 'NEXT_BUFFER'],
  [0x98, 'READONLY_BUFFER'],
  [0x64, 'DICT'],
  [0x6c, 'LIST'],
  [0x67, 'GET'],
  [0x70, 'PUT'],
  [0x8f, 'EMPTY_SET'],
  [0x90, 'ADDITEMS'],
  [0x91, 'FROZENSET'],
])
