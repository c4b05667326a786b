/**
 * Writes a GGUF of random weights in a released size's true shape, for benches:
 *
 *   node test/helpers/random-gguf.ts 0.1b Q4_K Q6_K OUT.gguf     the type of the matrices, and of the head
 */
import { rmSync } from 'node:fs'
import { pathToFileURL } from 'node:url'
import { RANDOM_MODEL_SIZES, type RandomModelSize, writeRandomModel } from '../../src/bench/random-model.ts'
import type { GgufType } from '../../src/model/formats/gguf/types.ts'
import { readTensors, writeAsGguf } from './formats.ts'

/** Encoded values per matrix; the tests' quantiser is slow. */
const ENCODED = 2 ** 16

export function writeRandomGguf(path: string, size: RandomModelSize, type: GgufType, headType: GgufType): void {
  const plain = `${path}.pth`
  writeRandomModel(plain, size)
  try {
    const options = { architecture: 'rwkv7', type, headType, repeats: ENCODED } as const
    writeAsGguf(path, readTensors(plain), options)
  } finally {
    rmSync(plain)
  }
}

if (import.meta.url === pathToFileURL(process.argv[1] ?? '').href) {
  const [size, type, headType, path] = process.argv.slice(2)
  const known = RANDOM_MODEL_SIZES.find((one) => one === size)
  if (!known || !type || !headType || !path) throw new Error('SIZE TYPE HEADTYPE OUT was expected')
  writeRandomGguf(path, known, type as GgufType, headType as GgufType) // encodeAs throws for others
}
