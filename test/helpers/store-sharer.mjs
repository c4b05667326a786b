// One of several writers of one store, until it is killed: node store-sharer.mjs <folder> <maxInlineBytes> <seed>
// Claims one of five sessions after another, adds a version, prints "ack <session> <version>", and sometimes releases it.
import { writeSync } from 'node:fs'
import { StoreDatabase } from '../../dist/state/store/database.js'

const [folder, maxInlineBytes, seed] = process.argv.slice(2)
const shape = { layers: 2, channels: 128, heads: 2, headSize: 64 }
const identity = { architecture: 'rwkv7', ...shape, vocabulary: 'v', weights: 'w' }
const database = new StoreDatabase({ folder, identity, isDurable: false, maxInlineBytes: Number(maxInlineBytes) })

function write(name, record) {
  const version = (record?.version ?? 0) + 1
  const key = `${name.id} ${version} ${seed}`
  const floats = [new Float32Array(512).fill(version), new Float32Array(16_384).fill(version + 0.5)]
  const tokens = Int32Array.from({ length: 40 }, (_, i) => version + i)
  const turn = { turn: 1, parent: 0, createdAt: 1, key, numTokens: 41, bytes: 1, isForeign: false }
  const times = { createdAt: 1, updatedAt: version, ttlMs: null }
  database.commit({
    puts: [{ key, tokens, tail: Int32Array.of(version), floats, namespace: 'n', isForeign: false }],
    sessions: [{ ...name, record: { version, head: 1, nextTurn: 2, turns: [turn], ...times } }],
    deleteKeys: record?.turns.map((old) => old.key) ?? [],
  })
  writeSync(1, `ack ${name.id} ${version}\n`)
}

writeSync(1, 'open\n')
for (let i = Number(seed); ; i += 1 + (i % 3)) {
  const name = { namespace: 'n', id: `s${i % 5}` }
  try {
    const { session } = database.claim(name, true)
    write(name, session?.record)
    // What another process wrote is complete.
    if (session !== null) {
      const { state } = database.load(`${name.id} ${session.record.version + 1} ${seed}`, 'n')
      if (state[1][0] !== session.record.version + 1.5) throw new Error('mixed content')
    }
    const isKept = i % 4 === 0
    if (!isKept) database.commit({ puts: [], sessions: [], deleteKeys: [], releases: [name] })
  } catch (error) {
    if (error.code !== 'conflict') throw error
    writeSync(1, `taken ${name.id}\n`)
  }
}
