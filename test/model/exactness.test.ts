import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import fc from 'fast-check'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { landed } from '../../src/backend/flight.ts'
import type { PackedType } from '../../src/backend/weight-types.ts'
import { prepareDevice } from '../../src/host/device-choice.ts'
import { loadRunner } from '../../src/host/load.ts'
import type { ModelRunner } from '../../src/model/run/model-runner.ts'
import type { BatchRow, RowResult, StateData } from '../../src/model/runner.ts'
import { largestRatio } from '../backend/kit.ts'
import { readTensors, writeAsGguf } from '../helpers/formats.ts'
import { writeRandomRwkv6, writeRandomRwkv7 } from '../helpers/pth.ts'
import { ARCHITECTURES, BACKENDS, draw, someTokens, tinyRunner } from '../helpers/runner.ts'
import { IS_SLOW, trials } from '../helpers/slow.ts'
import { IS_SOFTWARE_GPU, openWithoutMatrices, WEBGPU_PROBLEM } from '../helpers/webgpu.ts'

// With matrix units steps of other sizes have other bits: test/backend/webgpu-matrices.test.ts.
await openWithoutMatrices()

/** Feeds tokens to a slot in chunks of the given sizes and returns the logits after the last token. */
async function feed(
  runner: ModelRunner,
  slot: number,
  tokens: Int32Array,
  sizes: readonly number[],
): Promise<Float32Array> {
  let logits = new Float32Array(0)
  let start = 0
  for (let i = 0; start < tokens.length; i++) {
    const chunk = tokens.subarray(start, start + sizes[i % sizes.length]!)
    start += chunk.length
    const isLast = start >= tokens.length
    // The last token is fed alone, so that every way of feeding ends with the same step.
    if (isLast && chunk.length > 1) await step(runner, [{ slot, tokens: chunk.slice(0, -1), samples: [] }])
    const fed = isLast ? chunk.slice(-1) : chunk
    const [result] = await step(runner, [{ slot, tokens: fed, samples: [], allLogits: isLast }])
    if (isLast) logits = Float32Array.from(result!.logits!)
  }
  return logits
}

const known = new WeakMap<ModelRunner, Map<string, Float32Array>>()

/** The logits after tokens that a slot was fed alone; computed once. */
async function solo(runner: ModelRunner, tokens: Int32Array): Promise<Float32Array> {
  const ofRunner = known.get(runner) ?? new Map<string, Float32Array>()
  known.set(runner, ofRunner)
  runner.clearSlot(0)
  const logits = ofRunner.get(tokens.join()) ?? (await feed(runner, 0, tokens, [tokens.length]))
  ofRunner.set(tokens.join(), logits)
  return logits
}

/** One forward pass. Some backends cannot be waited for. */
function step(runner: ModelRunner, rows: readonly BatchRow[]): Promise<RowResult[]> {
  return landed(runner.launch(rows))
}

const EXACT = WEBGPU_PROBLEM === null ? ([...BACKENDS, 'webgpu'] as const) : BACKENDS
const CASES = ARCHITECTURES.flatMap((architecture) => EXACT.map((backend) => [architecture, backend] as const)).filter(
  // Its layers are those of RWKV-7; what it has of its own is tested at night.
  ([architecture, backend]) => backend !== 'webgpu' || architecture !== 'rwkv7a' || IS_SLOW,
)

const QUANTS = ARCHITECTURES.flatMap((architecture) =>
  (['f16', 'bf16', 'int8', 'q4', 'nf4'] as const).map((quant) => ({ architecture, quant })),
)

