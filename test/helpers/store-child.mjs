// Writes to a store until it is killed: node store-child.mjs <folder> <maxInlineBytes> <seed>
// Prints "ack <session> <version>" after each commit. A state's values follow from its version.
import { writeSync } from 'node:fs'
import { StoreDatabase } from '../../dist/state/store/database.js'

const [folder, maxInlineBytes, seed] = process.argv.slice(2)
const shape = { layers: 2, channels: 128, heads: 2, headSize: 64 }
const identity = { architecture: 'rwkv7', ...shape, vocabulary: 'v', weights: 'w' }
const database = new StoreDatabase({ folder, identity, isDurable: true, maxInlineBytes: Number(maxInlineBytes) })
const records = new Map(database.sessions().map(({ id, record }) => [id, record]))

function commit(id, version, oldKeys) {
  const key = `${id} ${version}`
  const tokens = Int32Array.from({ length: 40 }, (_, i) => version + i)
  const state = { shift: new Float32Array(512).fill(version), wkv: new Float32Array(16_384).fill(version + 0.5) }
  const put = { key, tokens, tail: Int32Array.of(version), floats: [state.shift, state.wkv], namespace: 'n' }
  const turn = { turn: 1, parent: 0, createdAt: 1, key, numTokens: 41, bytes: 1, isForeign: false }
  const times = { createdAt: 1, updatedAt: 1, ttlMs: null }
  const record = { version, head: 1, nextTurn: 2, turns: [turn], ...times }
  database.commit({
    puts: [{ ...put, isForeign: false }],
    sessions: [{ namespace: 'n', id, record }],
    deleteKeys: oldKeys,
  })
  records.set(id, record)
}

writeSync(1, 'open\n')
for (let i = Number(seed); ; i++) {
  const id = `s${i % 5}`
  const old = records.get(id)
  const version = (old?.version ?? 0) + 1
  commit(id, version, old === undefined ? [] : old.turns.map(({ key }) => key))
  writeSync(1, `ack ${id} ${version}\n`)
}
