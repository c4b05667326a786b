import { expect, test } from 'vitest'
import { createBatch } from '../../../src/backend/batch.ts'
import type { CudaGraph } from '../../../src/backend/cuda/driver/driver.ts'
import type { StepBuffer } from '../../../src/backend/cuda/step/buffer.ts'
import type { StepShape } from '../../../src/backend/cuda/step/command.ts'
import { type CaptureStep, paddedShape, StepGraphs } from '../../../src/backend/cuda/step-graphs.ts'
import { SkeinError } from '../../../src/errors.ts'

const CAPACITY = { tokens: 3000, rows: 40, logits: 40, samples: 40 }
const PROMPT = { tokens: 300, rows: 2, logits: 1, samples: 1, singles: 0, longRows: 2, waits: 0 }
const DECODE = { tokens: 2, rows: 2, logits: 2, samples: 2, singles: 2, longRows: 0, waits: 0 }

/** Captured and disposed graphs, by label. */
function graphs(fails: () => boolean = () => false) {
  const captured: string[] = []
  const disposed: string[] = []
  let holds = true
  const of = new StepGraphs(CAPACITY, (_, label) => {
    if (fails()) throw new SkeinError('out_of_memory', 'full')
    captured.push(label)
    const buffer = { holds: () => holds, dispose: () => {} } as unknown as StepBuffer
    const graph = { dispose: () => disposed.push(label) } as unknown as CudaGraph
    return { buffer, graph, later: null }
  })
  const find = (shape: StepShape) => of.for(createBatch(CAPACITY), shape)
  const keepNothing = () => {
    holds = false
  }
  return { captured, disposed, find, keepNothing, dispose: () => of.dispose() }
}

/** More than are remembered. */
function manyShapes(find: (shape: StepShape) => unknown): void {
  for (let tokens = 640; tokens < 2900; tokens += 128)
    for (const logits of [1, 2, 3, 9, 20]) for (const samples of [0, 1]) find({ ...PROMPT, tokens, logits, samples })
}

test('shapes are rounded up, each kind of row separately; zero stays zero', () => {
  expect(paddedShape(PROMPT, CAPACITY)).toEqual({ ...PROMPT, tokens: 320 })
  const none = { logits: 0, samples: 0, longRows: 0, waits: 0 }
  expect(paddedShape({ tokens: 2900, rows: 33, singles: 0, ...none }, CAPACITY)).toEqual({
    ...none,
    ...{ tokens: 2944, rows: 48, singles: 0 },
  })
  const mixed = { tokens: 336, rows: 35, singles: 33, longRows: 1, logits: 34, samples: 33, waits: 5 }
  expect(paddedShape(mixed, CAPACITY)).toEqual({
    ...{
      tokens: 336,
      rows: 64 + 4 + 1,
      singles: 64,
      longRows: 1,
      logits: 40,
      samples: 40,
      waits: 8,
    },
  })
  expect(paddedShape({ ...PROMPT, tokens: 2990 }, CAPACITY).tokens).toBe(3000)
})

test('a step with a row of several tokens stays one, whatever the capacity', () => {
  const shape = { tokens: 42, rows: 40, singles: 39, longRows: 0, logits: 40, samples: 40, waits: 0 }
  const { rows, singles } = paddedShape(shape, CAPACITY)
  expect(rows).toBeGreaterThan(singles)
})

test('steps with guesses have few shapes, which hold all that are rounded up to them', () => {
  const capacity = { tokens: 1024, rows: 32, logits: 256, samples: 256 }
  const shapes = new Set<string>()
  for (let singles = 0; singles < 32; singles++)
    for (let guesses = 1; guesses <= 7; guesses++) {
      const draws = singles + (32 - singles) * (1 + guesses)
      for (const again of [0, 17]) {
        const shape = { tokens: draws + again, rows: 32, singles, longRows: 0, logits: draws, samples: draws, waits: 0 }
        const padded = paddedShape(shape, capacity)
        shapes.add(JSON.stringify(padded))
        for (const [name, n] of Object.entries(shape))
          expect(padded[name as keyof typeof shape], `${name} of ${JSON.stringify(shape)}`).toBeGreaterThanOrEqual(n)
        expect(padded.rows - padded.singles).toBeGreaterThanOrEqual(32 - singles)
      }
    }
  expect(shapes.size).toBeLessThanOrEqual(14)
  // A prompt that many choices draw from.
  const forked = { tokens: 3, rows: 1, singles: 0, longRows: 0, logits: 1, samples: 9, waits: 0 }
  expect(paddedShape(forked, capacity)).toMatchObject({ tokens: 4, samples: 16 })
})

