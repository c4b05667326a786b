/** Checkpoints of EmbeddingRWKV: names below `rwkv.`, a token after each text, heads for three tasks. */
import { join } from 'node:path'
import { beforeAll, expect, test } from 'vitest'
import { embedAll } from '../../src/api/embeddings/embeddings.ts'
import { LocalEngineClient } from '../../src/engine/client/local-client.ts'
import type { EmbeddingTask } from '../../src/engine/messages.ts'
import { loadEngine, loadRunner } from '../../src/host/load.ts'
import type { EngineChoice } from '../../src/host/model-choice.ts'
import { openCheckpoint } from '../../src/model/checkpoint.ts'
import { type NamedValues, readTensors } from '../helpers/formats.ts'
import { writePth, writeRandomRwkv7 } from '../helpers/pth.ts'
import { temporaryFolder } from '../helpers/temporary-folder.ts'

const folder = temporaryFolder()
const [C, INNER, END] = [64, 96, 65_535]
const TASKS: readonly EmbeddingTask[] = ['retr', 'sts', 'cls']
const MODEL = join(folder, 'rwkv0b1-emb-curriculum.pth')
const plain = writeRandomRwkv7(join(folder, 'plain.pth'), { channels: C, vocab: END + 1 })

function headTensors(task: EmbeddingTask, seed: number): NamedValues[] {
  const waves = (count: number, scale: number) =>
    Float32Array.from({ length: count }, (_, i) => scale * Math.sin(seed + 1.7 * i + 0.01 * i * i))
  const name = `head.${task}_head`
  return [
    { name: `${name}.fc1.weight`, shape: [INNER, C], values: waves(INNER * C, 0.3) },
    { name: `${name}.fc2.weight`, shape: [C, INNER], values: waves(INNER * C, 0.2) },
    { name: `${name}.norm.weight`, shape: [C], values: waves(C, 1).map((value) => 1 + value / 2) },
    { name: `${name}.norm.bias`, shape: [C], values: waves(C, 0.1) },
  ]
}

const HEADS = new Map(TASKS.map((task, i) => [task, headTensors(task, i)]))
const choice: EngineChoice = {
  ...{ model: MODEL, device: 'reference', slots: 2, maxTokens: 32 },
  vocab: join(import.meta.dirname, '../../models/demo.vocab.txt'),
}

beforeAll(() => {
  const backbone = readTensors(plain).map((tensor) => ({ ...tensor, name: `rwkv.${tensor.name}` }))
  writePth(MODEL, [...backbone, ...[...HEADS.values()].flat()])
})

/** By the published definition, in float64: norm(x + W2 relu(W1 x)), of length 1. */
function expected(hidden: readonly number[], task: EmbeddingTask): number[] {
  const [w1, w2, gain, bias] = HEADS.get(task)!.map(({ values }) => [...values])
  const row = (matrix: readonly number[], i: number, x: readonly number[]) =>
    x.reduce((sum, value, j) => sum + value * matrix[i * x.length + j]!, 0)
  const inner = Array.from({ length: INNER }, (_, i) => Math.max(0, row(w1!, i, hidden)))
  const raw = hidden.map((value, i) => value + row(w2!, i, inner))
  const mean = raw.reduce((sum, value) => sum + value, 0) / C
  const variance = raw.reduce((sum, value) => sum + (value - mean) ** 2, 0) / C
  const out = raw.map((value, i) => ((value - mean) / Math.sqrt(variance + 1e-5)) * gain![i]! + bias![i]!)
  const length = Math.hypot(...out)
  return out.map((value) => value / length)
}

test('texts become vectors by the requested head, after the token that ends them', async () => {
  const runner = loadRunner({ ...choice, model: plain })
  const { engine } = await loadEngine(choice)
  expect(engine.info).toMatchObject({ embeddings: 'last', embeddingTasks: TASKS })
  const client = new LocalEngineClient(engine)
  const texts = [Int32Array.of(7, 300, 12), Int32Array.of(5), Int32Array.of(9, END)]
  // embedAll reads only the name and the engine of a model.
  const model = { id: 'm', client } as unknown as Parameters<typeof embedAll>[0]
  const call = { id: 'c', tenant: '', signal: new AbortController().signal }
  const ends = texts.map((text) => (text.at(-1) === END ? text : Int32Array.of(...text, END)))
  const states = ends.map((tokens) => {
    runner.clearSlot(0)
    return [...runner.step([{ slot: 0, tokens, samples: [], hidden: 'last' }])[0]!.hidden!]
  })
  for (const task of [...TASKS, undefined]) {
    const { vectors, numTokens } = await embedAll(model, texts, null, call, task)
    expect(numTokens).toBe(4 + 2 + 2)
    for (const [i, vector] of vectors.entries()) {
      const right = expected(states[i]!, task ?? 'retr')
      expect(Math.max(...right.map((value, j) => Math.abs(value - vector[j]!)))).toBeLessThan(1e-5)
    }
  }
  await client.close()
  runner.dispose()
})

test('with heads, --embeddings is refused, and a head of another shape is named', async () => {
  await expect(loadEngine({ ...choice, embeddings: 'mean' })).rejects.toThrow(/leave --embeddings mean out/)
  const damaged = join(folder, 'damaged.pth')
  const [fc1, , ...norms] = HEADS.get('sts')!
  writePth(damaged, [...readTensors(plain), fc1!, ...norms])
  const rejected = expect(loadEngine({ ...choice, model: damaged })).rejects
  await rejected.toThrow(/head\.sts_head\.fc2\.weight is missing, expected \[64, 96\]/)
})

test('inspect lists the names in the file', () => {
  const checkpoint = openCheckpoint(MODEL)
  expect(checkpoint.naming).toBe('rwkv-emb')
  checkpoint.close()
})