describe.each(CASES)('exactness of %s on %s', (architecture, backend) => {
  let runner: ModelRunner
  beforeAll(async () => {
    await prepareDevice({ device: backend })
    runner = tinyRunner(backend, { architecture })
  })
  afterAll(() => runner.dispose())

  // A software adapter takes minutes for the long ones, the reference seconds.
  const isSoftware = backend === 'webgpu' && IS_SOFTWARE_GPU
  const isQuick = isSoftware || (backend === 'reference' && !IS_SLOW)
  const isQuickest = isSoftware && !IS_SLOW
  test.each(
    isQuickest
      ? [10]
      : backend === 'reference' && isQuick
        ? [2, 17]
        : isQuick
          ? [1, 2, 15, 17, 33]
          : [1, 2, 15, 16, 17, 33, 64, 100],
  )('prefill of %i tokens: whole = chunks = one by one', async (length) => {
    const tokens = someTokens(length, length)
    const whole = await solo(runner, tokens)
    for (const sizes of isQuickest ? [[1], [3, 1, 20]] : [[1], [7], [16], [3, 1, 20]]) {
      runner.clearSlot(3)
      expect(await feed(runner, 3, tokens, sizes)).toEqual(whole)
    }
    expect(whole.every(Number.isFinite)).toBe(true)
  })

  const longLengths = IS_SLOW ? [2050, 8192, 16_384] : [architecture === ARCHITECTURES[0] ? 2050 : 300]
  // The reference takes minutes for these, and so does a software adapter.
  test.skipIf(backend === 'reference' || isSoftware).each(longLengths)(
    'prefill of %i tokens: by 100 = one by one',
    async (length) => {
      const tokens = someTokens(length, length)
      runner.clearSlot(3)
      const by100 = await feed(runner, 3, tokens, [100])
      runner.clearSlot(3)
      const alone = await feed(runner, 3, tokens, [1])
      expect(alone).toEqual(by100)
      expect(by100.every(Number.isFinite)).toBe(true)
    },
  )

  test.each(!isQuick ? [2, 7, 32] : isQuickest ? [3] : backend === 'reference' ? [2] : [2, 7])(
    'alone = among %i rows that come and go',
    async (size) => {
      const tokens = someTokens(isQuickest ? 4 : 24, 1)
      const wanted = await solo(runner, tokens)
      const mine = size - 1
      runner.clearSlot(mine)
      for (let slot = 0; slot < mine; slot++) runner.clearSlot(slot)
      let logits: Float32Array = new Float32Array(0)
      for (const [t, token] of tokens.entries()) {
        const rows: BatchRow[] = []
        for (let slot = 0; slot < mine; slot++) {
          if ((slot + t) % 3 === 0) continue // this row is absent in this step
          if ((slot + t) % 11 === 0) runner.clearSlot(slot) // another request has taken its slot
          const length = 1 + ((slot + t) % 4)
          const row = { slot, tokens: someTokens(length, slot * 100 + t), samples: [draw(slot)] }
          rows.push(row)
        }
        rows.splice(t % (rows.length + 1), 0, {
          slot: mine,
          tokens: Int32Array.of(token),
          samples: [],
          allLogits: t === tokens.length - 1,
        })
        const results = await step(runner, rows)
        const own = results[rows.findIndex((row) => row.slot === mine)]!
        if (own.logits) logits = own.logits
      }
      expect(logits).toEqual(wanted)
    },
  )

  const [start, end] = isQuickest ? [someTokens(5, 5), someTokens(3, 6)] : [someTokens(20, 5), someTokens(9, 6)]
  // Kernels for copies do not know the architecture.
  const once = isQuickest && architecture !== ARCHITECTURES[0] ? { tags: 'night' } : {}
  test('a copied slot continues like the original, and independently of it', once, async () => {
    const wanted = await solo(runner, Int32Array.of(...start, ...end))
    runner.clearSlot(1)
    await step(runner, [{ slot: 1, tokens: start, samples: [] }])
    runner.copySlot(1, 2)
    await step(runner, [{ slot: 1, tokens: someTokens(5, 9), samples: [] }])
    expect(await feed(runner, 2, end, [end.length - 1])).toEqual(wanted)
  })

  test('saved, restored and continued = never saved', async () => {
    const wanted = await solo(runner, Int32Array.of(...start, ...end))
    runner.clearSlot(1)
    await step(runner, [{ slot: 1, tokens: start, samples: [] }])
    const saved = await landed(runner.readState(1))
    runner.poisonSlot(1)
    await landed(runner.writeState(4, saved))
    const logits = await feed(runner, 4, end, [end.length])
    // The reference keeps its state in f64 and a snapshot is f32; the cpu backend is f32 throughout.
    if (backend === 'reference') expect(largestRatio(logits, wanted)).toBeLessThan(1e-6)
    else expect(logits).toEqual(wanted)
    expect(await landed(runner.readState(4))).not.toEqual(saved)
  })

  test('changes to a slot after the start of a read do not change what is read', once, async () => {
    runner.clearSlot(1)
    await step(runner, [{ slot: 1, tokens: start, samples: [] }])
    const expected = await landed(runner.readState(1))
    const read = runner.readState(1)
    await step(runner, [{ slot: 1, tokens: someTokens(3, 6), samples: [] }])
    runner.poisonSlot(1)
    expect(await landed(read)).toEqual(expected)
  })

  test('a state saved on one backend continues on the other', async () => {
    const other = tinyRunner(backend === 'cpu' ? 'reference' : 'cpu', { architecture })
    const wanted = await solo(runner, Int32Array.of(...start, ...end))
    other.clearSlot(0)
    await step(other, [{ slot: 0, tokens: start, samples: [] }])
    await landed(runner.writeState(2, await landed(other.readState(0))))
    expect(largestRatio(await feed(runner, 2, end, [end.length]), wanted)).toBeLessThan(1e-4)
    other.dispose()
  })

  test('a cleared slot has no memory of its last user', once, async () => {
    const tokens = someTokens(isQuickest ? 3 : 12, 3)
    const wanted = await solo(runner, tokens)
    runner.poisonSlot(5)
    runner.clearSlot(5)
    expect(await feed(runner, 5, tokens, [tokens.length])).toEqual(wanted)
  })

  test('a poisoned slot shows in the draw', async () => {
    runner.poisonSlot(6)
    const [result] = await step(runner, [{ slot: 6, tokens: someTokens(2, 1), samples: [draw(6)] }])
    expect(result!.drawn[0]!.token).toBe(-1)
  })

  const options = isSoftware ? { tags: 'night' } : {}
  test('the same seed and prompt give the same draws, whatever else is in the batch', options, async () => {
    const tokens = someTokens(10, 8)
    const answer = async (slot: number, neighbours: number) => {
      runner.clearSlot(slot)
      runner.resetPenalties(slot, tokens)
      let next: Int32Array = tokens
      const drawn: number[] = []
      for (let position = 0; position < (isQuick ? 12 : 20); position++) {
        const others = Array.from({ length: neighbours }, (_, i) => ({
          slot: 10 + i,
          tokens: someTokens(1, i + position),
          samples: [draw(10 + i, { seed: BigInt(i) })],
        }))
        const spec = draw(slot, { position, frequencyPenalty: 0.3, seed: 2n ** 63n + 5n })
        const results = await step(runner, [...others, { slot, tokens: next, samples: [spec] }])
        const { token } = results.at(-1)!.drawn[0]!
        next = Int32Array.of(token)
        drawn.push(token)
      }
      return drawn
    }
    for (let i = 0; i < 20; i++) runner.clearSlot(10 + i)
    const alone = await answer(0, 0)
    expect(await answer(1, 6)).toEqual(alone)
    if (!isQuick) expect(await answer(2, 20)).toEqual(alone)
    expect(new Set(alone).size).toBeGreaterThan(5)
  })
})

