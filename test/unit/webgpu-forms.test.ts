import { expect, test } from 'vitest'
import { hasDots, type Matrices, matricesOf, type OpenedDevice } from '../../src/backend/webgpu/adapter.ts'
import { formFor, LEAST_WIDE, matrixForm } from '../../src/backend/webgpu/products/forms.ts'
import { LEAST_BY_MATRICES } from '../../src/backend/webgpu/products/halves.ts'
import { UNIT } from '../../src/backend/webgpu/resources.ts'

/** A device whose subgroups of `lanes` threads multiply matrices of `side` rows, in workgroups of up to `threads`. */
function matricesFor(side: number, lanes: number, threads = 1024, most = lanes, more: string[] = []): Matrices | null {
  const features = new Set(['subgroups', 'shader-f16', 'chromium-experimental-subgroup-matrix', ...more])
  const limits = { maxComputeWorkgroupStorageSize: 49_152, maxComputeInvocationsPerWorkgroup: threads }
  const config = { componentType: 'f16', resultComponentType: 'f32', M: side, N: side, K: side }
  const info = { subgroupMinSize: lanes, subgroupMaxSize: most, subgroupMatrixConfigs: [config] }
  const opened = { adapter: { info }, device: { features, limits }, language: new Set(['subgroup_id']) }
  // What is asked of a device, and no more.
  return matricesOf(opened as unknown as OpenedDevice)
}

test.each([
  [16, 32],
  [16, 64],
  [8, 32],
  [8, 16],
])('matrices of %i a side by subgroups of %i threads: every operand of a tile is brought', (side, lanes) => {
  const matrices = matricesFor(side, lanes)!
  for (const type of ['bf16', 'i8', 'q4'] as const)
    for (const tokens of [LEAST_BY_MATRICES, 20, 64, LEAST_WIDE, 512])
      for (const [blocks, columns] of [
        [16, 1024],
        [256, 128],
        [2048, 4096],
      ] as const) {
        const form = matrixForm(
          matrices,
          { blocks, columns, isEven: columns > 1000, type, isSoftware: false, sharedBytes: 32_768, isByDots: false },
          tokens,
        )
        const { TEAMS, STEP, HIGH, BROAD, PIECE, WEIGHTS_EACH, PADDED } = form.constants as Record<string, number>
        const threads = TEAMS! * HIGH! * BROAD! * lanes
        const eights = (TEAMS! * STEP! * side) / 8
        expect(Number.isInteger(WEIGHTS_EACH)).toBe(true)
        expect(PIECE! * WEIGHTS_EACH! * threads).toBe(8 * form.blocks * eights)
        // A piece is of one unit and one team.
        expect(UNIT[type] % (8 * PIECE!)).toBe(0)
        expect((STEP! * side) % (8 * PIECE!)).toBe(0)
        // Inputs end with zeros to whole steps.
        if (columns % (8 * eights) !== 0) expect(PADDED! % (8 * eights)).toBe(0)
      }
})

test.each([
  ['f32', 32_768],
  ['bf16', 32_768],
  ['q4', 16_384],
] as const)('tiles of %s in %i bytes without matrices: every operand is brought', (type, sharedBytes) => {
  const work = { blocks: 512, columns: 4096, isEven: true, type, isSoftware: false, sharedBytes, isByDots: false }
  const { file, constants, tokens, blocks } = formFor(work, 512)
  const { R, ACROSS, DEEP, KQ, PADDING, INPUTS, WEIGHTS_EACH } = constants as Record<string, number>
  const threads = ACROSS! * DEEP!
  expect(file).toBe('linear-wide')
  expect(INPUTS! * threads).toBe(tokens * KQ!)
  expect(Number.isInteger(INPUTS)).toBe(true)
  // Pieces are of four or of eight inputs.
  expect(WEIGHTS_EACH! * threads * (type === 'f32' ? 4 : 8)).toBeGreaterThanOrEqual(8 * blocks * 4 * KQ!)
  // Two buffers.
  expect(16 * 2 * KQ! * (tokens + PADDING! + R! * (ACROSS! + PADDING!))).toBeLessThanOrEqual(sharedBytes)
  // Jobs begin at multiples of 16 blocks, and 32 threads are 8 by 4.
  expect([16 % blocks, ACROSS! % 8, DEEP! % 4]).toEqual([0, 0, 0])
})

test('subgroups of more threads than a matrix has work for, or than fit in a workgroup, do without', () => {
  expect(matricesFor(8, 64)).toBeNull()
  expect(matricesFor(16, 64, 256)).toBeNull()
  expect(matricesFor(16, 32, 256)).toMatchObject({ side: 16, lanes: 32, isSized: false })
  // As AMD's: kernels have to say which size they mean.
  expect(matricesFor(16, 32, 1024, 64)).toBeNull()
  expect(matricesFor(16, 32, 1024, 64, ['subgroup-size-control'])).toMatchObject({ lanes: 32, isSized: true })
})

test('few tokens are multiplied as bytes by GPUs that do so in one instruction', () => {
  const dots = (vendor: string, feature = 'packed_4x8_integer_dot_product') =>
    hasDots({ adapter: { info: { vendor } }, language: new Set([feature]) } as unknown as OpenedDevice)
  expect(['nvidia', 'amd', 'intel', 'apple', 'google'].filter((vendor) => dots(vendor))).toEqual([
    'nvidia',
    'amd',
    'intel',
  ])
  expect(dots('nvidia', 'subgroup_id')).toBe(false)
})

test.each(['i8', 'q4'] as const)(
  '%s as bytes: all inputs of a step are brought, and no workgroup has two jobs',
  (type) => {
    for (const tokens of [1, 2, 3, 4])
      for (const blocks of [16, 256, 512, 1536, 8192]) {
        const work = {
          blocks,
          columns: 4096,
          isEven: true,
          type,
          isSoftware: false,
          sharedBytes: 32_768,
          isByDots: true,
        }
        const form = formFor(work, tokens)
        const { NT, EACH, LOADS, R, TURNS, TOGETHER } = form.constants as Record<string, number>
        expect(form.file).toBe('linear-dots')
        expect(NT).toBeGreaterThanOrEqual(tokens)
        expect(LOADS! * 256).toBeGreaterThanOrEqual(NT! * EACH! * 32 * 4)
        // Jobs begin at multiples of 16 blocks.
        expect(16 % form.blocks).toBe(0)
        expect(form.blocks).toBe(R! * TURNS!)
        expect(form.blocks % TOGETHER!).toBe(0)
      }
  },
)
