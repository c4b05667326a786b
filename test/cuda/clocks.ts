/**
 * The clock at which the multiprocessors of an NVIDIA GPU ran, on average, while something was on the stream. A card at
 * its power limit lowers it within milliseconds, which nvidia-smi is too slow to show.
 */
import type { CudaDevice } from '../../src/backend/cuda/device/device.ts'

/** Each multiprocessor's cycles and nanoseconds, u64 [SMS, 2]: its first thread of a block writes them. */
const PTX = `.version 7.0
.target sm_70
.address_size 64
.visible .entry stamp(.param .u64 stamps)
{
  .reg .u64 %at, %offset, %cycles, %time;
  .reg .u32 %thread, %sm;
  .reg .pred %others;
  mov.u32 %thread, %tid.x;
  setp.ne.u32 %others, %thread, 0;
  @%others bra end;
  mov.u32 %sm, %smid;
  mul.wide.u32 %offset, %sm, 16;
  ld.param.u64 %at, [stamps];
  cvta.to.global.u64 %at, %at;
  add.u64 %at, %at, %offset;
  mov.u64 %cycles, %clock64;
  mov.u64 %time, %globaltimer;
  st.global.u64 [%at], %cycles;
  st.global.u64 [%at+8], %time;
end:
  ret;
}\0`
const SMS = 256
const STAMP_BYTES = 16 * SMS
/** Two blocks of a whole multiprocessor's threads for each, so that none is left out. */
const BLOCK = 1024

export function clockMeter(device: CudaDevice): (run: () => void) => number {
  const { driver } = device
  const out = new BigUint64Array(1)
  driver.call('cuModuleLoadData', out, Buffer.from(PTX))
  driver.call('cuModuleGetFunction', out, out[0]!, 'stamp')
  const kernel = { handle: out[0]!, label: 'stamp', registers: 8, sharedBytes: 0 }
  const stamps = [device.alloc(STAMP_BYTES), device.alloc(STAMP_BYTES)]
  const args = stamps.map((address) => device.args([address]))
  const stamp = (i: number) => device.launch(kernel, [2 * device.numSms, 1, 1], [BLOCK, 1, 1], 0, args[i]!)
  return (run) => {
    for (const address of stamps) device.fill(address, 0, STAMP_BYTES)
    stamp(0)
    run()
    stamp(1)
    const [before, after] = stamps.map((address) => new BigUint64Array(device.download(address, STAMP_BYTES).buffer))
    return median(clocksBetween(before!, after!))
  }
}

/** MHz of each multiprocessor that is in both. */
function clocksBetween(before: BigUint64Array, after: BigUint64Array): number[] {
  const clocks: number[] = []
  for (let i = 0; i < before.length; i += 2) {
    const nanoseconds = Number(after[i + 1]! - before[i + 1]!)
    if (before[i] && after[i] && nanoseconds > 0) clocks.push((1000 * Number(after[i]! - before[i]!)) / nanoseconds)
  }
  return clocks
}

function median(numbers: number[]): number {
  return numbers.sort((a, b) => a - b)[numbers.length >> 1] ?? Number.NaN
}