test.skipIf(WEBGPU_PROBLEM !== null).each(QUANTS)(
  '$quant weights of $architecture on webgpu agree with the same quantisation on the reference',
  { tags: 'night' },
  async ({ architecture, quant }) => {
    const tokens = someTokens(20, 12)
    await prepareDevice({ device: 'webgpu' })
    const reference = tinyRunner('reference', { architecture, quant })
    const webgpu = tinyRunner('webgpu', { architecture, quant })
    expect(largestRatio(await solo(webgpu, tokens), await solo(reference, tokens))).toBeLessThan(1e-4)
    reference.dispose()
    webgpu.dispose()
  },
)

test.each(ARCHITECTURES)('cpu logits of %s agree with the reference', async (architecture) => {
  const tokens = someTokens(40, 12)
  const [reference, cpu] = [tinyRunner('reference', { architecture }), tinyRunner('cpu', { architecture })]
  expect(largestRatio(await solo(cpu, tokens), await solo(reference, tokens))).toBeLessThan(1e-4)
  reference.dispose()
  cpu.dispose()
})

test.each(QUANTS)(
  '$quant weights of $architecture on cpu agree with the same quantisation on the reference',
  async ({ architecture, quant }) => {
    const tokens = someTokens(20, 12)
    const [reference, cpu] = [
      tinyRunner('reference', { architecture, quant }),
      tinyRunner('cpu', { architecture, quant }),
    ]
    // Products of quantised weights on cpu also round activations; the reference does not.
    expect(largestRatio(await solo(cpu, tokens), await solo(reference, tokens))).toBeLessThan(
      ['int8', 'q4', 'nf4'].includes(quant) ? 3e-2 : 1e-4,
    )
    reference.dispose()
    cpu.dispose()
  },
)

