/** What CUDA's compilers compile for: machine code of the chip where they know it, else PTX. */
import { SkeinError } from '../../../errors.ts'
import { chipName } from '../driver/cards.ts'
import { type Compiler, type ImageMachine, nativeTarget, type Target } from './target.ts'

/** For chips from here on kernels are chosen that are empty when they are compiled for earlier ones. */
const HOPPER = 90

/** A compiler of CUDA, and the compute capabilities it knows, times ten. */
export interface CudaCompiler extends Omit<Compiler, 'targetOf'> {
  readonly capabilities: readonly number[]
}

/** PTX of a chip that is not here: the driver turns it into code of the one that is. */
export function targetOf(machine: ImageMachine, capabilities: readonly number[]): Target {
  const { computeCapability, isSimulated, codeCapability = computeCapability } = machine
  if (!isSimulated) return chooseTarget(computeCapability, capabilities)
  return { name: `compute_${codeCapability.join('')}`, kind: 'ptx' }
}

/** The chip itself where the compiler knows it, else PTX of the latest chip before it. */
export function chooseTarget([major, minor]: readonly [number, number], capabilities: readonly number[]): Target {
  const wanted = 10 * major + minor
  if (capabilities.includes(wanted)) return nativeTarget(chipName([major, minor]))
  const least = wanted >= HOPPER ? HOPPER : 0
  const older = capabilities.filter((capability) => least <= capability && capability < wanted)
  if (older.length === 0)
    throw new SkeinError(
      'backend_unavailable',
      `the CUDA compiler knows no chip of capability ${major}.${minor} or earlier${least > 0 ? ' down to 9.0' : ''} (it knows ${capabilities.join(', ')}); install ${least > 0 ? 'CUDA 12.1 or later' : 'an earlier CUDA version'}`,
    )
  return { name: `compute_${Math.max(...older)}`, kind: 'ptx' }
}
