import { describe, expect, test } from 'vitest'
import { SkeinError } from '../../../src/errors.ts'
import { unpickle } from '../../../src/model/formats/torch/pickle.ts'

const file = { path: 'model.pth' }
const run = (pickle: string) => unpickle(Buffer.from(pickle, 'latin1'), file)

function refusal(pickle: string): SkeinError {
  try {
    run(pickle)
  } catch (error) {
    if (error instanceof SkeinError) return error
    throw error
  }
  throw new Error('the pickle was accepted')
}

const text = (value: string) => `X${String.fromCharCode(value.length)}\0\0\0${value}`

describe('globals outside the list are refused by name', () => {
  test.each([
    ['os.system', `\x80\x02cos\nsystem\n${text('true')}\x85R.`],
    ['posix.system', `\x80\x02cposix\nsystem\n${text('true')}\x85R.`],
    ['nt.system', `cnt\nsystem\n(${text('x')}tR.`],
    ['builtins.eval', `\x80\x03cbuiltins\neval\n${text('1')}\x85R.`],
    ['builtins.exec', `\x80\x02cbuiltins\nexec\n${text('1')}\x85R.`],
    ['__builtin__.getattr', `\x80\x02c__builtin__\ngetattr\n.`],
    ['builtins.__import__', `\x80\x04${'\x8c\x08builtins\x8c\x0a__import__'}\x93.`],
    ['subprocess.Popen', `\x80\x02csubprocess\nPopen\n(]tR.`],
    ['runpy._run_code', `\x80\x02crunpy\n_run_code\n.`],
    ['torch.load', `\x80\x02ctorch\nload\n.`],
    ['torch._utils._rebuild_tensor_v3', `\x80\x02ctorch._utils\n_rebuild_tensor_v3\n.`],
    ['torch.hub.load', `\x80\x02ctorch.hub\nload\n.`],
    ['torch._utils.os.system', `\x80\x04\x8c\x0ctorch._utils\x8c\x09os.system\x93.`],
    ['collections.OrderedDict.__class__', `\x80\x04\x8c\x0bcollections\x8c\x15OrderedDict.__class__\x93.`],
    ['numpy.core.multiarray._reconstruct', `\x80\x02cnumpy.core.multiarray\n_reconstruct\n.`],
    ['_codecs.encode', `\x80\x02c_codecs\nencode\n.`],
    ['os.system', `\x80\x02(${text('true')}ios\nsystem\n.`],
    ['os.system', `\x80\x02(cos\nsystem\n${text('true')}o.`],
    ['posix.system', `\x80\x02}(${text('a')}ccollections\nOrderedDict\n)R}${text('b')}cposix\nsystem\n`],
  ])('%s', (name, pickle) => {
    const error = refusal(pickle)
    expect(error.code).toBe('unsupported_weights')
    expect(error.message).toContain(`model.pth: its pickle asks for ${name};`)
  })

  test('a name with control characters is shown in printable form', () => {
    expect(refusal('\x80\x02c\x1b[2J\nx\0y\n.').message).toContain('asks for ?[2J.x?y;')
  })
})

describe('opcodes that checkpoints do not need', () => {
  const dict = 'ccollections\nOrderedDict\n'
  test.each([
    ['uses the instruction NEWOBJ', `\x80\x02${dict})\x81.`],
    ['uses the instruction NEWOBJ_EX', `\x80\x04${dict})}\x92.`],
    ['uses the instruction OBJ', `\x80\x02(${dict}o.`],
    ['uses the instruction EXT1', `\x80\x02\x82\x01.`],
    ['uses the instruction EXT2', `\x80\x02\x83\x01\0.`],
    ['uses the instruction EXT4', `\x80\x02\x84\x01\0\0\0.`],
    ['uses the instruction NEXT_BUFFER', `\x80\x05\x97.`],
    ['uses the instruction PERSID', `P0\n.`],
    ['uses the instruction DUP', `\x80\x02N2.`],
    ['uses the instruction LONG', `L${'9'.repeat(50)}L\n.`],
    ['sets attributes of an object', `\x80\x02${dict}}b.`],
    ['sets attributes of an object', `\x80\x02N}b.`],
    ['builds an OrderedDict from arguments', `\x80\x02${dict}](e\x85R.`],
    ['calls torch.FloatStorage', `\x80\x02ctorch\nFloatStorage\n)R.`],
    ['calls torch.FloatStorage', `\x80\x02ctorch\nFloatStorage\nK\x09\x85R.`],
    ['holds an integer of 255 bytes', `\x80\x02\x8a\xff${'\x01'.repeat(255)}.`],
    ['has a dict key that is neither', `\x80\x02}]Ns.`],
    ['has a tensor of 9 dimensions', tensor('(KKKKKKKKKKKKKKKKKKt'.replaceAll('KK', 'K\x01'), '(K\x01t')],
    ['speaks protocol 6', '\x80\x06N.'],
  ])('%s', (problem, pickle) => {
    expect(refusal(pickle)).toMatchObject({ code: 'unsupported_weights', message: expect.stringContaining(problem) })
  })
})