/** Widths that are no whole tiles, groups or vectors; a vocabulary of a prime number of tokens. */
const ODD = { layers: 2, channels: 160, headSize: 32, vocab: 521, ffn: 352, ranks: { w: 24, a: 40, v: 8, g: 56 } }
const EVEN = { layers: 2, channels: 256, headSize: 64, vocab: 512, ffn: 768 }
const SLOTS = 5

type Act =
  | { readonly type: 'feed'; readonly lengths: readonly number[]; readonly seed: number }
  | { readonly type: 'guess'; readonly slot: number; readonly length: number; readonly seed: number }
  | { readonly type: 'copy'; readonly slot: number; readonly to: number }
  | { readonly type: 'save'; readonly slot: number; readonly to: number }
  | { readonly type: 'clear'; readonly slot: number }

const slot = fc.nat(SLOTS - 1)
const seed = fc.nat(3)
const lengthOf = fc.oneof(
  { weight: 3, arbitrary: fc.constant(0) },
  { weight: 3, arbitrary: fc.constant(1) },
  { weight: 2, arbitrary: fc.integer({ min: 2, max: 9 }) },
  { weight: 1, arbitrary: fc.integer({ min: 10, max: 70 }) },
)
const act: fc.Arbitrary<Act> = fc.oneof(
  {
    weight: 4,
    arbitrary: fc.record({
      type: fc.constant('feed' as const),
      lengths: fc.array(lengthOf, { minLength: SLOTS, maxLength: SLOTS }),
      seed,
    }),
  },
  {
    weight: 1,
    arbitrary: fc.record({ type: fc.constant('guess' as const), slot, length: fc.integer({ min: 2, max: 6 }), seed }),
  },
  {
    weight: 2,
    arbitrary: fc.record({ type: fc.constantFrom('copy' as const, 'save' as const, 'clear' as const), slot, to: slot }),
  },
)

/** The logits after tokens that one slot was fed one by one, alone and by one thread. */
class Oracle {
  readonly #runner: ModelRunner
  readonly #known = new Map<string, { readonly logits: Float32Array; readonly state: StateData }>()

  constructor(runner: ModelRunner) {
    this.#runner = runner
  }

