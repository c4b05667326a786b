/** The kernels of a group's products, by the forms that its steps have. Knows no launch. */
import type { Access } from '../device.ts'
import type { Recorder } from '../launch.ts'
import type { HeldType } from '../resources.ts'
import type { Kernel } from '../source.ts'
import type { Form } from './forms.ts'
import { type Keeper, keepingNone } from './halves.ts'
import { isOfVectors, type Product, pairsOf } from './jobs.ts'

export function kernelsOf(
  recording: Recorder,
  group: readonly Product[],
  access: readonly Access[],
  beside: readonly Product[] = [],
) {
  const { type } = group[0]!.matrix
  const OPERANDS = isOfVectors(group[0]!) ? 'linear-vectors' : 'linear-numbers'
  const SIZE = recording.device.matrices?.isSized === true ? 'subgroup-size' : 'subgroup-any'
  const isRounded = access.length > 2
  const made = new Map<string, Kernel>()
  return ({ file, constants }: Form, keeper: Keeper | null = null): Kernel => {
    const name = `${file} ${Object.values(constants).join()} ${keeper !== null}`
    let kernel = made.get(name)
    if (kernel === undefined) {
      const isDots = file === 'linear-dots'
      const isBeside = beside.length > 0 && !isDots
      const steps = isBeside ? 'matrix-steps-beside' : 'matrix-steps'
      const STEPS_OF = constants.BUFFERS === 2 ? 'matrix-steps-ahead' : steps
      const BESIDE = isBeside
        ? { BESIDE: 'matrix-beside', PAIRS: `pairs-${pairsOf(beside)}` }
        : { BESIDE: 'beside-none' }
      const files = isDots
        ? { OPERANDS, WEIGHTS: `dots-${type}`, INPUTS: isRounded ? 'dots-ahead' : 'dots-shared', BESIDE: 'beside-none' }
        : {
            OPERANDS,
            WEIGHTS: `weights-${type}`,
            ...(file === 'linear-matrix' && { STEPS_OF, HALVES: halvesOf(type), SIZE, ...BESIDE }),
          }
      const variant = { constants, files }
      const kept = keeper?.variant(variant, isDots ? 'bytes' : 'halves') ?? keepingNone(variant)
      kernel = recording.kernel(file, access, kept)
      made.set(name, kernel)
    }
    return kernel
  }
}

/** How weights become f16 for matrices. */
function halvesOf(type: HeldType): string {
  return `halves-${type === 'bf16' || type === 'nf4' || type === 'f32' ? 'floats' : type}`
}
