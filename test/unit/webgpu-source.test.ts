import { expect, test } from 'vitest'
import { readSource } from '../../src/backend/webgpu/source.ts'

const FILES = { OPERANDS: 'linear-vectors', WEIGHTS: 'weights-q4', KEPT: 'kept-none' }

test('repeated lines are expanded as often as the constants say, also nested ones', () => {
  const code = readSource('linear', FILES, { NT: 2, R: 3, UNROLL: 2, WG: 64 })
  expect(code).not.toMatch(/#repeat|#end|#include|\$/)
  expect(code.match(/let input\d = /g)).toHaveLength(2)
  expect(code.match(/var bits\d\d = /g)).toHaveLength(6)
  // With constants of the weights: four steps of two quads, for two units, three outputs and two tokens.
  expect(code.match(/= dot_from\(/g)).toHaveLength(4 * 2 * 2 * 3 * 2)
})

test('a repeat without its constant is an error', () => {
  expect(() => readSource('linear', FILES, { NT: 2, R: 3 })).toThrow(/UNROLL is no constant/)
})

test('an include with a space before it comes as often as it stands there', () => {
  const constants = { DOWN: 2, ACROSS: 3, STEP: 2, SETS: 2, WEIGHTS_EACH: 1, OTHERS_EACH: 1 }
  const code = readSource('matrix-steps-beside', {}, constants)
  // The products of a step: with others beside, and twice in the loop without.
  expect(code.match(/= subgroupMatrixMultiplyAccumulate\(/g)).toHaveLength((1 + 2) * 2 * 3 * 2)
})
