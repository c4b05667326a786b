/**
 * Writes a GGUF of random weights in a released size's true shape, for benches:
 *
 *   node test/helpers/random-gguf.ts 0.1b Q4_K Q6_K OUT.gguf     the type of the matrices, and of the head
 */
import { rmSync } from 'node:fs'
import { RANDOM_MODEL_SIZES, writeRandomModel } from '../../src/bench/random-model.ts'
import type { GgufType } from '../../src/model/formats/gguf/types.ts'
import { readTensors, writeAsGguf } from './formats.ts'

/** Encoded values per matrix; the tests' quantiser is slow. */
const ENCODED = 2 ** 16

const [given, type, headType, path] = process.argv.slice(2)
const size = RANDOM_MODEL_SIZES.find((one) => one === given)
if (!size || !type || !headType || !path) throw new Error('SIZE TYPE HEADTYPE OUT was expected')
const plain = `${path}.pth`
writeRandomModel(plain, size)
try {
  const types = { type: type as GgufType, headType: headType as GgufType } // encodeAs throws for others
  writeAsGguf(path, readTensors(plain), { architecture: 'rwkv7', ...types, repeats: ENCODED })
} finally {
  rmSync(plain)
}