test('a prompt is captured only when its shape occurs a second time', () => {
  const { captured, find } = graphs()
  expect(find(PROMPT)).toBeNull()
  expect(find({ ...PROMPT, tokens: 500 })).toBeNull()
  const second = find({ ...PROMPT, tokens: 310 })
  expect(captured).toEqual(['step of 320 tokens in 2 rows'])
  expect(find(PROMPT)).toBe(second)
  expect(captured).toHaveLength(1)
})

test('the least recent shapes are evicted', () => {
  const { captured, disposed, find, dispose } = graphs()
  find(PROMPT)
  find(PROMPT)
  for (let longRows = 3; longRows < 40; longRows++)
    for (const tokens of [1100, 1600]) {
      find({ ...PROMPT, tokens, rows: 40, logits: longRows, samples: 0, longRows })
      find(PROMPT)
    }
  expect(disposed).toEqual([])
  // Those that come once are not captured, so they push nothing out.
  manyShapes(find)
  expect(disposed).toEqual([])
  manyShapes(find)
  expect(disposed).toContain(captured[0])
  dispose()
  expect(disposed.toSorted()).toEqual(captured.toSorted())
})

test('without memory for another graph, steps run without one', () => {
  const { find } = graphs(() => true)
  for (let i = 0; i < 3; i++) expect(find(PROMPT)).toBeNull()
})

test('a decode step without memory for longer lists is launched kernel by kernel', () => {
  let fails = false
  let holds = true
  const disposed: number[] = []
  const of = new StepGraphs(CAPACITY, () => {
    if (fails) throw new SkeinError('out_of_memory', 'full')
    const buffer = { holds: () => holds, dispose: () => disposed.push(1) }
    return { buffer, graph: { dispose() {} } } as unknown as ReturnType<CaptureStep>
  })
  const find = () => of.for(createBatch(CAPACITY), DECODE)
  const first = find()
  fails = true
  holds = false
  expect(find()).toBeNull()
  // Steps with shorter lists are replayed as before.
  holds = true
  expect(find()).toBe(first)
  expect(disposed).toEqual([])
  of.dispose()
  expect(disposed).toHaveLength(1)
})

test('a decode step with longer lists replaces the previous one', () => {
  const { captured, disposed, find, keepNothing } = graphs()
  const first = find(DECODE)
  keepNothing()
  expect(find(DECODE)).not.toBe(first)
  expect(captured).toHaveLength(2)
  expect(disposed).toHaveLength(1)
})

test('errors other than out of memory are reported, also for graphs made at the start', () => {
  const of = (code: 'internal' | 'out_of_memory') =>
    new StepGraphs(CAPACITY, () => {
      throw new SkeinError(code, 'not captured')
    })
  const batch = createBatch(CAPACITY)
  expect(() => of('internal').for(batch, DECODE)).toThrow('not captured')
  expect(of('out_of_memory').for(batch, DECODE)).toBeNull()
  expect(() => of('out_of_memory').prepareDecode(1)).toThrow('not captured')
})

test('a step replaced by one with longer lists frees its memory for others', () => {
  let fails = false
  const { captured, find, keepNothing } = graphs(() => fails)
  for (let i = 0; i < 2; i++) find(PROMPT)
  fails = true
  for (let i = 0; i < 2; i++) expect(find({ ...PROMPT, tokens: 500 })).toBeNull()
  fails = false
  keepNothing()
  expect(find(PROMPT)).not.toBeNull()
  expect(captured).toHaveLength(2)
})

test('where the device is full, the graph that was not used for longest gives way', () => {
  let fails = false
  const { captured, disposed, find } = graphs(() => fails)
  for (const tokens of [300, 500]) for (let i = 0; i < 2; i++) find({ ...PROMPT, tokens })
  find({ ...PROMPT, tokens: 300 })
  fails = true
  for (let i = 0; i < 2; i++) expect(find({ ...PROMPT, tokens: 400 })).toBeNull()
  expect(disposed).toEqual([])
  fails = false
  for (let i = 0; i < 2; i++) find({ ...PROMPT, tokens: 700 })
  expect([captured.length, disposed]).toEqual([3, [captured[1]]])
})

test('where the device is full, shapes that come in turn push no graph out', () => {
  let fails = false
  const { captured, disposed, find } = graphs(() => fails)
  const turn = () => {
    for (const tokens of [300, 500, 700]) find({ ...PROMPT, tokens })
  }
  for (const tokens of [300, 300, 500, 500]) find({ ...PROMPT, tokens })
  fails = true
  for (let i = 0; i < 2; i++) turn()
  fails = false
  for (let i = 0; i < 9; i++) turn()
  expect([captured.length, disposed]).toEqual([2, []])
})