/** A tensor of one f32 storage of 4 elements, with shape and strides as given. */
function tensor(shape: string, strides: string): string {
  const storage = `(${text('storage')}ctorch\nFloatStorage\n${text('0')}${text('cpu')}K\x04tQ`
  return `\x80\x02ctorch._utils\n_rebuild_tensor_v2\n(${storage}K\0${shape}${strides}\x89NtR.`
}

describe('damaged pickles', () => {
  test.each([
    ['is cut off', ''],
    ['is cut off', '\x80'],
    ['is cut off', '\x80\x02}X\xff\xff\xff\xffa'],
    ['is cut off', '\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\xffa.'],
    ['has the instruction 0xff', '\x80\x02\xff.'],
    ['takes from an empty stack', '\x80\x02R.'],
    ['takes from an empty stack', '\x80\x02N(\x85.'],
    ['closes a mark that is not open', '\x80\x02t.'],
    ['ends too early', '\x80\x02.'],
    ['ends too early', '\x80\x02NN.'],
    ['ends too early', '\x80\x02N(.'],
    ['recalls memo 7', '\x80\x02h\x07.'],
    ['appends to something', '\x80\x02NNa.'],
    ['sets an item of something', '\x80\x02NNNs.'],
    ['a dict key without a value', '\x80\x02}(Nu.'],
    ['calls what is not a function', '\x80\x02N)R.'],
    ['calls what is not a function', '\x80\x02)NR.'],
    ['names something by what is not text', '\x80\x04NN\x93.'],
    ['is not UTF-8', '\x80\x02X\x01\0\0\0\xff.'],
    ['has an unfinished name', `\x80\x02c${'a'.repeat(300)}\nb\n.`],
    ['not a storage', '\x80\x02NQ.'],
    ['not a storage', `\x80\x02(${text('storage')}NNNNtQ.`],
    ['without a type or size', `\x80\x02(${text('storage')}ccollections\nOrderedDict\n${text('0')}NK\x01tQ.`],
    ['without a type or size', `\x80\x02(${text('storage')}ctorch\nFloatStorage\n${text('0')}NJ\xff\xff\xff\xfftQ.`],
    ['a tensor without a storage', '\x80\x02ctorch._utils\n_rebuild_tensor_v2\n)R.'],
    ['a tensor without a shape', tensor('N', ')')],
    ['shape or strides are not sizes', tensor('(J\xff\xff\xff\xfft', '(K\x01t')],
    ['shape or strides are not sizes', tensor('(Nt', '(K\x01t')],
    ['shape or strides are not sizes', tensor('(K\x02t', '(K\x01Nt')],
    ['shape or strides are not sizes', tensor('(K\x02t', '(K\x01K\x01t')],
    ['shape or strides are not sizes', tensor('(G\x3f\xf8\0\0\0\0\0\0t', '(K\x01t')],
    ['a parameter of no tensor', '\x80\x02ctorch._utils\n_rebuild_parameter\nN\x85R.'],
  ])('%s', (problem, pickle) => {
    expect(refusal(pickle)).toMatchObject({ code: 'corrupt_weights', message: expect.stringContaining(problem) })
  })
})

test.each<[string, number]>([
  ['K\xff', 255],
  ['M\x01\x02', 0x201],
  ['J\xfe\xff\xff\xff', -2],
  ['\x8a\x00', 0],
  ['\x8a\x01\xff', -1],
  ['\x8a\x02\xff\x00', 255],
  ['\x8a\x06\0\0\0\0\0\x01', 2 ** 40],
  ['G\xbf\xf8\0\0\0\0\0\0', -1.5],
])('number %j', (pickle, value) => {
  expect(run(`\x80\x02${pickle}.`)).toBe(value)
})

describe('bombs', () => {
  test('nesting deeper than any recursion is just data', () => {
    const depth = 400_000
    expect(run(`\x80\x02N${'\x85'.repeat(depth)}.`)).toMatchObject({ kind: 'tuple' })
    expect(refusal(`\x80\x02${'('.repeat(depth)}.`).message).toContain('ends too early')
    expect(run(`\x80\x02]${`q\0h\0a`.repeat(1000)}.`)).toMatchObject({ kind: 'list' }) // holds itself
  })

  test.each([
    ['values', 'N'],
    ['dicts', '}'],
    ['memos', '\x94'],
    ['frames', `\x95${'\xff'.repeat(8)}`],
  ])('reading stops at a million %s', (_what, instruction) => {
    expect(refusal(`\x80\x04N${instruction.repeat(1_000_001)}.`).message).toContain('1000000 instructions')
  })

  test('a value doubled forty times costs forty references', () => {
    const memo = (index: number) => String.fromCharCode(index)
    const doublings = Array.from({ length: 40 }, (_, i) => `h${memo(i)}h${memo(i)}\x86q${memo(i + 1)}`)
    expect(run(`\x80\x02(Nq\0${doublings.join('')}t.`)).toMatchObject({ kind: 'tuple' })
  })
})