  async after(tokens: readonly number[]): Promise<Float32Array> {
    let start = tokens.length
    while (start > 0 && !this.#known.has(tokens.slice(0, start).join())) start--
    if (start === 0) this.#runner.clearSlot(0)
    else await landed(this.#runner.writeState(0, this.#known.get(tokens.slice(0, start).join())!.state))
    for (let t = start; t < tokens.length; t++) {
      const row = { slot: 0, tokens: Int32Array.of(tokens[t]!), samples: [], allLogits: true }
      const [result] = await step(this.#runner, [row])
      const state = await landed(this.#runner.readState(0))
      this.#known.set(tokens.slice(0, t + 1).join(), { logits: Float32Array.from(result!.logits!), state })
    }
    return this.#known.get(tokens.join())!.logits
  }

  dispose(): void {
    this.#runner.dispose()
  }
}

/** Whatever happens in which steps, logits are those of the slot's own tokens. */
async function play(runner: ModelRunner, oracle: Oracle, acts: readonly Act[]): Promise<void> {
  const fed: number[][] = Array.from({ length: SLOTS }, () => [])
  const drawn = (slot: number) => draw(slot, { temperature: 1, topP: 0.9 })
  for (let at = 0; at < SLOTS; at++) runner.clearSlot(at)
  for (const [i, one] of acts.entries()) {
    if (one.type === 'clear') {
      runner.poisonSlot(one.slot)
      runner.clearSlot(one.slot)
      fed[one.slot] = []
    } else if (one.type === 'copy') {
      if (one.slot !== one.to) runner.copySlot(one.slot, one.to)
      fed[one.to] = [...fed[one.slot]!]
    } else if (one.type === 'save') {
      const saved = await landed(runner.readState(one.slot))
      runner.poisonSlot(one.to)
      await landed(runner.writeState(one.to, saved))
      fed[one.to] = [...fed[one.slot]!]
    } else if (one.type === 'guess') {
      const [first, ...guesses] = someTokens(one.length, one.seed)
      const samples = [first, ...guesses].map((_, position) => ({ ...drawn(one.slot), position }))
      const tokens = Int32Array.of(first!, ...guesses)
      await step(runner, [
        { slot: one.slot, tokens, samples, guesses: { count: guesses.length, spares: [0], every: 0 } },
      ])
      runner.rewindSlot(one.slot, 0)
    } else {
      let room = runner.maxLogits - SLOTS
      const rows = one.lengths.flatMap((length, at): BatchRow[] => {
        if (length === 0) return []
        const row = {
          slot: at,
          tokens: someTokens(length, one.seed + at + i),
          samples: at % 2 === 0 ? [drawn(at)] : [],
        }
        if (at % 3 === 2 || length > room) return [row]
        room -= length
        return [{ ...row, allLogits: true }]
      })
      if (rows.length === 0) continue
      const results = await step(runner, rows)
      for (const [r, { slot: at, tokens }] of rows.entries()) {
        const { logits } = results[r]!
        if (logits === undefined) {
          fed[at]!.push(...tokens)
          continue
        }
        const width = logits.length / tokens.length
        for (const [t, token] of tokens.entries()) {
          fed[at]!.push(token)
          const wanted = await oracle.after(fed[at]!)
          const same =
            Buffer.compare(Buffer.from(wanted.buffer), Buffer.from(logits.slice(t * width, (t + 1) * width).buffer)) ===
            0
          expect(same, `act ${i}, row ${r}, token ${t}`).toBe(true)
        }
      }
    }
  }
}

const folder = mkdtempSync(join(tmpdir(), 'skein-exact-'))
afterAll(() => rmSync(folder, { recursive: true }))

function modelOf(architecture: 'rwkv7' | 'rwkv6', sizes: typeof ODD | typeof EVEN, type: PackedType | null): string {
  const name = `${architecture}-${sizes.channels}`
  const { ranks, ...plain } = { ranks: {}, ...sizes }
  const path = join(folder, `${name}.pth`)
  if (architecture === 'rwkv7') writeRandomRwkv7(path, sizes)
  else writeRandomRwkv6(path, plain)
  if (type === null) return path
  return writeAsGguf(join(folder, `${name}-${type}.gguf`), readTensors(path), {
    architecture,
    type,
    headSize: sizes.headSize,
  })
}

const PLAIN = ['f32', 'f16', 'bf16', 'int8', 'q4', 'nf4'] as const
const BLOCKS = ['Q4_0', 'Q8_0', 'Q4_K', 'Q6_K'] as const
const HELD = [
  ...(['rwkv7', 'rwkv6'] as const).flatMap((architecture) =>
    [ODD, EVEN].flatMap((sizes) => PLAIN.map((quant) => ({ architecture, sizes, quant, type: null }))),
  ),
  ...BLOCKS.map((type) => ({ architecture: 'rwkv7' as const, sizes: EVEN, quant: 'file' as const, type })),
].map((one) => ({ ...one, channels: one.sizes.channels, held: one.type ?? one.quant }))
const isForACommit = ({ architecture, sizes, type }: (typeof HELD)[number]) =>
  architecture === 'rwkv7' && (sizes === ODD || type === 'Q4_K')

test.each(IS_SLOW ? HELD : HELD.filter(isForACommit))(
  'random steps, copies, guesses and restores of $architecture with $channels channels and $held weights: each slot = alone',
  async ({ architecture, sizes, quant, type }) => {
    const choice = {
      model: modelOf(architecture, sizes, type),
      device: 'cpu',
      quant,
      slots: SLOTS,
      maxTokens: 256,
    } as const
    const runner = loadRunner({ ...choice, threads: 3, speculate: 'lookup' })
    const oracle = new Oracle(loadRunner({ ...choice, slots: 1, threads: 1 }))
    await fc.assert(
      fc.asyncProperty(fc.array(act, { minLength: 3, maxLength: 14 }), (acts) => play(runner, oracle, acts)),
      { numRuns: trials(4, 60), seed: 11 },
    )
    oracle.dispose()
    runner.dispose()
  },
)
