/** A captured sequence of launches and copies, replayed by one call. Owned by whoever captured it. */
import { assert } from '../../../errors.ts'
import type { Pointer } from '../../ffi.ts'
import type { CudaDriver } from './driver.ts'

export class CudaGraph {
  /** What it is, for the message of an error that surfaces after its launch. */
  readonly label: string
  /** Kernels, copies and fills in it. */
  readonly numNodes: number
  readonly #driver: CudaDriver
  readonly #stream: Pointer
  readonly #graph: Pointer
  readonly #onDispose: () => void
  #executable: Pointer | null = null

  /** Takes over `graph`, a CUgraph that cuStreamEndCapture made. */
  constructor(
    driver: CudaDriver,
    stream: Pointer,
    graph: Pointer,
    label: string,
    onDispose: () => void,
  ) {
    this.#onDispose = onDispose
    this.#driver = driver
    this.#stream = stream
    this.#graph = graph
    const out = new BigUint64Array(1)
    try {
      driver.call('cuGraphGetNodes', graph, null, out)
      this.numNodes = Number(out[0])
      this.label = `graph "${label}" (${this.numNodes} nodes)`
      driver.call('cuGraphInstantiateWithFlags', out, graph, 0)
      this.#executable = out[0]!
      driver.call('cuGraphUpload', this.#executable, stream)
    } catch (error) {
      // The failure that ended it is the one to report, so their own statuses are not looked at.
      if (this.#executable !== null) driver.functions.cuGraphExecDestroy(this.#executable)
      driver.functions.cuGraphDestroy(graph)
      throw error
    }
  }

  /** Puts a replay on the stream; does not wait for it. */
  launch(): void {
    assert(this.#executable !== null, 'a graph launched after dispose()')
    this.#driver.lastLaunch = this.label
    const status = this.#driver.functions.cuGraphLaunch(this.#executable, this.#stream)
    if (status !== 0) throw this.#driver.error(status, `cuGraphLaunch of ${this.label}`)
  }

  dispose(): void {
    if (this.#executable === null) return
    this.#driver.call('cuGraphExecDestroy', this.#executable)
    this.#driver.call('cuGraphDestroy', this.#graph)
    this.#executable = null
    this.#onDispose()
  }
}
