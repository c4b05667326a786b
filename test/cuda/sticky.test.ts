/** Alone in its file, so that it has a process of its own: the context does not survive it. */
import { expect, test } from 'vitest'
import { SkeinError } from '../../src/errors.ts'
import { describeCuda, openDevice } from './kit.ts'

// The sanitizer would report the invalid access that this test makes on purpose.
const skip = process.env.SKEIN_SANITIZER !== undefined

describeCuda('an error that ends the context', () => {
  test.skipIf(skip)('is kernel_failed and names the last launch', () => {
    const device = openDevice()
    const kernel = device.kernel('probe', 'out_of_bounds')
    device.launch(kernel, [1, 1, 1], [32, 1, 1], 0, device.args([0n]))
    let caught: unknown
    try {
      device.synchronize()
    } catch (error) {
      caught = error
    }
    expect(caught).toBeInstanceOf(SkeinError)
    const { code, message } = SkeinError.from(caught)
    expect(code).toBe('kernel_failed')
    expect(message).toMatch(/CUDA_ERROR_ILLEGAL_ADDRESS.*last launched: probe\.cu: out_of_bounds/)
    expect(() => device.alloc(4 << 20)).toThrow(/CUDA_ERROR_ILLEGAL_ADDRESS/)
  })
})
